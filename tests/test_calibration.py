"""Probabilities and what they are worth: scikit-learn, sums written out, plain forward passes."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving import serving
from sklearn.metrics import brier_score_loss, log_loss

from workup.cases import open_source
from workup.cli import api
from workup.core.episode import Completion
from workup.core.errors import UserError, WorkupError
from workup.core.ports import Act, Sampling
from workup.doctors.beliefs import (
    Believing,
    DrawnBelief,
    ExactBelief,
    ScoredBelief,
    StatedBelief,
)
from workup.doctors.hybrid import TranscriptDiagnoser
from workup.environments.base.anchors import GreedyDoctor
from workup.environments.consultation import Consultation
from workup.metrics.calibration import BINS, by_chance, gaps, scores
from workup.models.local import LocalPolicy
from workup.models.scorer import LocalScorer
from workup.models.tiny import TinySettings, build
from workup.report import compare, figures
from workup.rl.rollout import Play, TokenDoctor, ToPlay, rollout
from workup.roles.judges.exact import ExactJudge
from workup.runs import Run

SOURCE = open_source("clinic:xs", split=0)
WORLD = Consultation(SOURCE.items, SOURCE.diagnoses, max_turns=4)
NAMES = SOURCE.diagnoses


# --- Brier and log score ---


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=4, max_size=4), min_size=2, max_size=6))
def test_scores_are_those_of_scikit_learn(rows: list[list[float]]) -> None:
    table = np.array(rows) / np.array(rows).sum(1, keepdims=True)
    truths = [place % 4 for place in range(len(rows))]
    found = [scores(row, truth) for row, truth in zip(table.tolist(), truths, strict=True)]

    def mean(name: str) -> float:
        return float(np.mean([each[name] for each in found]))

    labels = [0, 1, 2, 3]
    whole = brier_score_loss(truths, table, labels=labels, scale_by_half=False)
    assert mean("brier") == pytest.approx(whole)
    assert mean("log_score") == pytest.approx(log_loss(truths, table, labels=labels))
    assert [each["top_probability"] for each in found] == pytest.approx(table.max(1).tolist())


def test_what_is_given_to_no_listed_disease_counts_as_one_more() -> None:
    found = scores([0.5, 0.2], 1)
    assert found["brier"] == pytest.approx(0.5**2 + 0.8**2 + 0.3**2)
    assert found["surest_right"] == 0
    unlisted = scores([0.5, 0.5], None)
    assert unlisted["brier"] == pytest.approx(0.25 + 0.25 + 1)
    assert unlisted["log_score"] == pytest.approx(-math.log(1e-6))
    assert set(scores(None, 0).values()) == {None}


def test_what_is_believed_of_no_listed_disease_is_the_confidence_and_wrong() -> None:
    """A doctor that says 90 % of a name off the list is as sure as one that says it of a listed."""
    found = scores([0.05, 0.05], 0)
    assert found["top_probability"] == pytest.approx(0.9)
    assert found["surest_right"] == 0
    listed = scores([0.9, 0.05], 0)
    assert (listed["top_probability"], listed["surest_right"]) == (0.9, 1)
    for truth in (0, 1, 2):  # whichever stands first in the list
        assert scores([0.4, 0.4, 0.2], truth)["surest_right"] == (0 if truth == 2 else 0.5)


@pytest.mark.parametrize("wrong", [[0.9, 0.9], [-0.1, 0.5], [math.nan, 0.5]])
def test_what_is_no_probability_is_refused(wrong: list[float]) -> None:
    with pytest.raises(WorkupError, match="no probabilities"):
        scores(wrong, 0)


# --- expected calibration error ---


def drawn(
    n: int, shift: float, seed: int
) -> tuple[list[float | None], list[float | None], list[int]]:
    """Confidences of a doctor that is right less often than it thinks, by `shift`."""
    rng = np.random.default_rng(seed)
    sure = rng.beta(4, 1.5, n)
    right = (rng.random(n) < np.clip(sure - shift, 0, 1)).astype(float)
    return sure.tolist(), right.tolist(), list(range(n))


def plain(sure: Any, right: Any) -> float:
    """ECE as it is printed, bin by bin."""
    total = 0.0
    for number in range(BINS):
        inside = [
            (r, c) for c, r in zip(sure, right, strict=True) if min(int(c * BINS), 9) == number
        ]
        total += abs(sum(r for r, _ in inside) - sum(c for _, c in inside))
    return total / len(sure)


def test_it_is_the_printed_sum_less_what_chance_adds() -> None:
    """One bin with three cases, right once; the bias is that of a normal, by its integral."""
    sure, right = [0.81, 0.85, 0.89], [1.0, 0.0, 0.0]
    s = sum(right) - sum(sure)
    own = np.array(right) - np.array(sure)
    v = max(3 * float(np.var(own, ddof=1)), sum(c * (1 - c) for c in sure))
    x = np.linspace(s - 12 * math.sqrt(v), s + 12 * math.sqrt(v), 400_001)
    density = np.exp(-((x - s) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v)
    bias = float(np.trapezoid(np.abs(x) * density, x)) - abs(s)
    found = gaps(sure, right, ["a", "b", "c"])
    assert np.mean([v for v in found if v is not None]) == pytest.approx((abs(s) - bias) / 3)
    assert plain(sure, right) == pytest.approx(abs(s) / 3)


def test_the_bias_goes_where_the_gap_is_clear_and_shrinks_where_there_is_none() -> None:
    means = {}
    for shift in (0.0, 0.1):
        both = []
        for seed in range(60):
            sure, right, cases = drawn(400, shift, seed)
            both.append((plain(sure, right), np.mean(gaps(sure, right, cases))))
        means[shift] = np.mean(both, axis=0)
    printed, ours = means[0.0]
    assert printed > 0.04
    assert ours < 0.65 * printed
    assert means[0.1][1] == pytest.approx(0.1, abs=0.01)


def test_chance_is_exceeded_by_a_calibrated_doctor_once_in_twenty_times() -> None:
    over = 0
    for seed in range(120):
        sure, right, cases = drawn(150, 0.0, seed)
        known = [c for c in sure if c is not None]
        over += np.mean(gaps(sure, right, cases)) > by_chance([(known, cases)], seed, draws=60)
    assert 2 <= over <= 14, "of 120, with the binomial's spread"


def test_episodes_of_one_case_vary_together_and_undefined_ones_are_left_out() -> None:
    """Two cases of two equal episodes tell as little as two episodes."""
    sure, right = [0.55, 0.55, 0.55, 0.55, None], [1.0, 1.0, 0.0, 0.0, 1.0]
    apart, together = gaps(sure, right, "abcde"), gaps(sure, right, "aabbc")
    assert apart[4] is together[4] is None
    printed = abs(2 - 4 * 0.55) / 4
    ours = [np.mean([v for v in each if v is not None]) for each in (together, apart)]
    assert ours[0] < ours[1] < printed
    assert gaps([None], [None], ["a"]) == [None]


# --- where probabilities come from ---


def episode(doctor: Any, index: int = 0, play: Play | None = None) -> Any:
    case = SOURCE.test[index]
    return asyncio.run(rollout(ToPlay(case, index), WORLD, doctor, play or Play(max_tokens=6)))


def after(belief: Any, case: Any, *pasts: Any) -> Any:
    return asyncio.run(_after(belief, case, pasts))


async def _after(belief: Any, case: Any, pasts: Any) -> Any:
    return await belief.after(case, pasts)


def test_an_anchor_believes_its_posterior_which_is_calibrated() -> None:
    knowledge = SOURCE.knowledge
    assert knowledge is not None
    doctor = GreedyDoctor(knowledge, SOURCE.items, 4, WORLD.write, WORLD.known)
    belief = ExactBelief(doctor)
    found, expected = [], []
    for index in range(250):
        played = episode(doctor, index)
        (last,) = after(belief, played.case, played.gathered)
        assert last == pytest.approx(
            knowledge.posterior(doctor.evidence(played.case, played.turns))
        )
        truth = NAMES.index(played.case.truth.diagnosis)
        found.append(scores(last, truth)["brier"])
        # By its own probabilities: Σ_y p(y) Brier(y) = 1 − Σ p².
        expected.append(1 - sum(p**2 for p in last))
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=3 * np.std(found) / 250**0.5)


@pytest.fixture(scope="module")
def weights() -> Any:
    torch.set_num_threads(1)
    model, tokenizer = build(SOURCE, WORLD.lessons.phrases, TinySettings(width=32, layers=1), 0)
    return LocalPolicy(model.eval(), tokenizer)


class Reciting(TokenDoctor):
    """Asks for the items in their order, in tokens."""

    async def act(self, case: Any, opening: Any, past: Any, sampling: Sampling) -> Act:
        made = await super().act(case, opening, past, replace(sampling, max_tokens=1))
        text = WORLD.write(SOURCE.items[len(past)].kind, SOURCE.items[len(past)].name)
        ids = self.policy.encode(text)
        return Act(made.prompt_tokens, Completion(text, ids, (0.0,) * len(ids)))


def test_a_policy_believes_its_own_probabilities_of_naming_each_disease(weights: Any) -> None:
    """Against plain forward passes over the transcript as it was sampled."""
    played = episode(Reciting(weights))
    assert len(played.turns) == WORLD.max_turns
    pasts = [played.turns[:k] for k in range(len(played.turns))]
    found = after(ScoredBelief(weights, LocalScorer(weights), WORLD, NAMES), played.case, *pasts)
    for turn, k, shares in zip(played.turns, range(9), found, strict=False):
        before = [t for x in played.turns[:k] for t in (*x.prompt_tokens, *x.completion.tokens)]
        ids = [*before, *turn.prompt_tokens, *weights.encode("<diagnose>")]
        totals = []
        for name in NAMES:
            answer = weights.encode(f"{name}</diagnose>")
            with torch.no_grad():
                logits = weights.model(input_ids=torch.tensor([[*ids, *answer]])).logits[0]
            chances = logits.double().log_softmax(-1)
            totals.append(sum(float(chances[len(ids) + i - 1, t]) for i, t in enumerate(answer)))
        expected = np.exp(totals) / np.exp(totals).sum()
        assert shares == pytest.approx(expected.tolist(), abs=1e-5)
        assert sum(shares) == pytest.approx(1)


class Saying:
    """A doctor that says what it is told to, draw by draw."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), list[str]()

    async def act(self, case: Any, opening: Any, past: Any, sampling: Sampling) -> Act:
        self.asked.append(opening[-1].content)
        return Act((), Completion(self.texts[(len(self.asked) - 1) % len(self.texts)]))


