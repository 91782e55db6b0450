"""Local chat models against `generate()`, alone and in company.

Weights are real (tiny) transformers weights in a folder.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from test_local_policy import CHATML, letters, qwen

from workup.core.draws import seed_key
from workup.core.episode import Completion, Message
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Reply, Request
from workup.models.chat import LocalChat, _answer
from workup.models.hub import digest
from workup.models.structured import in_words, schema_of
from workup.roles import replies

torch.set_num_threads(1)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    + CHATML
)


def save(folder: Path, template: str | None = CHATML, context: int = 2_048) -> Path:
    tokenizer = letters()
    tokenizer.chat_template = template
    qwen(len(tokenizer), context=context).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("weights") / "tiny")


@pytest.fixture(scope="module")
def chat(folder: Path) -> LocalChat:
    return LocalChat.load(str(folder))


def request(text: str = "what now?", **more: Any) -> Request:
    return Request(
        "patient",
        "1",
        (Message("system", "be brief"), Message("user", text)),
        **{"max_tokens": 24, **more},
    )


def answers(chat: LocalChat, *requests: Request) -> list[Reply]:
    async def ask() -> list[Reply]:
        return await asyncio.gather(*map(chat.complete, requests))

    return asyncio.run(ask())


@pytest.mark.parametrize("schema", ["", '{"type": "object"}'])
def test_greedy_answers_are_those_of_generate(chat: LocalChat, folder: Path, schema: str) -> None:
    asked = request("is it flu?", schema=schema)
    (reply,) = answers(chat, asked)
    tokenizer, model = chat._policy.tokenizer, chat._policy.model
    last = "is it flu?" + (in_words(schema) if schema else "")
    prompt = (
        f"<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n{last}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        out = model.generate(
            **ids,
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=tokenizer.eos_token_id,
        )[0]
    said = out[ids["input_ids"].shape[1] :].tolist()
    assert (reply.prompt_tokens, reply.completion_tokens) == (ids["input_ids"].shape[1], len(said))
    assert reply.text == _answer(tokenizer.decode([i for i in said if i != tokenizer.eos_token_id]))
    assert reply.truncated == (tokenizer.eos_token_id not in said)


def test_equal_requests_have_equal_answers_in_any_company_and_in_any_loop(folder: Path) -> None:
    one, another = LocalChat.load(str(folder)), LocalChat.load(str(folder))
    asked = [
        request(text, temperature=1.0, sample=sample)
        for text in ("a", "bc", "def " * 9)
        for sample in range(4)
    ]
    together = answers(one, *asked)
    alone = [answers(another, each)[0] for each in reversed(asked)][::-1]
    assert together == alone == answers(one, *asked)
    assert len({reply.text for reply in together}) > 9  # samples differ


def test_the_name_tells_the_weights(chat: LocalChat, folder: Path, tmp_path: Path) -> None:
    assert chat.name == f"tiny@{digest(folder)}"
    assert re.fullmatch(r"tiny@[0-9a-f]{16}", chat.name)
    copy = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(folder, copy)
    (copy / "trainer.log").write_text("not what makes the model")
    assert LocalChat.load(str(copy)).name == chat.name
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert digest(copy) != digest(folder)
    shutil.copy(folder / "model.safetensors", copy)
    (copy / "chat_template.jinja").write_text(CHATML + " ")
    assert digest(copy) != digest(folder)


def test_an_answer_of_a_given_shape_is_asked_for_in_the_prompt(chat: LocalChat) -> None:
    class Shape(BaseModel):
        diagnosis: str

    plain, shaped = answers(chat, request(), request(schema=schema_of(Shape)))
    assert shaped.prompt_tokens - plain.prompt_tokens == len(
        in_words(schema_of(Shape))
    )  # one token per character here


def test_a_prompt_without_room_for_an_answer_fails(chat: LocalChat) -> None:
    with pytest.raises(
        RolloutError, match=r"the prompt as patient has 3\d{3} tokens, its context 2048"
    ):
        answers(chat, request("x" * 3_000))
    (reply,) = answers(chat, request("x" * 1_975, max_tokens=1_000))
    assert reply.truncated or reply.completion_tokens < 1_000
    assert reply.prompt_tokens + reply.completion_tokens <= 2_048


def test_a_template_without_system_messages_begins_the_first_user_message_with_it(
    tmp_path: Path,
) -> None:
    chat = LocalChat.load(str(save(tmp_path / "strict", NO_SYSTEM)))
    tokenizer = chat._policy.tokenizer
    assert tokenizer.decode(chat._prompt(request())) == (
        "<|im_start|>user\nbe brief\n\nwhat now?<|im_end|>\n<|im_start|>assistant\n"
    )
    (reply,) = answers(chat, request(max_tokens=4))
    assert reply.completion_tokens > 0
    alone = chat._policy.render((Message("system", "be brief"),))
    assert tokenizer.decode(alone).startswith("<|im_start|>user\nbe brief<|im_end|>")


def test_a_template_that_refuses_the_messages_fails_with_its_reason(tmp_path: Path) -> None:
    refusing = CHATML.replace("{% for", "{{ raise_exception('not today') }}{% for", 1)
    chat = LocalChat.load(str(save(tmp_path / "refusing", refusing)))
    with pytest.raises(RolloutError, match=r"refusing@.*: the chat template refuses the mess"):
        answers(chat, request())


NAMES = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
PARTS = st.sampled_from([*NAMES, "<|im_", "end|>", "·", "a", " "])


@given(st.lists(PARTS, max_size=8).map("".join))
def test_no_message_writes_a_control_token(chat: LocalChat, text: str) -> None:
    """What a patient types is text, in a message and by itself."""
    policy = chat._policy
    control = {*policy.tokenizer.convert_tokens_to_ids(NAMES)}
    first = policy.render((Message("system", "s"), Message("user", text)))
    assert sum(token in control for token in first) == 2 * 2 + 1  # the template's own
    past = (*first, *policy.encode("yes"))
    assert sum(token in control for token in policy.render((Message("user", text),), past)) == 4
    assert not control & {*policy.encode(text)}


def test_weights_that_are_not_numbers_are_told_in_one_line(tmp_path: Path) -> None:
    folder = save(tmp_path / "broken")
    chat = LocalChat.load(str(folder))
    with torch.no_grad():
        chat._policy.model.model.norm.weight[3] = torch.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(UserError, match=r"^the model's probabilities are not num"):
            answers(chat, request(temperature=temperature))


@pytest.mark.parametrize("left", [0, 7, 60, 5_000])
def test_a_file_of_weights_that_is_cut_off_is_told_in_one_line(tmp_path: Path, left: int) -> None:
    folder = save(tmp_path / "cut")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(UserError, match=r"^'.*cut' holds no weights that can be loaded: [^\n]+$"):
        LocalChat.load(str(folder))


def test_weights_that_are_none_or_no_chat_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no chat template"):
        LocalChat.load(str(save(tmp_path / "base", None)))
    with pytest.raises(UserError, match="nowhere"):
        LocalChat.load(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("flu", "flu"),
        ("<think>\nperhaps {}\n</think>\n\nflu", "flu"),
        ("perhaps</think>flu", "flu"),  # the template had opened the thought
        ("<think>perhaps, or else", ""),
        ("I <think> so", "I <think> so"),
    ],
)
def test_a_thought_is_no_part_of_the_answer(said: str, answer: str) -> None:
    assert _answer(said) == answer


def test_a_thought_that_the_template_begins_and_nothing_ends_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
    model = LocalChat.load(str(save(tmp_path / "thinks", template)))

    async def sample(prompt: object, sampling: object, guide: object) -> Completion:
        return Completion("perhaps, or else", truncated=True)

    monkeypatch.setattr(model._policy, "sample", sample)
    assert [each.text for each in answers(model, request("is it flu?"))] == [""]


def test_an_answer_is_whole_where_its_grammar_has_a_thought(
    chat: LocalChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an encounter's turn is; neither what is drawn nor the key of a reply depends on it."""
    said = "<think>perhaps</think><answer>flu</answer>"

    async def sample(prompt: object, sampling: object, guide: object) -> Completion:
        return Completion(said)

    monkeypatch.setattr(chat._policy, "sample", sample)
    plain, whole = request("is it flu?"), replace(request("is it flu?"), whole=True)
    assert [each.text for each in answers(chat, plain, whole)] == ["<answer>flu</answer>", said]
    assert seed_key(plain) == seed_key(whole)
    assert replies.asked("m", plain) == replies.asked("m", whole)
