"""Endpoints against `transformers serve` with a tiny chat model: a third party's server."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pydantic import BaseModel, ConfigDict
from serving import free_port
from waiting import HANG, until

from workup.core.episode import Message
from workup.core.errors import RolloutError
from workup.core.ports import Request
from workup.models.structured import ask
from workup.roles.endpoint import Endpoint, EndpointSettings

if not (find_spec("fastapi") and find_spec("uvicorn")):
    pytest.skip(
        "`transformers serve` needs pip install 'transformers[serving]'", allow_module_level=True
    )

ANSWER = '{"same": true}'
PROMPTS = ("Is influenza the same as flu?", "流感和流行性感冒是同一种病吗?", "Anything else?")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    same: bool


def tiny_chat_model(folder: Path) -> None:
    """A byte-level Qwen3 with a chat template that has learned to say ANSWER, saved to `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = Qwen3ForCausalLM(config)
    teach(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def teach(model: Any, tokenizer: Any) -> None:
    import torch

    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    told = tokenizer(ANSWER + "<|im_end|>", return_tensors="pt").input_ids
    for step in range(90):
        messages = [{"role": "user", "content": PROMPTS[step % 3]}]
        asked = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = torch.cat([asked["input_ids"], told], dim=1)
        labels = ids.clone()
        labels[:, : -told.shape[1]] = -100
        model(input_ids=ids, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()


def healthy(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=HANG):
            return True
    except OSError:
        return False


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointSettings]:
    folder = tmp_path_factory.mktemp("served") / "tiny-chat"
    tiny_chat_model(folder)
    port = free_port()
    program = shutil.which("transformers", path=str(Path(sys.executable).parent)) or "transformers"
    command = [
        program,
        "serve",
        str(folder),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
    ]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=offline, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            until(lambda: healthy(port), server)
            yield EndpointSettings(
                base_url=f"http://127.0.0.1:{port}/v1", model=str(folder), retries=1, concurrency=4
            )
        finally:
            server.terminate()
            server.communicate(timeout=HANG)


def request(text: str, **more: Any) -> Request:
    return Request("judge", "1", (Message("user", text),), **{"max_tokens": 32, **more})


@pytest.mark.long
def test_free_text_in_both_languages_at_once(served: EndpointSettings) -> None:
    model = Endpoint(served)

    async def together() -> list[Any]:
        return await asyncio.gather(*(model.complete(request(text)) for text in PROMPTS * 2))

    replies = asyncio.run(together())
    assert [reply.text for reply in replies] == [ANSWER] * 6
    assert {reply.completion_tokens for reply in replies} == {len(ANSWER) + 1}
    assert all(reply.prompt_tokens > 20 and not reply.truncated for reply in replies)
    assert not model.notes


@pytest.mark.long
def test_an_answer_of_a_shape(served: EndpointSettings) -> None:
    assert asyncio.run(ask(Endpoint(served), request(PROMPTS[0]), Verdict)) == Verdict(same=True)


def test_a_short_limit_truncates_and_then_no_shape_comes_out(served: EndpointSettings) -> None:
    reply = asyncio.run(Endpoint(served).complete(request(PROMPTS[1], max_tokens=5)))
    assert (reply.text, reply.truncated) == (ANSWER[:5], True)
    with pytest.raises(
        RolloutError,
        match=r"no usable answer from .* after 3 attempts: it was cut off before its end",
    ):
        asyncio.run(ask(Endpoint(served), request(PROMPTS[1], max_tokens=5), Verdict))


def test_a_model_that_is_not_served_fails_with_the_server_s_words(served: EndpointSettings) -> None:
    other = served.model_copy(update={"model": "another"})
    with pytest.raises(RolloutError, match=r"refuses the request: 400 .*pinned"):
        asyncio.run(Endpoint(other).complete(request("hello")))


LOOPS = """
import asyncio, gc, sys
from workup.core.episode import Message
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.core.ports import Request

model = Endpoint(EndpointSettings(base_url=sys.argv[1], model=sys.argv[2], concurrency=2, \
requests_per_minute=60_000))

def request(text):
    return Request("judge", "1", (Message("user", text),), max_tokens=4)

async def step(k):
    return await asyncio.gather(*(model.complete(request(f"{k} {i}")) for i in range(5)))

for k in range(3):
    assert len(asyncio.run(step(k))) == 5
del model
gc.collect()
"""


def test_it_works_in_one_event_loop_after_another_and_leaves_nothing_behind(
    served: EndpointSettings,
) -> None:
    command = [sys.executable, "-W", "always", "-c", LOOPS, served.base_url, served.model]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert (done.returncode, done.stdout) == (0, "")
    assert not [
        line
        for line in done.stderr.splitlines()
        if "Event loop" in line or "Resource" in line or "never" in line
    ]