def concluding(doctor: Saying) -> TranscriptDiagnoser:
    return TranscriptDiagnoser(doctor, WORLD)


def test_drawn_probabilities_are_counts_with_one_draw_spread_over_the_list() -> None:
    first, second = NAMES[:2]
    texts = [f"<diagnose>{n}</diagnose>" for n in (first, first, second, "Kuru")] + ["I wonder"]
    doctor = Saying(*texts)
    belief = DrawnBelief(concluding(doctor), ExactJudge(), NAMES, draws=5)
    (found,) = after(belief, SOURCE.test[0], ())
    d = len(NAMES)
    expected = {first: (2 + 1 / d) / 5, second: (1 + 1 / d) / 5}
    assert dict(zip(NAMES, found, strict=True)) == pytest.approx(
        {name: expected.get(name, 1 / d / 5) for name in NAMES}
    )
    assert 1 - sum(found) == pytest.approx(1 / 5), "what named no listed disease"
    assert after(DrawnBelief(concluding(Saying("?")), ExactJudge(), NAMES), SOURCE.test[0], ()) == [
        None
    ]


def test_another_name_of_the_truth_counts_as_the_truth() -> None:
    case = next(case for case in SOURCE.test[:50] if case.truth.codes)
    doctor = Saying(f"<diagnose>{case.truth.codes[0]}</diagnose>")
    (found,) = after(DrawnBelief(concluding(doctor), ExactJudge(), NAMES, draws=3), case, ())
    assert NAMES[int(np.argmax(found))] == case.truth.diagnosis


