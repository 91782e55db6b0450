"""Studies: their arithmetic and their commands.

The arithmetic is compared with hand-made figures and other implementations; commands run against a
real endpoint.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import krippendorff as package
import numpy as np
import pytest
from handmade import CASES, SOURCE, Script, case, fact, play
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from serving import Server, fault, serving
from studying import (
    CLINIC,
    ENCOUNTER,
    Additive,
    done,
    here,
    numbers_of,
    page_of,
    refused,
    tiny,
    typed,
    untrained,
)

from workup.cases import jsonl, open_source
from workup.cli import api
from workup.core.case import Case, Fact, Truth
from workup.core.errors import RolloutError
from workup.core.statistics import Estimate
from workup.environments.base.outset import partial
from workup.methods.promed.question_gains import Weighing
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.runs import Outcome, Record, Run
from workup.studies import cost, information, noise, questions, simulators
from workup.studies.base import trivia
from workup.studies.base.agreement import krippendorff
from workup.studies.base.arms import METRICS, ArmFigures
from workup.studies.base.result import plain, signed

__all__ = ["here", "tiny"]  # fixtures

POOL = [CLINIC.test[k] for k in range(60)]
MEDIQ = Path(__file__).parents[2] / "shared/data/mediq_dev.jsonl"
NOTHING = math.nan


# --- agreement ---

# Four observers, twelve units (Krippendorff 2011, section E), with the values that the paper
# prints.
OBSERVED: tuple[tuple[int | None, ...], ...] = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3),
    (None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None),
)


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_alpha_of_the_published_example(level: Any, alpha: float) -> None:
    units = list(zip(*OBSERVED, strict=True))
    found = krippendorff(units, range(12), level)
    assert found.mean == pytest.approx(alpha, abs=5e-4)
    assert (found.n, found.missing) == (11, 1)
    assert found.low < found.mean < found.high <= 1


def by_definition(units: Sequence[Sequence[int | None]]) -> float:
    """Interval α from all pairs of marks, within units and at large."""
    kept = [[mark for mark in unit if mark is not None] for unit in units]
    kept = [unit for unit in kept if len(unit) > 1]
    everyone = [mark for unit in kept for mark in unit]
    n = len(everyone)
    within = (
        sum(sum((a - b) ** 2 for a in unit for b in unit) / (len(unit) - 1) for unit in kept) / n
        if n
        else NOTHING
    )
    at_large = (
        sum((a - b) ** 2 for a in everyone for b in everyone) / (n * (n - 1)) if n else NOTHING
    )
    return 1 - within / at_large if at_large else NOTHING


MARKS = st.lists(
    st.lists(st.one_of(st.none(), st.integers(1, 5)), min_size=3, max_size=3),
    min_size=1,
    max_size=8,
)


@given(MARKS)
def test_alpha_is_what_its_definition_says(units: list[list[int | None]]) -> None:
    assert krippendorff(units, range(len(units)), "interval").mean == pytest.approx(
        by_definition(units), nan_ok=True
    )


@given(MARKS)
def test_alpha_agrees_with_the_package(units: list[list[int | None]]) -> None:
    ours = krippendorff(units, range(len(units)), "ordinal").mean
    values = np.array(
        [[np.nan if mark is None else mark for mark in unit] for unit in units], dtype=float
    ).T
    if math.isnan(ours):
        return  # the package raises, or calls it 1, where nothing can be told from chance
    theirs = package.alpha(reliability_data=values, level_of_measurement="ordinal")
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_equal_marks_agree_and_tell_nothing() -> None:
    assert math.isnan(krippendorff([(3, 3), (3, 3)], "ab").mean)
    all_equal = krippendorff([(1, 1), (5, 5)], "ab")
    assert all_equal.mean == 1
    assert math.isnan(all_equal.low)  # without variance there is no interval
    assert math.isnan(all_equal.high)


# --- how figures are written ---


def test_figures_in_words() -> None:
    assert plain(Estimate(0.6249, 0.5, 0.7, 9)) == "0.62 [0.50, 0.70]"
    assert plain(Estimate(2.0, NOTHING, NOTHING, 1), 1) == "2.0"
    assert plain(Estimate(NOTHING, NOTHING, NOTHING, 0)) == "–"
    assert signed(Estimate(0.1, 0.01, 0.2, 9)) == "+0.10 [0.01, 0.20] *"
    assert signed(Estimate(-0.001, -0.1, 0.1, 9)) == "0.00 [−0.10, 0.10]"


# --- PM-17 and PM-18: arithmetic ---


def outcome(case: str, correct: bool | None, asked: int) -> Outcome:
    return Outcome(
        case,
        "Flu",
        "",
        0,
        "failed" if correct is None else "diagnosed",
        correct,
        asked,
        None,
        {},
        {},
    )


def test_shares_are_compared_case_by_case() -> None:
    played = {
        ("a", "0"): [outcome("1", False, 9), outcome("2", False, 5), outcome("3", True, 5)],
        ("a", "1"): [outcome("1", True, 1), outcome("2", None, 0), outcome("3", True, 2)],
        ("b", "0"): [outcome("1", True, 4), outcome("2", True, 4), outcome("3", True, 4)],
        ("b", "1"): [outcome("1", True, 4), outcome("2", True, 4), outcome("3", True, 4)],
    }
    found = information.Information.of("x", 0, played)
    a0, a1, b0, b1 = found.arms
    assert (a0.level["accuracy"].mean, a0.level["questions"].mean) == (
        pytest.approx(1 / 3),
        pytest.approx(19 / 3),
    )
    # Case 2 failed there: the differences are over 1 and 3.
    assert (a1.change["accuracy"].mean, a1.change["questions"].mean, a1.change["accuracy"].n) == (
        0.5,
        -5.5,
        2,
    )
    assert (b0.lead["questions"].mean, b1.lead["accuracy"].mean) == (pytest.approx(-7 / 3), 0)
    assert found.notes() == ["a, 100% told: 1 episodes failed and are left out"]


def test_patients_are_compared_with_the_default_one() -> None:
    played = {
        ("a", "embedded"): [outcome("1", True, 2), outcome("2", False, 3)],
        ("a", "default"): [outcome("1", True, 4), outcome("2", True, 3)],
    }
    embedded, default = simulators.compare("x", 0, {}, played).arms
    assert (embedded.change["accuracy"].mean, embedded.change["questions"].mean) == (-0.5, -1)
    assert default.change["accuracy"].mean == 0


# --- the commands ---


class Everyone:
    """Doctor, patient, checker and judge, told apart by their prompts; counts who was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, body: dict[str, Any]) -> Any:
        rules, said = body["messages"][0]["content"], body["messages"][-1]["content"]
        role, answer = self.answer(body, rules, said)
        self.seen.append((role, "\n".join(message["content"] for message in body["messages"])))
        return answer

    def answer(self, body: dict[str, Any], rules: str, said: str) -> tuple[str, Any]:
        if "You are a patient" in rules:
            return "patient", json.dumps({"answer": "It is so.", "facts": []})
        if "You check the answers" in rules:
            return "checker", json.dumps(
                {"reason": "", "relevant": True, "supported": True, "stated": []}
            )
        if "You rate the questions" in rules:
            if body["model"] == "broken":
                return "judge", fault(400)
            mark = random.Random(said + body["model"]).randint(1, 5)
            marks = dict.fromkeys(questions.SCALES, mark)
            return "judge", json.dumps({"reason": "", **marks})
        return "doctor", self.doctor(body["messages"])

    def doctor(self, messages: Sequence[dict[str, str]]) -> str:
        """Asks as many questions as there are facts that it was not told of four."""
        told = len(messages[1]["content"].splitlines()) - 1
        asked = sum(message["role"] == "assistant" for message in messages)
        if asked < 4 - told:
            return f"<think>secret</think>question: {CLINIC.items[asked].question}"
        return f"answer: [answer: {CLINIC.diagnoses[0]}]"

    def count(self, role: str) -> int:
        return sum(each == role for each, _ in self.seen)


