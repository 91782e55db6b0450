"""Answers held to a schema: random weights, every schema of the framework's own, random schemas."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from test_local_policy import CHATML, letters, qwen
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workup.core.case import Case, Truth
from workup.core.episode import Message
from workup.core.errors import RolloutError
from workup.core.ports import Reply, Request, Sampling
from workup.models.chat import HELD, LocalChat
from workup.models.grammar import LARGEST, Grammar, bounded
from workup.models.local import LocalPolicy
from workup.models.structured import in_words, parse, schema_of
from workup.roles.judges.diagnosis import DiagnosisJudge
from workup.roles.judges.questions import Grade, NamingQuestion

pytest.importorskip("llguidance")
torch.set_num_threads(1)
ROOMS = ("roles.judges", "prepare", "environments", "doctors", "metrics", "studies", "methods")
FREE = '{"properties": {"text": {"type": "string"}}, "required": ["text"], "type": "object"}'


def shapes() -> Iterator[type[BaseModel]]:
    """Every pydantic model of the rooms that ask models, but for settings."""
    for room in ROOMS:
        package = import_module(f"workup.{room}")
        for module in walk_packages(package.__path__, f"workup.{room}."):
            for each in vars(import_module(module.name)).values():
                own = isinstance(each, type) and each.__module__ == module.name
                if own and issubclass(each, BaseModel) and not each.model_config.get("frozen"):
                    yield each


FITS = re.compile("(t|tr|tru|true|f|fa|fal|fals|false)$")
SHAPES = sorted(shapes(), key=lambda shape: (shape.__module__, shape.__name__))


def pairs() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with merges, as those of real chat models are."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([schema_of(shape) for shape in SHAPES], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        chat_template=CHATML,
    )


@pytest.fixture(scope="module")
def chat() -> LocalChat:
    tokenizer = pairs()
    wider = len(tokenizer) + 7  # output layers are often padded
    return LocalChat(qwen(wider, context=4_096), tokenizer, "random")


def asked(schema: str, sample: int = 0, **more: Any) -> Request:
    given = {"max_tokens": 700, "temperature": 1.0, "sample": sample, **more}
    return Request("judge", "1", (Message("user", "Well?"),), schema, **given)


def answers(chat: LocalChat, *requests: Request) -> list[Reply]:
    async def ask() -> list[Reply]:
        return await asyncio.gather(*map(chat.complete, requests))

    return asyncio.run(ask())


def test_there_are_shapes_of_every_kind() -> None:
    names = {f"{shape.__module__}.{shape.__name__}" for shape in SHAPES}
    assert len(names) > 25
    for part in ("judges.diagnosis", "patients", "records", "prepare.facts", "strategies.mediq"):
        assert any(part in name for name in names), part


@pytest.mark.long
def test_random_weights_fill_every_schema_of_the_framework(chat: LocalChat) -> None:
    requests = [asked(schema_of(shape), sample) for shape in SHAPES for sample in range(3)]
    whole = 0
    for shape, reply in zip(
        (shape for shape in SHAPES for _ in range(3)), answers(chat, *requests), strict=True
    ):
        assert reply.completion_tokens <= 700
        answer, problem = parse(reply.text, shape)
        if not reply.truncated:
            assert answer is not None, (shape, problem, reply.text)
            jsonschema.validate(json.loads(reply.text), shape.model_json_schema())
            whole += 1
    assert whole > 0.8 * len(requests)


texts = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 9)},
)
whole_numbers = st.fixed_dictionaries(
    {"type": st.just("integer")},
    optional={"minimum": st.integers(-50, 3), "maximum": st.integers(3, 1_000)},
)
numbers = st.fixed_dictionaries(
    {"type": st.just("number")},
    optional={"minimum": st.integers(-3, 0), "maximum": st.integers(1, 9)},
)
choices = st.builds(
    lambda values: {"enum": values},
    st.lists(st.text('abcé "\\\n病', max_size=5) | st.integers(-9, 99), min_size=1, max_size=4),
)
leaves = texts | whole_numbers | numbers | choices | st.just({"type": "boolean"})
NAMES = st.text('abct ype"é', min_size=1, max_size=5) | st.sampled_from(["type", "enum", "items"])


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda fields, some: {
            "type": "object",
            "properties": fields,
            "required": [*fields][: some % (len(fields) + 1)],
            "additionalProperties": False,
        },
        st.dictionaries(NAMES, inner, max_size=4),
        st.integers(0, 20),
    )


def lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda each, least, more: {
            "type": "array",
            "items": each,
            "minItems": least,
            "maxItems": least + more,
        },
        inner,
        st.integers(0, 3),
        st.integers(0, 3),
    )


SCHEMAS = objects(
    st.recursive(
        leaves,
        lambda inner: (
            objects(inner)
            | lists(inner)
            | st.builds(lambda each: {"anyOf": [each, {"type": "null"}]}, inner)
        ),
        max_leaves=6,
    )
)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(SCHEMAS)
def test_random_weights_fill_random_schemas(chat: LocalChat, schema: dict[str, Any]) -> None:
    first, second = answers(
        chat,
        asked(json.dumps(schema), max_tokens=600),
        asked(json.dumps(schema), 1, max_tokens=600),
    )
    for reply in (first, second):
        if not reply.truncated:
            jsonschema.validate(json.loads(reply.text), schema)
        else:
            assert reply.completion_tokens == 600


@given(SCHEMAS, st.integers(9, 50))
def test_bounds_are_only_added_where_there_were_none(schema: dict[str, Any], longest: int) -> None:
    made = bounded(schema, longest)
    assert bounded(made, longest + 1) == made
    jsonschema.Draft202012Validator.check_schema(made)
    assert bounded({"type": "string", "maxLength": 2_000}, 9)["maxLength"] == 9
    assert bounded({"type": "string", "minLength": 12}, 9)["maxLength"] == 12
    plain = {"type": "object", "properties": {"type": {"type": "string"}, "n": {"type": "integer"}}}
    assert bounded(plain, 9)["properties"] == {
        "type": {"type": "string", "maxLength": 9},
        "n": {"type": "integer", "minimum": -LARGEST, "maximum": LARGEST},
    }


def test_a_text_ends_in_time_and_what_does_not_is_cut_off(chat: LocalChat) -> None:
    """One character may take random weights four tokens."""
    ends = FREE.replace('"string"', '"string", "minLength": 80, "maxLength": 90').replace(
        '"required"', '"additionalProperties": false, "required"'
    )
    endless = json.dumps({"type": "array", "items": {"type": "string"}, "minItems": 60})
    text, short, lists = answers(
        chat,
        asked(ends, temperature=0.0, max_tokens=400),
        asked(ends, temperature=0.0, max_tokens=9),
        asked(endless, temperature=1.0, max_tokens=60),
    )
    assert not text.truncated
    assert 80 <= len(json.loads(text.text)["text"]) <= 90
    for cut in (short, lists):
        assert cut.truncated
        with pytest.raises(ValueError):
            json.loads(cut.text)


@pytest.mark.long
def test_an_answer_does_not_depend_on_its_company(chat: LocalChat) -> None:
    schemas = [schema_of(shape) for shape in SHAPES[:6]]
    requests = [asked(schema, sample) for schema in (*schemas, "") for sample in range(2)]
    tokenizer, model = chat._policy.tokenizer, chat._policy.model
    together = answers(chat, *requests)
    another = LocalChat(model, tokenizer, "random")
    assert [answers(another, each)[0] for each in reversed(requests)][::-1] == together


@pytest.mark.long
def test_without_a_schema_nothing_changes(chat: LocalChat) -> None:
    """Beside answers with a schema, greedy free text is what `generate` writes."""
    free, _ = answers(chat, asked("", temperature=0.0, max_tokens=40), asked(FREE))
    tokenizer, model = chat._policy.tokenizer, chat._policy.model
    prompt = "<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        out = model.generate(**ids, max_new_tokens=40, do_sample=False, pad_token_id=0)[0]
    said = out[ids["input_ids"].shape[1] :]
    assert free.completion_tokens == len(said)
    assert free.text == tokenizer.decode([i for i in said if i != tokenizer.eos_token_id])


def test_what_is_drawn_follows_the_weights_among_what_fits(chat: LocalChat) -> None:
    """The oracle is the whole softmax: P(choice) is renormalised over the tokens that fit."""
    policy = LocalPolicy(chat._policy.model, chat._policy.tokenizer)
    grammar = Grammar(policy.tokenizer, policy.model.get_output_embeddings().weight.shape[0])
    schema = '{"type": "boolean"}'
    prompt = policy.encode("Is it flu?")

    async def draw() -> list[Any]:
        keys = range(400)
        return await asyncio.gather(
            *(
                policy.sample(prompt, Sampling(max_tokens=9, key=k), grammar.guide(schema, 9))
                for k in keys
            )
        )

    said = asyncio.run(draw())
    assert {each.text for each in said} == {"true", "false"}
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt])).logits[0, -1]
    names = [policy.tokenizer.decode([i]) for i in range(len(policy.tokenizer))]
    fits = [
        i
        for i, name in enumerate(names)
        if name and ("true"[: len(name)] == name or "false"[: len(name)] == name)
    ]
    chances = logits[fits].softmax(-1)
    true = sum(float(p) for i, p in zip(fits, chances, strict=True) if names[i][0] == "t")
    found = sum(each.text == "true" for each in said) / len(said)
    assert abs(found - true) < 4 * (true * (1 - true) / len(said)) ** 0.5
    for each in said[:20]:
        expected = chances[fits.index(each.tokens[0])].log()
        assert each.logprobs[0] == pytest.approx(float(expected), abs=1e-4)


def test_forced_tokens_cost_no_forward_pass(chat: LocalChat) -> None:
    long = json.dumps({"const": "a long sentence that leaves no choice at all"})
    before = chat._policy.forwards
    (reply,) = answers(chat, asked(long))
    assert json.loads(reply.text) == json.loads(long)["const"]
    assert chat._policy.forwards == before


def test_a_judge_of_random_weights_always_grades(chat: LocalChat) -> None:
    case = Case("1", "Fever.", Truth("influenza"))
    judge = DiagnosisJudge(chat)

    async def grade() -> list[Grade]:
        names = [f"disease {number}" for number in range(6)]
        graded = await asyncio.gather(*(judge.judge(NamingQuestion(name, case)) for name in names))
        return [each.grade for each in graded]

    assert len(asyncio.run(grade())) == 6


def test_the_model_is_told_the_bound_and_its_name_that_it_is_held(chat: LocalChat) -> None:
    assert chat.name == f"random{HELD}"
    assert not chat.notes
    prompt = chat._policy.tokenizer.decode(chat._prompt(asked(FREE)))
    assert in_words(FREE) in prompt
    assert "at most 350 characters" in prompt


def test_a_tokenizer_that_cannot_be_read_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    other = LocalChat(qwen(len(letters())), letters(), "letters")
    assert other.name == "letters"
    (note,) = other.notes
    assert "not held to their schema: llguidance cannot read the tokenizer" in note


def test_a_schema_that_no_answer_fits_fails_with_the_reason(chat: LocalChat) -> None:
    nothing = json.dumps({"type": "integer", "minimum": 5, "maximum": 3})
    with pytest.raises(RolloutError, match=r"random.* as judge: no answer can be held"):
        answers(chat, asked(nothing))


def test_reasons_come_before_verdicts() -> None:
    for shape in SHAPES:
        assert [*json.loads(schema_of(shape))["properties"]] == [*shape.model_fields]