@pytest.mark.parametrize(
    ("said", "sure"),
    [
        ("<confidence>80</confidence> <diagnose>{}</diagnose>", 0.8),
        ("<confidence> 62.5 % </confidence><diagnose>{}</diagnose>", 0.625),
        ("<confidence>800</confidence> <diagnose>{}</diagnose>", None),
        ("<diagnose>{}</diagnose>", None),
        ("<confidence>80</confidence>", None),
    ],
)
def test_a_stated_confidence_is_read_or_there_is_none(said: str, sure: float | None) -> None:
    doctor = Saying(said.format(NAMES[2]))
    (found,) = after(StatedBelief(concluding(doctor), ExactJudge(), NAMES, 0), SOURCE.test[0], ())
    assert "<confidence>" in doctor.asked[0]
    if sure is None:
        assert found is None
    else:
        assert found[2] == pytest.approx(sure)
        assert sum(found) == pytest.approx(1)
        assert len(set(found)) == 2


def test_a_confidence_in_an_endless_text_is_looked_for_in_linear_time() -> None:
    belief = StatedBelief(concluding(Saying("<confidence>" * 200_000)), ExactJudge(), NAMES, 0)
    assert after(belief, SOURCE.test[0], ()) == [None]


def test_who_cannot_give_probabilities_is_told_so_in_one_line() -> None:
    believing = Believing("scored", SOURCE, WORLD, ExactJudge())
    with pytest.raises(UserError, match="probabilities=drawn"):
        believing.of(Saying(""))
    open_answers = open_source("clinic:xs", split=0)
    with pytest.raises(UserError, match="no closed list"):
        Believing("drawn", type(open_answers)("jsonl:x", (), ()), WORLD, ExactJudge())


