"""Post-verified rejection sampling: what is drawn, what is kept, and that it trains (ES-12)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import SCRIPT, environment
from preparing import configured, endpoint
from serving import Gate, Server, completion, fault, serving
from waiting import HANG, until
from werkzeug import Response

import workup
from workup.cases import open_source
from workup.cases.jsonl import write
from workup.core.case import Case, Source
from workup.core.errors import RolloutError, UserError
from workup.environments.base.lists import boxed, lists, written
from workup.environments.evidence import EvidenceSeeking
from workup.environments.evidence import Settings as World
from workup.methods.evidence_seeking.baselines import verified
from workup.models.local import LocalPolicy
from workup.models.tiny import TinySettings, build
from workup.prepare.steps import Aids, Drop, Kept, Outcome
from workup.prepare.verified_answers import KEPT, VerifiedSettings, apply, kept
from workup.rl.samples import token_tree

WING = open_source("clinic:pathology")
CASES = tuple(replace(WING.train[place], id=f"p{place}") for place in range(12))
SOURCE = replace(WING, name="here", train=CASES, test=CASES)  # type: ignore[type-var]
CASE = CASES[0]
TRUTH = CASE.truth.diagnosis
OTHER = next(name for name in CASE.truth.differentials)

CUT = "(cut off by the limit on tokens)"
GOES_ON = "<answer>And so on"  # ends an answer that was cut off behind what counts
Answers = Sequence[Sequence[str]]


def order(*candidates: str, orders: Sequence[str] = ("TTF-1", "CD20")) -> str:
    return written(lists(candidates, orders))


def answered(
    answers: Answers, judge: str = "exact", **settings: Any
) -> tuple[Outcome, list[dict[str, Any]]]:
    """What becomes of CASE when the k-th draw of turn t is answers[t][k]."""

    def answer(body: dict[str, Any]) -> str | Response:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        text = answers[turn][body["seed"]]
        if text.endswith(GOES_ON):
            return completion(text, finish="length")
        return completion("<think>I", finish="length") if text == CUT else text

    with serving(answer) as server:
        outcome = step(server, judge=judge, **settings)
        return outcome, server.asked


def step(server: Server, case: Case = CASE, **settings: Any) -> Outcome:
    model = endpoint(server, seed=True)
    aids = Aids("it", VerifiedSettings(**settings), SOURCE, lambda spec: model)
    return asyncio.run(apply(case, aids))


def turns(outcome: Outcome) -> list[str]:
    assert isinstance(outcome, Kept)
    return [answer for answer, _ in kept(outcome.case)]


def test_the_first_right_answer_of_each_turn_is_kept() -> None:
    right, last = order(OTHER, TRUTH), written(boxed(TRUTH))
    outcome, asked = answered(
        [[order(OTHER), "no format", right, right], [written(boxed(OTHER)), last]]
    )
    assert turns(outcome) == [right, last]
    assert isinstance(outcome, Kept)
    assert outcome.detail == "2 of 2 turns, 5 answers drawn"
    assert len(asked) == 5
    assert outcome.case.truth.facts == CASE.truth.facts
    (_, replies), (_, nothing) = kept(outcome.case)
    results = {m: m for m in replies[0].content.splitlines()}
    assert any(line.startswith("TTF-1: ") for line in results)
    assert nothing == ()


def test_what_stands_behind_the_answer_does_not_count() -> None:
    """A turn ends with its answer, as in training: a model may go on until its tokens are spent."""
    right, last = order(TRUTH), written(boxed(TRUTH))
    outcome, asked = answered([[f"{right}<think>And on"], [f"{last}{GOES_ON}"]])
    assert turns(outcome) == [right, last]
    assert asked[1]["messages"][2]["content"] == right


def test_the_model_never_sees_the_truth() -> None:
    """Nothing but the rules, the presentation, its own words and what its orders bring."""
    _, asked = answered([[order(OTHER, TRUTH)], [written(boxed(TRUTH))]])
    world = EvidenceSeeking(SOURCE, World(max_turns=2))
    opening = [{"role": message.role, "content": message.content} for message in world.open(CASE)]
    assert asked[0]["messages"] == opening
    follow = asked[1]["messages"]
    assert follow[:2] == opening
    assert follow[2] == {"role": "assistant", "content": order(OTHER, TRUTH)}
    assert TRUTH not in follow[3]["content"]
    unasked = [fact for fact in CASE.truth.facts if fact.item not in ("TTF-1", "CD20")]
    assert not any(fact.text in json.dumps(asked) for fact in unasked)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (order(OTHER), "its list lacks the truth"),
        (order(TRUTH, "a tumour that nobody has described"), "its list holds a hack"),
        (order(TRUTH, orders=()), "nothing is ordered"),
        (written(boxed(TRUTH)), "a diagnosis before the last turn"),
        (lists((TRUTH,), ("CD20",)), "its format is wrong"),
        (CUT, "cut off"),
    ],
)
def test_what_is_not_kept_has_a_reason(wrong: str, reason: str) -> None:
    outcome, asked = answered([[wrong] * 3], n=3)
    told = f"no answer to the first turn is right; commonest: {reason}"
    assert outcome == Drop(told, f"3 × {reason}")
    assert len(asked) == 3


def test_a_case_without_a_right_diagnosis_keeps_its_first_turn_or_is_dropped() -> None:
    right, wrong = order(TRUTH), written(boxed(OTHER))
    outcome, _ = answered([[right], [wrong, order(TRUTH)]], n=2)
    assert turns(outcome) == [right]
    assert isinstance(outcome, Kept)
    reason = "1 × its diagnosis is wrong, 1 × no diagnosis in the last turn"
    assert outcome.detail == f"1 of 2 turns, 3 answers drawn; {reason}"
    outcome, _ = answered([[right], [wrong, wrong]], n=2, first=False)
    told = "no answer to turn 2 is right; commonest: its diagnosis is wrong"
    assert outcome == Drop(told, "2 × its diagnosis is wrong")


def test_more_turns_order_more() -> None:
    first, second = order(TRUTH), order(TRUTH, OTHER, orders=("CD3",))
    outcome, _ = answered([[first], [second], [written(boxed(TRUTH))]], max_turns=3)
    assert turns(outcome) == [first, second, written(boxed(TRUTH))]


def test_a_judge_decides_and_a_simulator_writes() -> None:
    seen = []

    def answer(body: dict[str, Any]) -> str:
        system = body["messages"][0]["content"]
        seen.append(system[:40])
        if "ranked differential" in system:
            entry = [{"number": 1, "standing": "same"}]
            return json.dumps({"reason": "", "candidates": entry, "total": 1})
        if "established one" in system:
            return json.dumps({"reason": "", "grade": "same"})
        if "You are the laboratory" in system:
            return json.dumps({"exists": True, "test": "x", "result": "raised"})
        last = body["messages"][-1]["role"] == "user" and len(body["messages"]) > 2
        said = boxed("my own words") if last else lists(("my own words",), ("serum ferritin",))
        return written(said)

    with serving(answer) as server:
        outcome = step(server, simulator="endpoint:it")
    assert len(turns(outcome)) == 2
    assert isinstance(outcome, Kept)
    assert "serum ferritin: raised" in kept(outcome.case)[0][1][0].content
    assert len(seen) == 5


def test_a_model_that_fails_is_no_verdict() -> None:
    with serving(lambda body: fault(500)) as server, pytest.raises(RolloutError, match="500"):
        step(server, judge="exact")


def test_exact_needs_diseases_that_it_knows() -> None:
    source = Source("here", (CASE,), ())
    aids = Aids("it", VerifiedSettings(judge="exact"), source, lambda spec: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="judge=exact knows no disease"):
        asyncio.run(apply(CASE, aids))


def strong(body: dict[str, Any]) -> str:
    """A model that knows every third case, another third at its second draw, and the rest never."""
    told = body["messages"][1]["content"]
    (place,) = [k for k, case in enumerate(CASES) if case.presentation == told]
    truth = CASES[place].truth
    knows = place % 3 == 0 or (place % 3 == 1 and body["seed"] == 1)
    name = truth.diagnosis if knows else truth.differentials[0]
    return written(boxed(name)) if len(body["messages"]) > 2 else order(name)


def words(folder: Path) -> list[str]:
    write(CASES, folder / "cases.jsonl", items=WING.items, diagnoses=WING.diagnoses)
    given = "prepare verified-answers judge=exact n=2 --model endpoint:it --concurrency 2"
    return [*given.split(), "--cases", "cases.jsonl", "--out", "out.jsonl"]


def begin(folder: Path, given: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(SCRIPT), *given],
        cwd=folder,
        env=environment(folder / "cache"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.long
def test_killed_and_resumed_it_writes_what_it_would_have_written_and_that_trains(
    tmp_path: Path,
) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    with serving(gate := Gate(strong, 1000)) as server:
        for name in ("whole", "killed"):
            configured(tmp_path / name, server, seed=True)
        process = begin(tmp_path / "whole", words(tmp_path / "whole"))
        said, errors = process.communicate(timeout=HANG)
        assert process.returncode == 0, errors
        killed = tmp_path / "killed"
        given = words(killed)
        gate.free = 7
        process = begin(killed, given)
        journal = killed / "out.journal"
        until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        gate.drop()
        gate.allow(1000)
        assert begin(killed, given).wait(HANG) == 0
    assert (killed / "out.jsonl").read_bytes() == (tmp_path / "whole/out.jsonl").read_bytes()
    report = json.loads((killed / "out.report.json").read_text())
    assert (report["kept"], report["complete"]) == (8, True)
    ((reason, dropped),) = report["dropped"].items()
    assert reason == "no answer to the first turn is right; commonest: its list lacks the truth"
    assert dropped["count"] == 4
    assert "no answer to the first" in said
    trained(tmp_path / "whole" / "out.jsonl", tmp_path / "run")


def trained(file: Path, out: Path) -> None:
    """A tiny policy learns the kept turns: they become more probable."""
    run = workup.train(
        "verified-sft",
        cases=f"jsonl:{file}",
        out=out,
        quiet=True,
        warm_start=False,
        tiny={"width": 16, "heads": 2, "layers": 1},
        tuning={"epochs": 3, "batch": 2, "lr": 1e-2},
        max_tokens=8,
        evaluation={"cases": 1, "anchors": False, "untrained": False},
    )
    losses = [line["loss"] for line in run.metrics() if "loss" in line]
    assert len(losses) >= 6
    assert losses[-1] < 0.8 * losses[0]


def test_all_turns_are_imitated_and_results_are_not() -> None:
    outcome, _ = answered([[order(TRUTH)], [written(boxed(TRUTH))]])
    assert isinstance(outcome, Kept)
    source = replace(SOURCE, train=(outcome.case,))  # type: ignore[type-var]
    world = EvidenceSeeking(SOURCE, World(max_turns=2))
    demonstration = verified(source, world, 0, 0)
    assert demonstration.opening == world.open(CASE)
    policy = LocalPolicy(*build(SOURCE, world.phrases, TinySettings(), 0))
    tree = token_tree(demonstration, policy)
    own = sum(len(policy.encode(text)) for text, _ in demonstration.exchanges)
    assert sum(tree.labelled) == own
    assert len(tree.trunk) > own
    with pytest.raises(UserError, match="has no verified answers"):
        verified(SOURCE, world, 0, 0)
    broken = replace(CASE, truth=replace(CASE.truth, extra={KEPT: [{"said": "x"}]}))
    with pytest.raises(UserError, match="is not what `workup prepare verified-answers` writes"):
        kept(broken)
