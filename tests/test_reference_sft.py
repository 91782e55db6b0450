"""SFT on reference processes (MR-15): what is imitated, what is masked, what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import SOURCE

import workup
from workup import environments, methods
from workup.cases import open_source
from workup.cases.clinic.graph import read_triples
from workup.cases.jsonl import write
from workup.core.case import Case, Source
from workup.core.errors import UserError
from workup.core.ports import Demonstration
from workup.core.stages import SftStage
from workup.environments.base.recorded import CONCLUDE
from workup.environments.reasoning import Reasoning, Settings
from workup.methods.medr3 import stages_of
from workup.models.local import LocalPolicy
from workup.models.tiny import UNKNOWN, TinySettings, build
from workup.rl.samples import token_tree
from workup.runs.settings import Settings as RunSettings
from workup.runs.settings import build as build_settings
from workup.runs.settings import read
from workup.runs.settings import world as world_of

CLINIC = open_source("clinic:xs")
METHOD = methods.load("reference-sft")
MODULE = environments.load("reasoning")
SEARCHED = (
    "<think>Why? <search>shadow</search><document>\n[1] A <answer>Flu</answer> shows.\n</document> "
    "So.<search>sputum</search><document>Nothing was found.</document></think>"
    "<answer>Pneumonia</answer>"
)


def world(turns: int = 4, source: Source = CLINIC) -> Reasoning:
    return MODULE.open(source, Settings(index="clinic:xs", max_turns=turns, passages=2))  # type: ignore[return-value]


def shown(
    source: Source, index: int = 0, of: Reasoning | None = None, **settings: int
) -> Demonstration:
    environment = of or world()
    warm_start, stage = METHOD.stages(METHOD.settings(**settings), environment)
    assert (warm_start.name, warm_start.size) == ("warm start", None), "of the tiny policy alone"
    assert isinstance(stage, SftStage)
    return stage.demonstrate(source, environment, 1, index)


def referring(*references: str) -> Source:
    case = SOURCE.train[0]
    return replace(SOURCE, train=[replace(case, truth=replace(case.truth, references=references))])


def test_a_reference_is_imitated_turn_by_turn_and_its_documents_are_masked() -> None:
    environment = world(3, SOURCE)
    made = shown(referring(SEARCHED), of=environment)
    (first, reply), (second, last), (third, nothing) = made.exchanges
    assert first == "<think>Why? <search>shadow</search>"
    assert second == " So.<search>sputum</search>"
    assert third == "</think><answer>Pneumonia</answer>"
    assert "‹answer>Flu‹/answer> shows." in reply[0].content
    assert CONCLUDE not in reply[0].content
    assert last[0].content == f"<document>Nothing was found.</document>\n{CONCLUDE}"
    assert nothing == ()
    model, tokenizer = build(CLINIC, environment.phrases, TinySettings(), 0)
    tree = token_tree(made, LocalPolicy(model, tokenizer))
    learned = tokenizer.decode([t for t, own in zip(tree.trunk, tree.labelled, strict=True) if own])
    assert "document" not in learned
    assert learned.count("search>") == 4


def test_the_references_of_a_case_come_one_after_the_other() -> None:
    texts = [f"<think>{word}</think><answer>Flu</answer>" for word in ("one", "two", "three")]
    source = referring(*texts)
    said = [shown(source, index).exchanges[-1][0] for index in range(5)]
    assert said == [*texts, *texts[:2]]
    with pytest.raises(IndexError):
        shown(source, 5)
    assert shown(source, 0, references=1).exchanges[-1][0] == texts[0]


@pytest.mark.parametrize("searches", [0, 1, 9])
def test_the_clinics_references_are_told_behind_real_searches(searches: int) -> None:
    environment = world()
    case: Case = CLINIC.train[0]
    made = shown(CLINIC, 0, environment, searches=searches)
    *searched, (last, _) = made.exchanges
    assert len(searched) == min(searches, environment.max_turns - 1)
    assert all("<document>" in messages[0].content for _, messages in searched)
    whole = "".join(text for text, _ in made.exchanges)
    assert whole.startswith("<think>")
    assert whole.count("<think>") == whole.count("</think>") == 1
    assert last.endswith(f"</think><answer>{case.truth.diagnosis}</answer>")
    (told,) = environment.references(case)
    assert set(read_triples(last)) == set(read_triples(told)) != set()
    assert made == shown(CLINIC, 0, environment, searches=searches)


def test_the_tiny_policy_can_say_the_clinics_references() -> None:
    environment = world()
    _, tokenizer = build(CLINIC, environment.phrases, TinySettings(), 0)
    ids = tokenizer.encode("".join(text for text, _ in shown(CLINIC).exchanges))
    assert tokenizer.convert_tokens_to_ids(UNKNOWN) not in ids
    assert len(ids) < 100


@pytest.mark.parametrize(
    ("references", "why"),
    [
        ((), "has no reference reasoning"),
        (("<think>x</think>",), "does not end with an answer"),
        (("<answer>Flu</answer>",), "tags are not one thought"),
        (("<think>x<document>y</document></think><answer>Flu</answer>",), "nothing was searched"),
        (("<think><search>a<search>b</search></think><answer>Flu</answer>",), "does not end"),
    ],
)
def test_what_cannot_be_imitated_is_refused_by_name(references: tuple[str, ...], why: str) -> None:
    with pytest.raises(UserError, match=why) as raised:
        shown(referring(*references), of=world(4, SOURCE))
    assert SOURCE.train[0].id in str(raised.value)
    with pytest.raises(UserError, match=r"searches 2 times, and environment\.max_turns=2 leaves"):
        shown(referring(SEARCHED), of=world(2, SOURCE))


@pytest.mark.long
def test_a_prepared_file_is_trained_on(tmp_path: Path) -> None:
    """Two updates on a file with references; the held-out cases are evaluated."""
    path = tmp_path / "cases.jsonl"
    cases = [
        replace(case, truth=replace(case.truth, references=("<think>So.</think>" + ANSWER,)))
        for case in CLINIC.train[:12]
    ]
    write(cases, path, items=CLINIC.items, diagnoses=CLINIC.diagnoses)
    run = workup.train(
        "reference-sft",
        cases=f"jsonl:{path}",
        out=tmp_path / "run",
        environment={"index": "clinic:xs", "passages": 1, "max_turns": 2},
        reward={"references": 2},
        tuning={"batch": 4, "lr": 2e-5, "warmup": 0.03},
        max_tokens=4,
        evaluation={"cases": 1, "anchors": False},
    )
    steps = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    trained = len(open_source(f"jsonl:{path}").train)
    assert len([step for step in steps if step.get("stage") == "references"]) == -(
        -2 * trained // min(4, 2 * trained)
    )


ANSWER = "<answer>Flu</answer>"


def test_the_papers_settings_are_settings_of_ours(tmp_path: Path) -> None:
    """The example of the documentation is read as a run's settings, and has the paper's numbers."""
    page = (Path(__file__).parents[1] / "docs/methods/medr3.md").read_text(encoding="utf-8")
    found = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (example,) = (each for each in found if "recipe" in each)
    (tmp_path / "medr3.yaml").write_text(example)
    endpoint = {"large": {"base_url": "https://api.example.com/v1", "model": "m"}}
    values = read(["method=medr3"], tmp_path / "medr3.yaml")
    made = build_settings(RunSettings, {**values, "endpoints": endpoint})
    assert (made.batch, made.group, made.steps, made.lr) == (256, 16, 41, 1e-6)
    assert made.concurrency == 64 * made.group
    assert made.steps == (2_140 + 1_204 + 6_748 + 429) // made.batch
    tuning = made.tuning
    assert (tuning.lr, tuning.warmup, tuning.lr_schedule) == (2e-5, 0.03, "cosine")
    assert methods.load("reference-sft").printed["tuning"]["epochs"] == tuning.epochs == 3
    method = methods.load("medr3")
    assert stages_of(build_settings(method.settings, made.reward).recipe) == ((1,), (2,), (3,))
    chosen = world_of(made.environment, method.environment)
    assert (chosen.settings.passages, chosen.settings.max_turns) == (5, 6)