# --- in an evaluation, its report and its comparison ---


def doctor(body: dict[str, Any]) -> str:
    """Asks nothing; half of the time it is sure of the first disease."""
    sick = NAMES[len(str(body["messages"][1]["content"])) % 3]
    return f"<confidence>90</confidence><diagnose>{sick}</diagnose>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, serving(doctor) as server:
        patch.setenv("WORKUP_CACHE", str(folder / "cache"))
        made = []
        for how in ("stated", "drawn"):
            made.append(
                api.evaluate(
                    "endpoint:doc",
                    cases="clinic:xs",
                    out=folder / how,
                    quiet=True,
                    endpoints={"doc": {"base_url": server.url, "model": "m"}},
                    evaluation={"cases": 24, "probabilities": how, "draws": 2},
                )
            )
    return made


@pytest.mark.long
def test_the_summary_says_how_sure_doctors_are_and_where_that_comes_from(runs: list[Run]) -> None:
    entries = runs[0].summary["doctors"]
    assert entries["doc"]["probabilities"] == "stated"
    assert entries["greedy information"]["probabilities"] == "exact"
    assert entries["doc"]["top_probability"]["mean"] == pytest.approx(0.9)
    right = entries["doc"]["surest_right"]["mean"]
    assert right == entries["doc"]["accuracy"]["mean"]
    found = entries["doc"]["ece"]
    assert found["mean"] == pytest.approx(0.9 - right, abs=1e-6), "one bin, and a clear gap"
    assert found["low"] < found["mean"] < found["high"]
    assert 0 < entries["doc"]["ece_by_chance"] < found["mean"]


@pytest.mark.long
def test_pages_have_the_plot_and_the_table_and_compare_the_difference(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = runs[0].report.read_text()
    assert "Calibration" in page
    assert "as the doctor says" in page
    assert page.count('id="meanings"') == 1
    found = figures(runs)
    lead = found["groups"][runs[1].name]["lead"]
    means = [found["groups"][run.name]["brier"]["mean"] for run in runs]
    assert lead["brier"]["mean"] == pytest.approx(means[1] - means[0])
    assert set(lead) >= {"log_score", "ece"}
    compare(runs, tmp_path / "both.html")
    assert "drawn" in capsys.readouterr().out
    both = (tmp_path / "both.html").read_text()
    assert re.search(r"Calibration.*Brier score", both, re.DOTALL)


def test_without_the_setting_nothing_is_added(tmp_path: Path) -> None:
    run = api.evaluate(
        "random doctor",
        cases="clinic:xs",
        out=tmp_path / "run",
        quiet=True,
        evaluation={"cases": 4},
    )
    (entry,) = (run.summary["doctors"][each] for each in ("random doctor",))
    assert not {"brier", "ece", "probabilities", "ece_by_chance"} & set(entry)
    assert "Calibration" not in run.report.read_text()