@pytest.fixture
def everyone() -> Everyone:
    return Everyone()


def endpoints(folder: Path, url: str) -> None:
    names = ("doc", "pat", "chk", "one", "two", "broken")
    lines = [f"  {name}: {{base_url: '{url}', model: {name}}}\n" for name in names]
    (folder / "workup.yaml").write_text("endpoints:\n" + "".join(lines))


@pytest.fixture
def server(everyone: Everyone, tmp_path: Path) -> Iterator[Server]:
    with serving(everyone) as running:
        endpoints(tmp_path, running.url)
        yield running


SWEEP = "study information endpoint:doc 'random doctor' --cases clinic:xs n=6 shares=0,1 --out s"


@dataclass
class Swept:
    """A sweep that several tests look at, and who played in it; `output` is what it printed."""

    folder: Path
    everyone: Everyone
    output: str = ""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    folder, everyone = tmp_path_factory.mktemp("sweep"), Everyone()
    with serving(everyone) as running, pytest.MonkeyPatch.context() as patch:
        endpoints(folder, running.url)
        patch.chdir(folder)
        patch.setenv("WORKUP_CACHE", str(folder / "cache"))
        patch.setenv("COLUMNS", "160")
        yield Swept(folder, everyone, done(SWEEP))


@pytest.fixture
def swept(shared: Swept, monkeypatch: pytest.MonkeyPatch) -> Swept:
    monkeypatch.chdir(shared.folder)
    monkeypatch.setenv("WORKUP_CACHE", str(shared.folder / "cache"))
    return shared


