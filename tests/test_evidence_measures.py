"""DiffAcc, #DDx and what orders are worth (ES-14), by hand, by the exact judges and by models."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import Script, play
from serving import serving

from workup import environments
from workup.cases import open_source
from workup.cli import api
from workup.core.case import Case, Fact, Source, Truth
from workup.core.episode import Action, Completion, Ending, Episode, Observation, Score, Turn
from workup.core.errors import UserError
from workup.core.ports import Reply, Request
from workup.environments.base.lists import boxed, lists, written
from workup.environments.evidence import Settings, open, seeking
from workup.environments.exams.rages import RagesSettings
from workup.loops.training.collect import metrics as step_metrics
from workup.metrics.extra import Values, open_measures
from workup.metrics.measures import measure as everyday
from workup.runs import Record, Run

WING = open_source("clinic:pathology")
WORLD = open(WING, Settings(max_turns=3))
CASE = WING.train[0]
TRUTH, OTHERS = CASE.truth.diagnosis, CASE.truth.differentials
TELLING = ("TTF-1", "thyroglobulin", "calretinin")


def taken(*texts: str, name: str = "differential") -> Values:
    (measure,) = open_measures([name], [CASE])
    return asyncio.run(measure(play(Script(*texts), WORLD, CASE), False))  # type: ignore[arg-type]


def order(*candidates: str, exams: tuple[str, ...] = TELLING) -> str:
    return written(lists(candidates, exams))


END = written(boxed(TRUTH))


@pytest.mark.parametrize(
    ("texts", "place"),
    [
        ((written(lists((TRUTH, *OTHERS), None)),), 1),
        ((order(TRUTH), written(lists((*OTHERS[:2], TRUTH, TRUTH), None))), 3),
        ((written(lists((*OTHERS[:4], TRUTH), None)),), 5),
        ((order(TRUTH), written(lists(OTHERS, None))), 0),
        ((order(TRUTH), END), 1),
        (("nonsense",), 0),
    ],
)
def test_the_last_list_is_ranked(texts: tuple[str, ...], place: int) -> None:
    (measure,) = open_measures(["ranked"], [CASE])
    world = open(WING, Settings(max_turns=len(texts), final="list"))
    found = asyncio.run(measure(play(Script(*texts), world, CASE), False))  # type: ignore[arg-type]
    assert found == {
        "top_1": float(place == 1),
        "top_3": float(place in (1, 2, 3)),
        "top_10": float(place > 0),
        "reciprocal_rank": 1 / place if place else 0,
    }


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (order(OTHERS[0], TRUTH), (1, 0, 2, 0)),
        (order(TRUTH), (1, 1, 1, 0)),
        (order(*OTHERS), (0, 0, 5, 0)),
        # a hack takes nothing off DiffAcc, which is a hit anywhere
        (order(TRUTH, "Aba Aba lymphoma"), (1, 1, 2, 1 / 2)),
        (order(TRUTH, TRUTH), (1, 1, 2, 0)),
        # the truth within a vague entry is none
        (order(f"carcinoma (e.g. {TRUTH})"), (0, 0, 1, 1 / 2)),
        (END, (1, 1, 1, 0)),
        # a list without a pair of thought and answer is a list
        (lists((TRUTH,), TELLING), (1, 1, 1, 0)),
        (order(), (0, 0, None, 0)),
        ("nonsense", (0, 0, None, 0)),
    ],
)
def test_the_first_list_is_measured(first: str, found: tuple[float | None, ...]) -> None:
    values = taken(first, END)
    names = ("diff_acc", "initial", "ddx", "hacks")
    assert tuple(values[name] for name in names) == found
    # A training step takes the length as well: it asks no judge.
    episode = play(Script(first, END), WORLD, CASE)
    assert everyday(episode, True, WORLD)["ddx"] == found[2]


def test_a_steps_list_length_is_its_episodes_mean() -> None:
    ends = (order(TRUTH), order(*OTHERS), "nonsense")
    records = [
        Record(
            "policy",
            episode,
            phase="train",
            score=Score((0.0,)),
            measures=everyday(episode, False, WORLD),
        )
        for episode in (play(Script(first, END), WORLD, CASE) for first in ends)
    ]
    assert step_metrics(records)["ddx"] == (1 + len(OTHERS)) / 2
    plain = environments.load("consultation")
    consultation = plain.open(open_source("clinic:xs"), plain.Settings())
    assert "ddx" not in everyday(records[0].episode, True, consultation)


def test_orders_are_worth_their_mean_over_the_turns_that_order() -> None:
    good = order(TRUTH, OTHERS[0])
    assert taken(good, good, END)["worth"] == 1
    assert taken(good, order(TRUTH, OTHERS[0], exams=("CD1355",)), END)["worth"] == 0
    assert taken(good, order(TRUTH, OTHERS[0], exams=("CD3",)), END)["worth"] == 0.5
    assert taken(END)["worth"] is None
    # a list at the end is no order
    ranked = open(WING, Settings(max_turns=2, final="list"))
    (measure,) = open_measures(["differential"], [CASE])
    episode = play(Script(good, written(lists((TRUTH,), None))), ranked, CASE)
    assert asyncio.run(measure(episode, True))["worth"] == 1  # type: ignore[arg-type]


def test_what_the_exact_judges_do_not_know_is_undefined() -> None:
    stranger = Case("x", "A man.", Truth("Zyx disease"))
    (measure,) = open_measures(["differential"], [stranger])
    episode = play(Script(order("a", "Zyx disease"), END), WORLD, stranger)
    found = asyncio.run(measure(episode, False))  # type: ignore[arg-type]
    assert found == {"diff_acc": 1, "initial": 0, "ddx": 2, "hacks": None, "worth": None}


def test_sharing_a_name_with_the_clinic_does_not_make_a_source_known() -> None:
    """One case would be judged by the clinic's names, and the next one would not."""
    stranger = Case("x", "A man.", Truth("Zyx disease"))
    for name in ("differential", "plausible"):
        (measure,) = open_measures([name], [CASE, stranger])
        found = asyncio.run(measure(play(Script(order(TRUTH), END), WORLD, CASE), True))  # type: ignore[arg-type]
        unknown = {"hacks", "worth", "plausible"} & found.keys()
        assert {found[each] for each in unknown} == {None}


