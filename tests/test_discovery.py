"""Facts that a model finds in the answers (CRAFT's δ).

It does so in single turns, in an evaluation of free text, and in training.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import finished, told
from handmade import Script, play
from preparing import configured, sections
from serving import Server, fault, serving
from test_mediq import row, write
from test_records import result

from workup.cli import api
from workup.core.case import Case, Fact, Truth
from workup.core.episode import Episode
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Instruments
from workup.environments.base.discovery import Discovery
from workup.environments.base.recorded import UNKNOWN, UNREADABLE
from workup.environments.consultation import Consultation
from workup.methods.craft import Settings, craft_reward
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.judges.exact import ExactJudge
from workup.runs import Run

RECORD = Consultation((), max_turns=6)
CASE = Case(
    "p1",
    "A man of 50 coughs.",
    Truth(
        "Pneumonia",
        facts=(
            Fact("lungs", "", "Crackles are heard at both bases.", weight=3),
            Fact("heat", "", "The temperature is 39.1 °C.", weight=2),
            Fact("dog", "", "He keeps a dog.", weight=0),
        ),
    ),
    given=(Fact("cough", "", "He coughs."),),
)
PARAPHRASES = {
    "moist rales": "Crackles are heard at both bases.",
    "feverish": "The temperature is 39.1 °C.",
}


def entails(body: dict[str, Any]) -> str:
    """The checker: a fact is entailed if the text holds its words, or the paraphrase of them."""
    shown = sections(body)
    said = shown["text"]
    said += "".join(fact for words, fact in PARAPHRASES.items() if words in said)
    numbered = [line.partition(". ")[2] for line in shown["facts"].splitlines()]
    return json.dumps(
        {"facts": [{"number": n, "entailed": text in said} for n, text in enumerate(numbered, 1)]}
    )


def supporting(body: dict[str, Any]) -> str:
    """Simulator and checker in one: the lungs are told in other words, nothing else is known."""
    shown = sections(body)
    if "the request" not in shown:
        return entails(body)
    return result(
        "There are moist rales on both sides."
        if "lung" in shown["the request"]
        else "Nothing else was noted."
    )


def staffed(server: Server, *roles: str, record: Consultation = RECORD) -> Consultation:
    model = Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0))
    return record.with_models(dict.fromkeys(roles, model))


def evidence(episode: Episode) -> list[tuple[str, ...]]:
    return [turn.observation.evidence for turn in episode.turns]


def asked(server: Server) -> list[str]:
    """The texts that the checker has read."""
    return [shown["text"] for shown in map(sections, server.asked) if "facts" in shown]


LINES = (
    "<examine>lung sounds</examine>",
    "<ask>hobbies</ask>",
    "<ask>temperature</ask>",
    "<diagnose>Pneumonia</diagnose>",
)


def test_what_a_simulated_answer_says_in_other_words_is_discovered() -> None:
    with serving(supporting) as server:
        by_identity = play(Script(*LINES), staffed(server, "simulator"), CASE)
        found = play(Script(*LINES), staffed(server, "simulator", "checker"), CASE)
        assert asked(server) == [
            "There are moist rales on both sides.",
            "Nothing else was noted.",
            "The temperature is 39.1 °C.",
        ]
    assert evidence(by_identity) == [(), (), ("heat",), ()]
    assert evidence(found) == [("lungs",), (), ("heat",), ()]
    assert [turn.observation.messages for turn in found.turns] == [
        turn.observation.messages for turn in by_identity.turns
    ]
    reward = craft_reward(Settings(lam=0), 6)
    ((blind, seen),) = asyncio.run(reward(((by_identity, found),), Instruments(ExactJudge())))
    assert (blind.total, seen.total) == (pytest.approx(2 / 5 + 0.5), 1.5)


def test_a_claim_in_a_request_and_an_empty_answer_reveal_nothing_and_cost_no_call() -> None:
    claim = "<ask>He keeps a dog. Crackles are heard at both bases. Are moist rales noted?</ask>"
    silent = replace(CASE, truth=replace(CASE.truth, facts=(Fact("x", "", "Zzz qqq."),)), given=())
    with serving(entails) as server:
        world = staffed(server, "checker")
        episode = play(Script(claim, "hm", "<diagnose>Pneumonia</diagnose>"), world, silent)
        assert [turn.observation.messages[0].content for turn in episode.turns[:2]] == [
            UNKNOWN,
            UNREADABLE,
        ]
        assert not server.asked
    assert evidence(episode) == [(), (), ()]


def test_what_the_record_told_word_for_word_is_certain_and_is_not_asked_about() -> None:
    with serving(
        lambda body: json.dumps({"facts": [{"number": n, "entailed": n == 3} for n in (1, 2, 3)]})
    ) as server:
        (first, *_) = play(Script(LINES[2], LINES[3]), staffed(server, "checker"), CASE).turns
        facts = sections(server.asked[0])["facts"]
    assert "39.1" not in facts
    assert ("coughs" in facts, "dog" in facts) == (True, True)  # what was given may be confirmed
    assert first.observation.evidence == ("heat", "dog")


def test_who_is_staffed() -> None:
    with serving(entails) as server:
        alone, both = staffed(server, "checker"), staffed(server, "simulator", "checker")
        assert isinstance(alone.checker, Discovery)
        assert isinstance(both.checker, Discovery)
        assert (alone.simulator is None, both.simulator is None) == (True, False)
        assert (RECORD.checker, RECORD.simulator) == (None, None)
        assert (alone.max_turns, alone.stop, alone.roles.names) == (
            RECORD.max_turns,
            RECORD.stop,
            ("simulator", "checker", "interpreter"),
        )


def test_a_checker_that_gives_up_fails_the_episode() -> None:
    with serving(lambda body: fault(400, "no")) as server, pytest.raises(RolloutError):
        asyncio.run(staffed(server, "checker").answer(CASE, (), RECORD.read(LINES[2])))


# --- from a released file to a run ---


def hospital(body: dict[str, Any]) -> str:
    """Weighs findings, simulates, checks, and is the doctor, all by what it is shown."""
    if body["model"] == "doctor":
        asking = len(body["messages"]) <= 2
        return (
            "<examine>heartbeat</examine>" if asking else "<diagnose>Pulmonary embolism</diagnose>"
        )
    shown = sections(body)
    if "findings" in shown and "diagnosis" in shown:
        weights = [3 if "pulse" in line else 1 for line in shown["findings"].splitlines()]
        return json.dumps(
            {"weights": [{"number": n, "weight": w} for n, w in enumerate(weights, 1)]}
        )
    if "the request" in shown:
        return result("The heart beats 110 times a minute.")
    facts = shown["facts"].splitlines()
    beats = "110 times" in shown["text"]
    return json.dumps(
        {
            "facts": [
                {"number": n, "entailed": beats and "pulse" in text}
                for n, text in enumerate(facts, 1)
            ]
        }
    )


@pytest.fixture
def mediq(tmp_path: Path) -> Path:
    return write(tmp_path / "mediq.jsonl", *(row(number) for number in range(30)))


def evaluated(server: Server, weighed: Path, out: Path, *roles: str) -> Run:
    endpoints = {
        name: {"base_url": server.url, "model": name, "retries": 0} for name in ("doctor", "it")
    }
    return api.evaluate(
        "endpoint:doctor",
        cases=f"jsonl:{weighed}#all",
        out=out,
        endpoints=endpoints,
        quiet=True,
        roles=dict.fromkeys(roles, "endpoint:it"),
        evaluation={"cases": 4},
    )


def test_free_text_is_weighed_offline_and_measured_by_a_model(
    mediq: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    weighed = tmp_path / "weighed.jsonl"
    with serving(hospital) as server:
        config = configured(tmp_path, server)
        words = (
            "--cases",
            f"mediq:{mediq}",
            "--out",
            weighed,
            "--model",
            "endpoint:it",
            "--config",
            config,
        )
        finished("prepare", "criticality", *words, cwd=tmp_path)
        blind = evaluated(server, weighed, tmp_path / "blind", "simulator").summary["doctors"][
            "doctor"
        ]
        seen = evaluated(server, weighed, tmp_path / "seen", "simulator", "checker").summary[
            "doctors"
        ]["doctor"]
    # Hidden are fever (1), pulse (3) and smoking (1); the pulse is all that is told, in other
    # words.
    assert (blind["recall"]["mean"], blind["coverage"]["mean"]) == (0.0, 0.0)
    assert seen["recall"]["mean"] == pytest.approx(3 / 5)
    assert seen["coverage"]["mean"] == pytest.approx(1 / 3)
    assert seen["critical"]["mean"] == 1.0


def test_craft_refuses_findings_that_nobody_weighed_before_anything_is_written(
    mediq: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    cases = f"mediq:{mediq}"
    with pytest.raises(
        UserError,
        match=r"^case '\d+' has facts without a criticality weight: .*workup prepare criticality",
    ):
        api.train("craft", cases=cases, warm_start=False, out=out, quiet=True)
    assert "workup prepare criticality" in told(
        "train", "craft", "--cases", cases, "warm_start=false", "--out", out, cwd=tmp_path
    )
    assert not out.exists()


def test_training_goes_by_what_the_checker_found(tmp_path: Path) -> None:
    """It finds everything in every answer: whoever got one has discovered the whole record."""

    def generous(body: dict[str, Any]) -> str:
        facts = sections(body)["facts"].splitlines()
        return json.dumps(
            {"facts": [{"number": n, "entailed": True} for n in range(1, len(facts) + 1)]}
        )

    run = trained(generous, tmp_path)
    heard = [
        r
        for r in run.episodes(phase="train")
        if any(t.observation.evidence for t in r.episode.turns)
    ]
    assert heard
    for record in heard:
        assert record.measures["coverage"] == 1.0
        assert record.score is not None
        assert record.score.parts["α·CR·acc"] == pytest.approx(float(bool(record.correct)))
    assert any(call["calls"] for call in run.summary["calls"])


def trained(answer: Callable[[dict[str, Any]], str], folder: Path) -> Run:
    small: dict[str, Any] = {"steps": 1, "batch": 4, "group": 2, "max_tokens": 8, "quiet": True}
    small |= {
        "sft": {"steps": 60, "batch": 8, "lr": 0.01},
        "tiny": {"width": 32},
        "evaluation": {"cases": 2, "anchors": False},
    }
    with serving(answer) as server:
        endpoints = {"it": {"base_url": server.url, "model": "m", "retries": 0}}
        roles = {"checker": "endpoint:it"}
        return api.train(
            "craft",
            cases="clinic:xs",
            out=folder / "run",
            roles=roles,
            endpoints=endpoints,
            **small,
        )