def without_origin(found: dict[str, Any]) -> dict[str, Any]:
    """What a study found, without when and where."""
    return {key: value for key, value in found.items() if key != "made"}


@pytest.mark.long
def test_the_sweep_of_information(swept: Swept) -> None:
    everyone = swept.everyone
    assert "By share of the facts told" in swept.output
    found, _ = page_of("s", "information")
    none, all_told = (arm for arm in found["arms"] if arm["policy"] == "doc")
    for arm in (none, all_told):
        share = float(arm["condition"])
        cases = [partial(CLINIC.test[k * len(CLINIC.test) // 6], share, 0) for k in range(6)]
        asked = [max(0, 4 - len(case.given)) for case in cases]
        assert arm["level"]["questions"]["mean"] == np.mean(asked)
        assert arm["level"]["accuracy"]["mean"] == np.mean(
            [case.truth.diagnosis == CLINIC.diagnoses[0] for case in cases]
        )
    assert none["level"]["questions"]["mean"] == 4
    assert all_told["change"]["questions"]["mean"] < 0
    # The same again goes on where it was, and asks nobody.
    asked_so_far = len(everyone.seen)
    done(SWEEP)
    assert len(everyone.seen) == asked_so_far
    assert without_origin(page_of("s", "information")[0]) == without_origin(found)
    # What was changed in an arm, one that its results do not follow from, makes it no other.
    arm = Path("s/runs/doc-0")
    api.resume(arm, concurrency=3, endpoints={"doc": {"timeout": 99}})
    api.resume(arm, concurrency=2)
    done(SWEEP)
    assert len(everyone.seen) == asked_so_far
    assert without_origin(page_of("s", "information")[0]) == without_origin(found)
    changed = Run.open(arm).config
    assert (changed["concurrency"], changed["endpoints"]["doc"]["timeout"]) == (2, 99)
    assert "other settings" in refused(f"{SWEEP} environment.max_turns=3")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_tables_of_a_study_are_whole_at_any_width(width: int) -> None:
    level = {name: Estimate(0.62, 0.55, 0.69, 100) for name in METRICS}
    gain = {name: Estimate(0.07, 0.01, 0.13, 100) for name in METRICS}
    policies = ("clinic-s-trained-for-long", "gpt")
    points = tuple(
        ArmFigures(policy, share, level, gain, gain)
        for policy in policies
        for share in ("0", "0.5", "1")
    )
    console = Console(file=StringIO(), width=width)
    information.Information("clinic:s", 0, "0", points).show(console)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    figures = len(METRICS)
    level_cells = [plain(level[name], digits) for name, digits in METRICS.items()]
    gain_cells = [signed(gain[name], digits) for name, digits in METRICS.items()]
    for cell in set(level_cells):
        assert text.count(cell) >= 6 * level_cells.count(cell), "each figure is in one piece"
    # Four changes to the smallest share, and three differences to the first policy.
    assert sum(text.count(cell) for cell in set(gain_cells)) == (4 + 3) * figures
    rows = [line for line in lines if "0.62 [" in line or "+0.07 [" in line]
    assert all(re.search(r"\b(0|50|100)%", row) for row in rows), "every row says its share"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("endpoint:doc shares=1,0", "shares=1,0: ascending numbers"),
        ("endpoint:doc shares=0,x", "setting 'shares.1'"),
        ("environment.max_turns=3", "name a policy"),
        ("endpoint:doc environment=consultation shares=0,1", "nothing is put to the doctor"),
        ("endpoint:doc share=0,1", "no setting 'share'. Did you mean 'shares'?"),
        ("endpoint:doc max_turns=3", "write environment.max_turns="),
        ("endpoint:doc shares=.5 conclude=bayes", "conclude adds a row"),
        ("endpoint:doc shares=.5 stopping.alpha=.3", "stopping.alpha adds a row"),
    ],
)
def test_what_cannot_be_swept_is_said(server: Server, words: str, said: str) -> None:
    assert said in refused(f"study information --cases clinic:xs {words}")


@pytest.mark.long
def test_the_patients_that_roles_are_played_for(
    server: Server, everyone: Everyone, tmp_path: Path
) -> None:
    line = "study simulators endpoint:doc --cases clinic:xs n=2 --out who"
    assert "roles.patient" in refused(line)
    line += " roles.patient=endpoint:pat"
    assert "no patient to replace" in refused(f"{line} environment=consultation")
    assert not everyone.seen
    done(f"{line} roles.checker=endpoint:chk patients=endpoint:one")
    found, _ = page_of("who", "simulators")
    names = [arm["condition"] for arm in found["arms"]]
    assert names == ["embedded", "default", "checked", "persona", "default, endpoint:one"]
    # The patient knows nothing, and the checker passes it; every arm but the first asks a patient,
    # one of them a checker.
    arms = {
        name: Run.open(tmp_path / "who/runs" / f"doc-{name}")
        for name in ("embedded", "default", "checked", "persona")
    }
    calls = {
        name: {row["role"]: row["calls"] for row in run.summary["calls"]}
        for name, run in arms.items()
    }
    assert "patient" not in calls["embedded"]
    assert (
        calls["default"]["patient"]
        == calls["persona"]["patient"]
        == calls["checked"]["checker"]
        > 0
    )
    assert "checker" not in calls["default"]
    assert any("The way you speak" in prompt for role, prompt in everyone.seen if role == "patient")
    assert found["models"] == {"patient": "endpoint:pat", "checker": "endpoint:chk"}


# --- PM-19: the quality of questions ---


QUESTIONS = "study questions s/runs/doc-0"


def test_the_quality_of_questions(swept: Swept) -> None:
    before = swept.everyone.count("judge")
    output = done(
        f"{QUESTIONS} s/runs/random-doctor-0 judges=endpoint:one,endpoint:two n=5 --out q"
    )
    found, _ = page_of("q", "questions")
    assert "Krippendorff" in output
    rated, runs = found["rated"], ("doc-0", "random-doctor-0")
    assert [sum(each["run"] == run for each in rated) for run in runs] == [5, 5]
    assert len({each["case"] for each in rated}) == 5
    marks = [
        np.mean([each["marks"][judge][0] for judge in ("one", "two")])
        for each in rated
        if each["run"] == "doc-0"
    ]
    levels = {(row["run"], row["scale"]): row["level"] for row in found["levels"]}
    assert levels["doc-0", "helpfulness"]["mean"] == pytest.approx(np.mean(marks))
    units = [tuple(each["marks"][judge][0] for judge in ("one", "two")) for each in rated]
    alpha = krippendorff(units, range(len(units))).mean
    assert found["agreement"]["flow"]["mean"] == pytest.approx(alpha)
    prompts = [prompt for role, prompt in swept.everyone.seen if role == "judge"][before:]
    assert len(prompts) == 20
    # Blind: no run, no thoughts, no markup, and not in the order of the runs.
    telling = ("doc-0", "random", "secret", "question:", "<ask>", "the doctor's answer")
    assert not [word for prompt in prompts for word in telling if word in prompt]


def test_judges_may_be_told_the_verdict_and_one_that_fails_is_missing(swept: Swept) -> None:
    before = swept.everyone.count("judge")
    output = done(f"{QUESTIONS} judges=endpoint:one,endpoint:broken outcome=true --out told")
    flow = next(row for row in numbers_of("told", "questions")["levels"] if row["scale"] == "flow")
    assert flow["level"] == {
        **dict.fromkeys(("mean", "low", "high", "sd")),
        **{"n": 0, "missing": 6},
    }
    assert "no usable" in output or "6 ×" in output
    prompts = [prompt for role, prompt in swept.everyone.seen if role == "judge"][before:]
    assert len(prompts) >= 12
    assert all("the doctor's answer" in prompt for prompt in prompts)
    assert "no run folder" in refused("study questions s judges=endpoint:one")
    assert "endpoint gives no" in refused(f"{QUESTIONS} judges=endpoint:one scorer=endpoint:doc")
    assert "say judges=…" in refused(QUESTIONS)


@pytest.mark.long
def test_restricted_cases_stay_where_they_are(
    server: Server, everyone: Everyone, tmp_path: Path
) -> None:
    about = {"items": CLINIC.items, "diagnoses": CLINIC.diagnoses, "restricted": True}
    jsonl.write(POOL, tmp_path / "secret.jsonl", **about)
    line = "study information endpoint:doc --cases jsonl:secret.jsonl n=2 shares=0 --out s"
    assert "trusted" in refused(line)
    trust(tmp_path, "doc")
    done(line)
    run = tmp_path / "s/runs/doc-0"
    assert run.stat().st_mode & 0o077 == 0
    assert "trusted" in refused(f"{QUESTIONS} judges=endpoint:one --out q")
    assert everyone.count("judge") == 0
    trust(tmp_path, "broken")
    lost = typed(f"{QUESTIONS} judges=endpoint:broken --out q")
    assert isinstance(lost.exception, RolloutError)
    assert str(lost.exception).startswith("no judge gave a mark: no marks from broken")
    trust(tmp_path, "one")
    output = done(f"{QUESTIONS} judges=endpoint:broken,endpoint:one --out q")
    assert "2 × no marks from broken" in output
    assert "2 conversations lack a judge's marks and are in no mean" in " ".join(output.split())
    page_of("q", "questions")
    page_of("s", "information")


def trust(folder: Path, name: str) -> None:
    file = folder / "workup.yaml"
    file.write_text(file.read_text().replace(f"model: {name}}}", f"model: {name}, trusted: true}}"))


def test_all_of_the_gain_is_had_by_who_asks_for_everything() -> None:
    case = CASES[0]
    asking = [
        f"question: {item.question}"
        for item in SOURCE.items
        if item.name in ("fever", "cough", "hobby")
    ]
    thorough = Record(
        "a", play(Script(*asking, "answer: [answer: Flu]"), ENCOUNTER, case), correct=True
    )
    hasty = Record("a", play(Script("answer: [answer: Flu]"), ENCOUNTER, case), correct=True)
    half = Record(
        "a", play(Script(asking[0], "answer: [answer: Flu]"), ENCOUNTER, case), correct=True
    )
    scorer = Additive({"Yes: fever.": math.log(2)})

    async def judged(records: dict[str, list[Record]]) -> questions.QuestionQuality:
        with serving(Everyone()) as server:
            judge = Endpoint(EndpointSettings(base_url=server.url, model="one"))
            return await questions.read(
                "x", records, {"one": judge}, questions.Reading(scorer=("s", scorer))
            )

    found = asyncio.run(judged({"thorough": [thorough], "half": [half], "hasty": [hasty]}))
    # φ = (ln 2, 0, 0): φ~ = (1/2, 1/4, 1/4).
    assert [each.gain for each in found.rated] == [pytest.approx(1), pytest.approx(0.5)]
    assert found.silent == {"thorough": 0, "half": 0, "hasty": 1}


# --- PM-20: noise ---


OWN = tuple(f"Own {k}." for k in range(4))
PATIENT = Case(
    "p",
    "A patient is ill.",
    Truth("Flu", facts=tuple(Fact(f"f{k}", f"i{k}", text) for k, text in enumerate(OWN))),
)


def ranked(scorer: Additive) -> noise.RankedFacts:
    settings = noise.Settings(cases="", kind="trivia", orders=64)
    weighing = Weighing(ENCOUNTER)
    foreign = noise.noise(PATIENT, list(CASES), weighing.of(PATIENT), settings)
    found = asyncio.run(noise.rank(PATIENT, foreign, weighing, scorer, settings))
    assert isinstance(found, noise.RankedFacts)
    return found


def test_facts_that_help_stand_before_those_that_do_not() -> None:
    found = ranked(Additive({text: 1.0 + k for k, text in enumerate(OWN)}))
    assert (found.facts, len(found.relevant)) == (8, 4)
    for ranking in noise.RANKINGS:
        assert [found.measured("hits", ranking, k) for k in noise.AT] == [1, 1, 1]
        assert [found.measured("precision", ranking, k) for k in noise.AT] == [1, 1, 0.4]
        assert sorted(found.values[ranking], reverse=True) == pytest.approx(
            [4, 3, 2, 1, 0, 0, 0, 0]
        )
    # Four of eight are relevant.
    assert [found.measured("hits", noise.CHANCE, k) for k in noise.AT] == [0.5, 0.5, 1]


def test_facts_that_help_together_are_missed_one_by_one() -> None:
    found = ranked(Additive({}, together=(OWN[0], OWN[2])))
    assert sorted(found.values[noise.LEAVE_ONE_OUT], reverse=True) == [3, 3, 0, 0, 0, 0, 0, 0]
    assert not any(found.values[noise.ADD_ONE_IN])
    # By symmetry each of the two has half: that is exact over antithetic pairs, in one of which
    # each comes last.
    assert sorted(found.values[noise.SHAPLEY], reverse=True) == pytest.approx(
        [1.5, 1.5, 0, 0, 0, 0, 0, 0]
    )
    assert found.measured("hits", noise.SHAPLEY, 1) == 1
    assert found.measured("hits", noise.ADD_ONE_IN, 1) == 0.5


def test_only_critical_facts_are_relevant_if_so_wished() -> None:
    weighed = replace(
        PATIENT.truth, facts=tuple(replace(f, weight=k) for k, f in enumerate(PATIENT.truth.facts))
    )
    game = Weighing(ENCOUNTER), Additive({})
    patient = replace(PATIENT, truth=weighed)
    found = asyncio.run(
        noise.rank(
            patient,
            noise.noise(patient, CASES, weighed.facts, noise.Settings(cases="")),
            *game,
            noise.Settings(cases="", least=2),
        )
    )
    assert isinstance(found, noise.RankedFacts)
    assert len(found.relevant) == 2
    assert (
        asyncio.run(noise.rank(case(9, "Flu"), [fact("x")], *game, noise.Settings(cases="")))
        == "no facts of its own"
    )


@given(st.integers(0, 99), st.integers(0, 20), st.floats(0.1, 3))
def test_noise_does_not_belong_to_the_case(index: int, seed: int, ratio: float) -> None:
    own = POOL[index % len(POOL)]
    settings = noise.Settings(cases="", ratio=ratio, seed=seed)
    added = noise.noise(own, POOL, own.truth.facts, settings)
    assert added == noise.noise(own, POOL, own.truth.facts, settings)
    assert len(added) <= max(1, round(ratio * len(own.truth.facts)))
    assert len({f.text for f in added}) == len({f.id for f in added}) == len(added) > 0
    for each in added:
        assert each.item not in {f.item for f in (*own.given, *own.truth.facts)}
        homes = {
            other.truth.diagnosis
            for other in POOL
            if each.text in {f.text for f in other.truth.facts}
        }
        assert homes - {own.truth.diagnosis}


def test_trivia_speak_the_language_of_the_case() -> None:
    settings = noise.Settings(cases="", kind="trivia")
    chinese = replace(PATIENT, presentation="患者腹痛。")
    assert {f.text for f in noise.noise(PATIENT, [], PATIENT.truth.facts, settings)} <= set(
        trivia.ENGLISH
    )
    assert {f.text for f in noise.noise(chinese, [], PATIENT.truth.facts, settings)} <= set(
        trivia.CHINESE
    )
    assert len(trivia.CHINESE) == len(trivia.ENGLISH)


@pytest.mark.long
def test_noise_by_the_policys_own_likelihood(tiny: Path, server: Server) -> None:
    how = "--cases clinic:xs n=5 orders=4 --out n"
    assert "Precision of K" in done(f"study noise {tiny} {how}")
    found, _ = page_of("n", "noise")
    assert len(found["ranked"]) == 5
    assert [row["ranking"] for row in found["rankings"]] == [*noise.RANKINGS, noise.CHANCE]
    for row in found["rankings"][:-1]:
        for measure in noise.MEASURES:
            assert 0 <= row["levels"][measure]["1"]["mean"] <= 1
    done(f"study noise {tiny} {how} kind=trivia facts=all least=1")
    assert numbers_of("n", "noise")["settings"]["facts"] == "all"
    done(f"study noise {tiny} {how} kind=trivia ratio=50")
    found, page = page_of("n", "noise")
    sizes = [(each["facts"], each["own"]) for each in found["ranked"]]
    assert all(every - own == len(trivia.ENGLISH) for every, own in sizes)
    whole, own = map(sum, zip(*sizes, strict=True))
    assert f"trivia, {whole / own - 1:.2g} for each own fact" in page
    assert "ratio" in refused(f"study noise {tiny} {how} ratio=0")
    assert "no log-probabilities" in refused(f"study noise endpoint:doc {how}")
    assert "no log-probabilities" in refused(f"study noise 'random doctor' {how}")
    assert "one at a time" in refused(f"study noise {tiny} 'random doctor' {how}")
    assert "'other' or 'trivia'" in refused(f"study noise {tiny} {how} kind=nonsense")


@pytest.mark.skipif(not MEDIQ.exists(), reason="mediQ's file is not here")
def test_real_cases_in_free_text(tmp_path: Path) -> None:
    untrained(tmp_path / "free", open_source(f"mediq:{MEDIQ}", split=0), context=4096)
    done(f"study noise free --cases mediq:{MEDIQ} n=2 orders=2 --out m")
    found = numbers_of("m", "noise")
    assert len(found["ranked"]) == 2
    # Half of the ranked facts are the case's own: each case has at least two of these.
    assert all(len(each["values"]["Shapley"]) >= 4 for each in found["ranked"])


# --- PM-21: cost ---


def timed(policy: str, case: str, epsilon: float, seconds: float) -> cost.Timed:
    return cost.Timed(policy, case, cost.CostCondition(epsilon), 3, seconds, 4, True, 10, 0.1)


def test_ratios_are_medians_over_the_same_cases() -> None:
    seconds = {0.1: (1, 2, 4), 0.01: (3, 4, 80)}
    all_of = tuple(
        timed("m", str(k), e, s) for e, own in seconds.items() for k, s in enumerate(own)
    )
    found = cost.Cost(
        "x",
        0,
        "CPU",
        {"m": 1_500_000},
        8,
        (*all_of, timed("m", "other", 0.01, 1e9)),
        {"too long": 1},
    )
    assert found.ratio(("m", cost.CostCondition(0.01)), ("m", cost.CostCondition(0.1))) == 3
    assert [condition.epsilon for condition in found.epsilons] == [0.1, 0.01]
    assert "1.50 M" in found.facts["Policies"]
    assert found.notes()[0] == "1 estimates left out: too long"


def test_what_fits_no_policy_has_dashes() -> None:
    """With several models and no estimate of the cases' own facts there is none to compare at."""
    small = cost.CostCondition(0.01, 2)
    rows = tuple(replace(timed("m", case, 0.01, 1.0), condition=small) for case in "ab")
    found = cost.Cost("x", 0, "CPU", {"m": 1, "n": 2}, 8, rows, {})
    sections = found.sections()
    assert [section.heading for section in sections] == ["Tolerance", "Number of facts"]
    (sheet,) = sections[1].sheets
    assert not any("nan" in str(cell) for row in sheet.rows for cell in row)


def test_the_cost_of_the_tiny_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "FAMILY", ((16, 1), (32, 2)))
    line = "study cost tiny --cases clinic:s n=2 sizes=2,12 orders=24 --out c"
    assert "Time against the size of the model" in done(line)
    found, page = page_of("c", "cost")
    assert "Size of the model" in page
    assert len(found["timed"]) == 2 * (3 + 2) * 2
    for policy in found["parameters"]:
        own = [each for each in found["timed"] if each["policy"] == policy]
        assert all(each["seconds"] > 0 and each["tokens"] > 0 for each in own)
        assert {each["facts"] for each in own if each["condition"]["facts"]} == {2, 12}
        for name in {each["case"] for each in own}:
            # The same orders are drawn, so that a finer tolerance cannot stop earlier.
            orders = [
                each["orders"]
                for each in own
                if each["case"] == name and each["condition"]["facts"] is None
            ]
            by_epsilon = [
                next(
                    e["orders"]
                    for e in own
                    if e["case"] == name
                    and e["condition"]["facts"] is None
                    and e["condition"]["epsilon"] == epsilon
                )
                for epsilon in (0.1, 0.01, 0.001)
            ]
            assert sorted(by_epsilon) == by_epsilon
            assert sorted(orders) == sorted(by_epsilon)
    small, large = found["parameters"].values()
    assert small < large
    assert "setting 'sizes.0'" in refused(f"{line} sizes=0")
    assert "at least 0" in refused(f"{line} epsilons=-1")
    assert "n=" in refused(f"{line} evaluation.cases=3")


def test_a_case_that_cannot_be_filled_is_not_timed_as_if_it_were() -> None:
    own = len(PATIENT.truth.facts)
    watch = cost.Stopwatch((), Weighing(ENCOUNTER), [PATIENT], (0.1,), (own, own + 1), 2, 0)
    assert len(watch._facts(PATIENT, own)) == own
    found = asyncio.run(
        watch._estimate("m", Additive({}), PATIENT, cost.CostCondition(0.1, own + 1))
    )
    assert found == f"fewer than {own + 1} facts, also with those of other cases"