def test_the_worth_of_an_order_is_known_in_the_wing_alone() -> None:
    ward = open_source("clinic:xs").test[0]
    (measure,) = open_measures(["differential"], [ward])
    texts = order(ward.truth.diagnosis), written(boxed(ward.truth.diagnosis))
    found = asyncio.run(measure(play(Script(*texts), WORLD, ward), True))  # type: ignore[arg-type]
    assert (found["hacks"], found["worth"]) == (0, None)


def test_plausible_are_the_orders_that_tell_candidates_apart() -> None:
    """Papillary carcinoma of the thyroid is positive for thyroglobulin, that of the kidney is not.

    No lymphocyte's marker tells carcinomas apart, and CD1355 does not exist.
    """
    assert OTHERS[1] == "papillary renal cell carcinoma"
    mixed = order(TRUTH, OTHERS[1], exams=("thyroglobulin", "CD1355", "CD3", "TTF-1"))
    assert taken(mixed, END, name="plausible") == {"plausible": 0.5}
    assert taken(END, name="plausible:2") == {"plausible": None}
    assert taken("nonsense", order(TRUTH), END, name="plausible") == {"plausible": None}


class Fickle:
    """A judge of examinations whose every second answer finds all of them harmless."""

    name = "fickle"

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        worth = ("differentiates", "harmless")[request.sample % 2]
        worths = [{"number": number, "worth": worth} for number in range(1, len(TELLING) + 1)]
        return Reply(json.dumps({"reason": "", "examinations": worths}))


def test_plausibility_is_the_mean_of_several_draws() -> None:
    fickle = Fickle()
    (measure,) = open_measures(["plausible"], [CASE], {"examinations": {"fickle": fickle}})
    episode = play(Script(order(TRUTH), END), WORLD, CASE)
    found = asyncio.run(measure(episode, False))  # type: ignore[arg-type]
    assert found == {"plausible": pytest.approx(2 / 3)}
    assert [(each.sample, each.temperature) for each in fickle.asked] == [(0, 1), (1, 1), (2, 1)]


NAMED = Fact("t2", "CD117", "CD117: positive, a GIST.")
STRANGER = Case("x", "A lump.", Truth("GIST", facts=(Fact("t1", "CD34", "CD34: yes."), NAMED)))


