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
from dataclasses import replace
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
from typer.testing import CliRunner, Result

from workup.cases import jsonl, open_source
from workup.cli import api
from workup.cli.study import app
from workup.core.case import Case, Fact, Truth
from workup.core.errors import UserError
from workup.core.ports import Logprobs, ScoreRequest
from workup.core.statistics import Estimate
from workup.environments.base.outset import partial
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.methods.promed.shapley import ShapleySettings
from workup.models.tiny import TinySettings, build
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.runs import Outcome, Record, Run
from workup.studies import cost, information, likelihood, noise, questions, simulators, trivia
from workup.studies.agreement import krippendorff
from workup.studies.study import plain, signed

CLINIC = open_source("clinic:xs", split=0)
POOL = [CLINIC.test[k] for k in range(60)]
MEDIQ = Path(__file__).parents[2] / "shared/data/mediq_dev.jsonl"
NOTHING = math.nan


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


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
    assert krippendorff([(1, 1), (5, 5)], "ab").mean == 1


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
    found = information.compare("x", 0, played)
    a0, a1, b0, b1 = found.points
    assert (a0.level["accuracy"].mean, a0.level["questions"].mean) == (
        pytest.approx(1 / 3),
        pytest.approx(19 / 3),
    )
    # Case 2 failed there: the differences are over 1 and 3.
    assert (a1.gain["accuracy"].mean, a1.gain["questions"].mean, a1.gain["accuracy"].n) == (
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
    embedded, default = simulators.compare("x", 0, {}, played).rows
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


@pytest.fixture
def server(everyone: Everyone, tmp_path: Path) -> Iterator[Server]:
    with serving(everyone) as running:
        names = ("doc", "pat", "chk", "one", "two", "broken")
        lines = [f"  {name}: {{base_url: '{running.url}', model: {name}}}\n" for name in names]
        (tmp_path / "workup.yaml").write_text("endpoints:\n" + "".join(lines))
        yield running


def study(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> str:
    found = study(*words)
    assert found.exception is None, (found.exception, found.output[-2000:])
    return found.output


def refused(*words: object) -> str:
    found = study(*words)
    assert isinstance(found.exception, UserError), (found.exception, found.output[-2000:])
    assert "\n" not in str(found.exception)
    return str(found.exception)


def page_of(folder: Path, name: str) -> tuple[dict[str, Any], str]:
    """The numbers and the page of a study.

    The page opens offline, with a figure, and has no text of any case.
    """
    text = (folder / f"{name}.html").read_text()
    assert "<svg" in text
    assert "mathdefault" not in text
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', text)
    assert not [f.text for k in range(20) for f in CLINIC.test[k].truth.facts if f.text in text]
    return json.loads((folder / f"{name}.json").read_text()), text


def test_the_sweep_of_information(server: Server, everyone: Everyone, tmp_path: Path) -> None:
    words = (
        "information",
        "endpoint:doc",
        "--cases",
        "clinic:xs",
        "-n",
        4,
        "--shares",
        "0,1",
        "--out",
        "sweep",
    )
    assert "By share of the facts told" in done(*words)
    found, _ = page_of(tmp_path / "sweep", "information")
    for point in found["points"]:
        cases = [
            partial(CLINIC.test[k * len(CLINIC.test) // 4], point["share"], 0) for k in range(4)
        ]
        asked = [max(0, 4 - len(case.given)) for case in cases]
        assert point["questions"]["mean"] == np.mean(asked)
        assert point["accuracy"]["mean"] == np.mean(
            [case.truth.diagnosis == CLINIC.diagnoses[0] for case in cases]
        )
    assert found["points"][0]["questions"]["mean"] == 4
    assert found["points"][1]["change"]["questions"]["mean"] < 0
    # The same again goes on where it was, and asks nobody.
    asked_so_far = len(everyone.seen)
    done(*words)
    assert len(everyone.seen) == asked_so_far
    assert page_of(tmp_path / "sweep", "information")[0] == found
    assert "other settings" in refused(*words, "environment.max_turns=3")
    # What was changed in an arm, one that its results do not follow from, makes it no other.
    arm = next((tmp_path / "sweep" / "runs").iterdir())
    api.resume(arm, concurrency=3, endpoints={"doc": {"timeout": 99}})
    api.resume(arm, concurrency=2)
    done(*words)
    assert len(everyone.seen) == asked_so_far
    assert page_of(tmp_path / "sweep", "information")[0] == found
    assert (
        Run.open(arm).config["concurrency"],
        Run.open(arm).config["endpoints"]["doc"]["timeout"],
    ) == (2, 99)
    assert "other settings" in refused(*words, "environment.max_turns=3")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_tables_of_a_study_are_whole_at_any_width(width: int) -> None:
    level = {name: Estimate(0.62, 0.55, 0.69, 100) for name in information.METRICS}
    gain = {name: Estimate(0.07, 0.01, 0.13, 100) for name in information.METRICS}
    policies = ("clinic-s-trained-for-long", "gpt")
    points = tuple(
        information.Point(policy, share, level, gain, gain)
        for policy in policies
        for share in (0.0, 0.5, 1.0)
    )
    console = Console(file=StringIO(), width=width)
    information.Information("clinic:s", 0, points).show(console)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    figures = len(information.METRICS)
    level_cells = [plain(level[name], digits) for name, digits in information.METRICS.items()]
    gain_cells = [signed(gain[name], digits) for name, digits in information.METRICS.items()]
    for cell in set(level_cells):
        assert text.count(cell) >= 6 * level_cells.count(cell), "each figure is in one piece"
    # Four changes to the smallest share, and three differences to the first policy.
    assert sum(text.count(cell) for cell in set(gain_cells)) == (4 + 3) * figures
    rows = [line for line in lines if "0.62 [" in line or "+0.07 [" in line]
    assert all(re.search(r"\b(0|50|100)%", row) for row in rows), "every row says its share"


def test_what_cannot_be_swept_is_said(server: Server) -> None:
    assert "--shares" in refused(
        "information", "endpoint:doc", "--cases", "clinic:xs", "--shares", "1,0"
    )
    assert "--shares" in refused(
        "information", "endpoint:doc", "--cases", "clinic:xs", "--shares", "0,x"
    )
    assert "name a policy" in refused(
        "information", "environment.max_turns=3", "--cases", "clinic:xs"
    )
    empty = refused(
        "information", "endpoint:doc", "--cases", "clinic:xs", "environment=consultation"
    )
    assert "nothing is put to the doctor" in empty


def test_the_patients_that_roles_are_played_for(
    server: Server, everyone: Everyone, tmp_path: Path
) -> None:
    words = ("simulators", "endpoint:doc", "--cases", "clinic:xs", "-n", 2, "--out", "who")
    assert "roles.patient" in refused(*words)
    assert "no patient to replace" in refused(
        *words, "roles.patient=endpoint:pat", "environment=consultation"
    )
    assert not everyone.seen
    done(
        *words,
        "roles.patient=endpoint:pat",
        "roles.checker=endpoint:chk",
        "--patient",
        "endpoint:one",
    )
    found, _ = page_of(tmp_path / "who", "simulators")
    names = [row["patient"] for row in found["rows"]]
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


def test_the_quality_of_questions(server: Server, everyone: Everyone, tmp_path: Path) -> None:
    sweep = (
        "information",
        "endpoint:doc",
        "random doctor",
        "--cases",
        "clinic:xs",
        "-n",
        6,
        "--shares",
        "0",
        "--out",
        "s",
    )
    done(*sweep)
    runs = ("s/runs/doc-0", "s/runs/random-doctor-0")
    output = done(
        "questions",
        *runs,
        "--judge",
        "endpoint:one",
        "--judge",
        "endpoint:two",
        "-n",
        5,
        "--out",
        "q",
    )
    found, _ = page_of(tmp_path / "q", "questions")
    assert "Krippendorff" in output
    rated = found["rated"]
    assert [sum(each["run"] == Path(run).name for each in rated) for run in runs] == [5, 5]
    assert len({each["case"] for each in rated}) == 5
    marks = [
        np.mean([each["marks"][judge][0] for judge in ("one", "two")])
        for each in rated
        if each["run"] == "doc-0"
    ]
    assert found["levels"]["doc-0"]["helpfulness"]["mean"] == pytest.approx(np.mean(marks))
    units = [tuple(each["marks"][judge][0] for judge in ("one", "two")) for each in rated]
    assert found["agreement"]["flow"]["mean"] == pytest.approx(
        krippendorff(units, range(len(units))).mean
    )
    prompts = [prompt for role, prompt in everyone.seen if role == "judge"]
    assert len(prompts) == 20
    # Blind: no run, no thoughts, no markup, and not in the order of the runs.
    assert not [
        word
        for prompt in prompts
        for word in ("doc-0", "random", "secret", "question:", "<ask>")
        if word in prompt
    ]
    assert not any("the doctor's answer" in prompt for prompt in prompts)


def test_judges_may_be_told_the_verdict_and_one_that_fails_is_missing(
    server: Server, everyone: Everyone, tmp_path: Path
) -> None:
    done(
        "information",
        "endpoint:doc",
        "--cases",
        "clinic:xs",
        "-n",
        3,
        "--shares",
        "0",
        "--out",
        "s",
    )
    words = (
        "questions",
        "s/runs/doc-0",
        "--judge",
        "endpoint:one",
        "--judge",
        "endpoint:broken",
        "--outcome",
        "--out",
        "q",
    )
    output = done(*words)
    found = json.loads((tmp_path / "q/questions.json").read_text())
    assert found["levels"]["doc-0"]["flow"] == {
        "mean": None,
        "low": None,
        "high": None,
        "n": 0,
        "missing": 3,
    }
    assert "no usable" in output or "3 ×" in output
    assert all("the doctor's answer" in prompt for role, prompt in everyone.seen if role == "judge")
    assert "no run folder" in refused("questions", "s", "--judge", "endpoint:one")
    assert "endpoint gives no" in refused(
        "questions", "s/runs/doc-0", "--judge", "endpoint:one", "--scorer", "endpoint:doc"
    )


def test_restricted_cases_stay_where_they_are(
    server: Server, everyone: Everyone, tmp_path: Path
) -> None:
    jsonl.write(
        POOL,
        tmp_path / "secret.jsonl",
        items=CLINIC.items,
        diagnoses=CLINIC.diagnoses,
        restricted=True,
    )
    words = (
        "information",
        "endpoint:doc",
        "--cases",
        "jsonl:secret.jsonl",
        "-n",
        2,
        "--shares",
        "0",
        "--out",
        "s",
    )
    assert "trusted" in refused(*words)
    trust(tmp_path, "doc")
    done(*words)
    run = tmp_path / "s/runs/doc-0"
    assert run.stat().st_mode & 0o077 == 0
    assert "trusted" in refused("questions", run, "--judge", "endpoint:one", "--out", "q")
    assert everyone.count("judge") == 0
    trust(tmp_path, "broken")
    output = done("questions", run, "--judge", "endpoint:broken", "--out", "q")
    assert "2 × no marks from broken" in output
    page_of(tmp_path / "q", "questions")
    page_of(tmp_path / "s", "information")


def trust(folder: Path, name: str) -> None:
    file = folder / "workup.yaml"
    file.write_text(file.read_text().replace(f"model: {name}}}", f"model: {name}, trusted: true}}"))


class Additive:
    """A `Scorer` under which every fact adds its worth, by text.

    `together` are two facts that are worth something as a pair only.
    """

    def __init__(self, worth: dict[str, float], together: tuple[str, str] = ("", "")) -> None:
        self.worth, self.together = worth, together

    seconds = 0.0

    async def score(self, request: ScoreRequest) -> Logprobs:
        return Logprobs(tuple(map(self.of, request.contexts)), 1)

    def of(self, context: Sequence[Any]) -> float:
        shown = {str(piece).strip() for piece in context}
        pair = 3.0 if all(text in shown for text in self.together) else 0.0
        return sum(self.worth.get(text, 0.0) for text in shown) + pair

    def refresh(self) -> None:
        pass


ENCOUNTER = Questioning(Consultation(SOURCE.items, SOURCE.diagnoses))


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
            return await questions.study(
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


def ranked(scorer: Additive) -> noise.Ranked:
    injection = noise.Injection(kind="trivia", plan=ShapleySettings(64))
    game = likelihood.Likelihood(scorer, ENCOUNTER)
    foreign = noise.noise(PATIENT, list(CASES), game.of(PATIENT), injection)
    found = asyncio.run(noise.rank(PATIENT, foreign, game, injection))
    assert isinstance(found, noise.Ranked)
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
    game = likelihood.Likelihood(Additive({}), ENCOUNTER)
    patient = replace(PATIENT, truth=weighed)
    found = asyncio.run(
        noise.rank(
            patient,
            noise.noise(patient, CASES, weighed.facts, noise.Injection()),
            game,
            noise.Injection(least=2),
        )
    )
    assert isinstance(found, noise.Ranked)
    assert len(found.relevant) == 2
    assert (
        asyncio.run(noise.rank(case(9, "Flu"), [fact("x")], game, noise.Injection()))
        == "no facts of its own"
    )


@given(st.integers(0, 99), st.integers(0, 20), st.floats(0.1, 3))
def test_noise_does_not_belong_to_the_case(index: int, seed: int, ratio: float) -> None:
    own = POOL[index % len(POOL)]
    injection = noise.Injection(ratio, seed=seed)
    added = noise.noise(own, POOL, own.truth.facts, injection)
    assert added == noise.noise(own, POOL, own.truth.facts, injection)
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
    injection = noise.Injection(kind="trivia")
    chinese = replace(PATIENT, presentation="患者腹痛。")
    assert {f.text for f in noise.noise(PATIENT, [], PATIENT.truth.facts, injection)} <= set(
        trivia.ENGLISH
    )
    assert {f.text for f in noise.noise(chinese, [], PATIENT.truth.facts, injection)} <= set(
        trivia.CHINESE
    )
    assert len(trivia.CHINESE) == len(trivia.ENGLISH)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained tiny policy for the clinic in the questioning environment."""
    folder = tmp_path_factory.mktemp("policy")
    said = Questioning(Consultation(CLINIC.items, CLINIC.diagnoses)).phrases
    model, tokenizer = build(CLINIC, said, TinySettings(width=16, layers=1, heads=2), seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_noise_by_the_policys_own_likelihood(tiny: Path, server: Server, tmp_path: Path) -> None:
    words = ("--cases", "clinic:xs", "-n", 5, "--orders", 4, "--out", "n")
    output = done("noise", tiny, *words)
    assert "Precision of K" in output
    found, _ = page_of(tmp_path / "n", "noise")
    assert len(found["ranked"]) == 5
    for measure in noise.MEASURES:
        for ranking in noise.RANKINGS:
            assert 0 <= found[measure][ranking]["1"]["mean"] <= 1
    done("noise", tiny, *words, "--kind", "trivia", "--facts", "all", "--least", 1)
    assert json.loads((tmp_path / "n/noise.json").read_text())["facts"] == "all"
    assert "no log-probabilities" in refused("noise", "endpoint:doc", *words)
    assert "no log-probabilities" in refused("noise", "random doctor", *words)
    assert "one policy at a time" in refused("noise", tiny, "random doctor", *words)
    assert "--kind" in refused("noise", tiny, *words, "--kind", "nonsense")


@pytest.mark.skipif(not MEDIQ.exists(), reason="mediQ's file is not here")
def test_real_cases_in_free_text(tmp_path: Path) -> None:
    words = ("--cases", f"mediq:{MEDIQ}", "-n", 2, "--orders", 2, "--out", "m")
    source = open_source(f"mediq:{MEDIQ}", split=0)
    model, tokenizer = build(
        source, (), TinySettings(width=16, layers=1, heads=2, context=4096), seed=0
    )
    model.save_pretrained(tmp_path / "free")
    tokenizer.save_pretrained(tmp_path / "free")
    done("noise", "free", *words)
    found = json.loads((tmp_path / "m/noise.json").read_text())
    assert len(found["ranked"]) == 2
    # Half of the ranked facts are the case's own: each case has at least two of these.
    assert all(len(each["values"]["Shapley"]) >= 4 for each in found["ranked"])


# --- PM-21: cost ---


def timed(policy: str, case: str, epsilon: float, seconds: float) -> cost.Timed:
    return cost.Timed(policy, case, cost.Condition(epsilon), 3, seconds, 4, True, 10, 0.1)


def test_ratios_are_medians_over_the_same_cases() -> None:
    seconds = {0.1: (1, 2, 4), 0.01: (3, 4, 80)}
    all_of = tuple(
        timed("m", str(k), e, s) for e, own in seconds.items() for k, s in enumerate(own)
    )
    found = cost.Cost(
        "x", 0, "CPU", {"m": 1_500_000}, 8, (*all_of, timed("m", "other", 0.01, 1e9)), 1
    )
    assert found.ratio(("m", cost.Condition(0.01)), ("m", cost.Condition(0.1))) == 3
    assert [condition.epsilon for condition in found.epsilons] == [0.1, 0.01]
    assert "1.50 M" in found.facts["Policies"]
    assert "1 estimates left out" in found.notes()[0]


def test_the_cost_of_the_tiny_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cost, "FAMILY", ((16, 1), (32, 2)))
    words = ("--cases", "clinic:s", "-n", 2, "--sizes", "2,12", "--orders", 24, "--out", "c")
    assert "Time against the size of the model" in done("cost", "tiny", *words)
    found, page = page_of(tmp_path / "c", "cost")
    assert "Size of the model" in page
    assert len(found["timed"]) == 2 * (3 + 2) * 2
    for policy in found["parameters"]:
        own = [each for each in found["timed"] if each["policy"] == policy]
        assert all(each["seconds"] > 0 and each["tokens"] > 0 for each in own)
        assert {each["facts"] for each in own if each["asked_facts"]} == {2, 12}
        for name in {each["case"] for each in own}:
            # The same orders are drawn, so that a finer tolerance cannot stop earlier.
            orders = [
                each["orders"]
                for each in own
                if each["case"] == name and each["asked_facts"] is None
            ]
            by_epsilon = [
                next(
                    e["orders"]
                    for e in own
                    if e["case"] == name and e["asked_facts"] is None and e["epsilon"] == epsilon
                )
                for epsilon in (0.1, 0.01, 0.001)
            ]
            assert sorted(by_epsilon) == by_epsilon
            assert sorted(orders) == sorted(by_epsilon)
    small, large = found["parameters"].values()
    assert small < large
    assert "--sizes" in refused("cost", "tiny", *words, "--sizes", "0")