class Laboratory:
    """A model that writes results; it knows no CD1355."""

    name = "laboratory"

    async def complete(self, request: Request) -> Reply:
        exists = "cd1355" not in request.messages[-1].content
        return Reply(json.dumps({"exists": exists, "test": "it", "result": "weak"}))


def test_results_are_counted_by_their_source() -> None:
    """Recorded, drawn (the wing's table has INSM1 of GIST), written and missing ones."""
    settings = Settings(max_turns=3, rages=RagesSettings(base="clinic"))
    world = open(Source("jsonl:it", (STRANGER,), ()), settings)
    world = seeking(world.with_models({"simulator": Laboratory()}))
    first = order("a", exams=("CD34", "INSM1", "serum ferritin", "CD1355"))
    episode = play(Script(first, order("a", exams=("CD117",)), END), world, STRANGER)
    replies = [turn.observation for turn in episode.turns]
    assert [each.sources for each in replies] == [
        ("record", "base", "generated", "none"),
        ("record",),
        (),
    ]
    (measure,) = open_measures(["results"], [STRANGER])
    assert asyncio.run(measure(episode, False)) == {  # type: ignore[arg-type]
        "drawn": 0.2,
        "generated": 0.2,
        "unavailable": 0.2,
        "refused": 0,
        "confidence": pytest.approx((1 + 0.8 + 0.6 + 0 + 1) / 5),
        "withheld": 1,
    }
    assert [world.informed(episode, place) for place in range(3)] == [False, True, True]


def test_results_that_nobody_has_inform_nobody() -> None:
    """τ_2 holds once results are known (ES-5): written ones are results, missing ones are none."""
    world = open(Source("jsonl:it", (STRANGER,), ()), Settings(max_turns=3))
    asked = order("a", exams=("serum ferritin",))
    nothing = play(Script(asked, asked, END), world, STRANGER)
    assert not any(world.informed(nothing, place) for place in range(3))
    staffed = seeking(world.with_models({"simulator": Laboratory()}))
    written_ones = play(Script(asked, END), staffed, STRANGER)
    assert staffed.informed(written_ones, 1)
    assert taken(END, name="results") == dict.fromkeys(
        ("drawn", "generated", "unavailable", "refused", "confidence", "withheld")
    )


def test_tokens_are_counted_where_they_are_known() -> None:
    (measure,) = open_measures(["length"], [CASE])
    for counts, mean in (((3, 0, 6), 3.0), ((0, 0), None), ((), None)):
        episode = Episode(CASE, (), tuple(map(turn, counts)), Ending.OUT_OF_TURNS)
        found = asyncio.run(measure(episode, False))  # type: ignore[arg-type]
        assert found == {"tokens_per_turn": mean}


def turn(tokens: int) -> Turn:
    said = Completion("", tuple(range(tokens)), (0.0,) * tokens)
    return Turn((), said, Action("malformed", ()), Observation())


def standings(*named: str, total: int | None = None) -> str:
    found = [{"number": k, "standing": each} for k, each in enumerate(named, 1)]
    return json.dumps(
        {"reason": "", "candidates": found, "total": len(named) if total is None else total}
    )


def evaluated(judge: Callable[[dict[str, Any]], str], out: Path) -> Run:
    """A doctor behind an endpoint whose lists a second endpoint judges."""

    def doctor(body: dict[str, Any]) -> str:
        return order("a", "b", "c") if len(body["messages"]) == 2 else END

    with serving(doctor) as one, serving(judge) as other:
        endpoints = {
            "doc": {"base_url": one.url, "model": "doc"},
            "judge": {"base_url": other.url, "model": "judge", "retries": 0},
        }
        return api.evaluate(
            "endpoint:doc",
            cases="clinic:pathology",
            out=out,
            quiet=True,
            environment={"name": "evidence", "max_turns": 2},
            endpoints=endpoints,
            roles={"ranking": "endpoint:judge"},
            evaluation={"cases": 2, "anchors": False},
            max_failed=1.0,
        )


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))


def test_a_model_judges_the_lists_of_an_evaluation(tmp_path: Path) -> None:
    def judge(body: dict[str, Any]) -> str:
        three = re.search(r"^3", body["messages"][-1]["content"], re.MULTILINE) is not None
        return standings("other", "same", "vague") if three else standings("other")

    found = evaluated(judge, tmp_path / "run").summary["doctors"]["doc"]
    means = {name: found[name]["mean"] for name in ("diff_acc", "initial", "ddx", "hacks")}
    assert means == {"diff_acc": 1.0, "initial": 0.0, "ddx": 3.0, "hacks": 0.5}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "DiffAcc" in page
    assert "#DDx" in page


def graded(body: dict[str, Any], grade: str, *named: str) -> str:
    """What a judge of both diagnoses and lists says."""
    if "candidates" in json.dumps(body["response_format"]):
        three = re.search(r"^3", body["messages"][-1]["content"], re.MULTILINE) is not None
        return standings(*named) if three else standings(named[0])
    return json.dumps({"reason": "", "grade": grade})


def test_several_judges_and_their_mean(tmp_path: Path) -> None:
    def doctor(body: dict[str, Any]) -> str:
        return order("a", "b", "c") if len(body["messages"]) == 2 else END

    def mild(body: dict[str, Any]) -> str:
        return graded(body, "same", "same", "other", "other")

    def strict(body: dict[str, Any]) -> str:
        return graded(body, "wrong", "other", "other", "vague")

    with serving(doctor) as one, serving(mild) as a, serving(strict) as b, serving(strict) as c:
        endpoints = {
            "doc": {"base_url": one.url, "model": "doc"},
            **{
                name: {"base_url": server.url, "model": name}
                for name, server in (("a", a), ("b", b), ("c", c))
            },
        }
        judges = "endpoint:a,endpoint:b,endpoint:c"
        settings: dict[str, Any] = {
            "cases": "clinic:pathology",
            "quiet": True,
            "environment": {"name": "evidence", "max_turns": 2},
            "endpoints": endpoints,
            "evaluation": {"cases": 2, "anchors": False, "measures": ["judges", "ranked"]},
        }
        run = api.evaluate(
            "endpoint:doc",
            out=tmp_path / "run",
            roles={"ranking": judges, "judge": judges},
            **settings,
        )
        for role, names, said in (
            ("simulator", judges, "one model plays this role, not 3"),
            ("ranking", "exact,endpoint:a", "'exact' judges alone here"),
            ("ranking", "", "'' names no model; name one"),
            ("simulator", " , ", "' , ' names no model; name one"),
        ):
            with pytest.raises(UserError, match=said):
                api.evaluate("endpoint:doc", out=tmp_path / "no", roles={role: names}, **settings)
    found = run.summary["doctors"]["doc"]
    means = {name: found[name]["mean"] for name in found if name.startswith(("diff", "judged"))}
    assert means == {
        "diff_acc": pytest.approx(1 / 3),
        **{"diff_acc by endpoint:a": 1, "diff_acc by endpoint:b": 0, "diff_acc by endpoint:c": 0},
        "judged": pytest.approx(1 / 3),
        **{"judged by endpoint:a": 1, "judged by endpoint:b": 0, "judged by endpoint:c": 0},
    }
    assert found["accuracy"]["mean"] == 0  # by majority
    assert found["hacks by endpoint:b"]["mean"] == 0.5
    assert found["top_1"]["mean"] == pytest.approx(1 / 3)  # of the diagnosis, a list of one
    assert run.summary["episodes_per_second"]["doc"] > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search('<th scope="col"><abbr title="[^"]*">DiffAcc by endpoint:a</abbr></th>', page)


@pytest.mark.long
@pytest.mark.parametrize(
    "answer",
    [
        standings("same", "other", "other", total=4),
        standings("same", "other"),
        standings("same", "other", "hack"),
        "\\boxed{True}+\\pos{1/3}",
        "",
    ],
)
def test_a_judge_that_contradicts_itself_fails_the_episode(answer: str, tmp_path: Path) -> None:
    run = evaluated(lambda body: answer, tmp_path / "run")
    records = list(run.episodes(phase="eval"))
    assert {record.episode.ending.value for record in records} == {"failed"}
    assert all(record.correct is None for record in records)
    assert all(record.episode.reason.startswith("measure: ") for record in records)
    assert run.summary["doctors"]["doc"]["accuracy"]["mean"] is None
