"""Patients with a dose of trouble, and exact doctors that know it, against enumeration."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import serving
from studying import done, page_of, refused
from test_knowledge import NAMES, World, entropy, evidences, worlds
from trained import SMALL

import workup
from workup import environments
from workup.cases import open_source
from workup.cases.knowledge import TabularKnowledge
from workup.cli.play import play
from workup.core.case import Case, Fact, Item, Kind, Source, Truth, evidence_of
from workup.core.channel import Channel, Dose, Statement, heard, settled, statements
from workup.core.episode import Action, Completion, Ending, Episode, Observation, Turn
from workup.core.ports import Environment
from workup.environments.base.anchors import exact_reader
from workup.environments.base.encounter import CREDULOUS, GREEDY
from workup.environments.base.patients import UNKNOWN
from workup.environments.base.trouble import (
    CONTRADICTED,
    DENIED,
    FABRICATED,
    FORGOTTEN,
    UNSURE,
    WITHHELD,
    Trouble,
    became,
    doubt,
)
from workup.metrics.facts import answers as kinds
from workup.metrics.facts import repeats
from workup.report.transcripts import side
from workup.rl.rollout import Play, ToPlay, rollout
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.runs import Record
from workup.runs.settings import world as named_world

RATES = st.sampled_from([0.0, 0.15, 0.5, 0.8, 1.0])
DOSES = st.builds(Dose, RATES, RATES, RATES, RATES)
ANSWERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "pain": (("mild",), ("severe",)),
    "where": (("arm",), ("arm", "leg")),
    "wakes up": (),
}


def processes(
    dose: Dose, truth: tuple[str, ...], invented: Sequence[tuple[str, ...]], times: int
) -> Iterator[tuple[tuple[Statement, ...], float]]:
    """Every way in which a patient may answer: what it says each time, and how probable that is.

    The oracle: everything that is drawn is drawn here one by one.
    """
    contents = [truth] if truth else list(invented) or [()]
    lying = dose.withholding if truth else dose.fabricating
    for content, forgets, lies, *turns in product(contents, *[(False, True)] * (times + 1)):
        draws = [
            (dose.forgetting, forgets),
            (lying, lies),
            *((dose.contradicting, t) for t in turns),
        ]
        chance = float(np.prod([rate if hit else 1 - rate for rate, hit in draws])) / len(contents)
        held = content if bool(truth) != lies else ()
        said: list[Statement] = [None if forgets else held]
        for otherwise in turns:
            last = said[-1]
            other = held if last is None else () if last else content
            said.append(other if otherwise else last)
        yield tuple(said), chance


def chances(
    dose: Dose, truth: tuple[str, ...], invented: Sequence[tuple[str, ...]], times: int
) -> dict[tuple[Statement, ...], float]:
    found: dict[tuple[Statement, ...], float] = {}
    for said, chance in processes(dose, truth, invented, times):
        found[said] = found.get(said, 0.0) + chance
    return found


@given(DOSES, st.sampled_from(sorted(ANSWERS)), st.integers(1, 3))
def test_the_channel_is_what_the_patient_does(dose: Dose, item: str, times: int) -> None:
    channel = Channel(dose, ANSWERS)
    for truth in ((), *ANSWERS[item], ("elsewhere",)):
        expected = chances(dose, truth, ANSWERS[item], times)
        for said in product((None, (), *ANSWERS[item], ("elsewhere",)), repeat=times):
            found = channel.likelihood(item, said, truth)
            assert found == pytest.approx(expected.get(said, 0.0), abs=1e-12), (said, truth)
        assert sum(expected.values()) == pytest.approx(1)


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), unique=True).map(
                tuple
            ),
        )
    )
)
def test_what_was_heard_is_read_back(said: list[Statement]) -> None:
    read = statements(heard(said))
    assert read == tuple(None if one is None else tuple(sorted(one)) for one in said)
    assert statements(()) is None
    assert statements(("fever:yes",)) is None
    assert settled("fever", {"fever": ()})
    assert not settled("fever", {"fever": heard(said)})


def test_a_dose_is_made_of_rates() -> None:
    with pytest.raises(ValueError, match="forgetting is 1"):
        Dose(forgetting=1.5)


# --- inference ---


class Noisy:
    """The oracle of inference: the joint table of all answers, times what is said of each."""

    def __init__(self, world: World, dose: Dose, said: Mapping[str, tuple[Statement, ...]]) -> None:
        self.world, self.dose = world, dose
        self.said = said
        self.memory: dict[Any, dict[tuple[Statement, ...], float]] = {}

    def chance(self, item: str, truth: tuple[str, ...], said: tuple[Statement, ...]) -> float:
        key = item, truth, len(said)
        if key not in self.memory:
            self.memory[key] = chances(self.dose, truth, ANSWERS[item], len(said))
        return self.memory[key].get(said, 0.0)

    def joint(self, certain: Mapping[str, Any], said: Mapping[str, Any]) -> np.ndarray:
        """P(diagnosis, all that is known)."""
        found = np.zeros(len(NAMES))
        for (profile, answers), chance in self.world.joint.items():
            truth = dict(answers)
            if chance and certain.items() <= truth.items():
                weights = [self.chance(item, truth[item], each) for item, each in said.items()]
                found[self.world.profiles[profile]] += chance * np.prod(weights)
        return found

    def gain(self, certain: Mapping[str, Any], item: str, next_ones: Sequence[Any]) -> float:
        now, left = self.joint(certain, self.said), 0.0
        for one in next_ones:
            if item in ANSWERS:
                said = {**self.said, item: (*self.said.get(item, ()), one)}
                after = self.joint(certain, said)
            else:
                after = self.joint({**certain, item: one}, self.said)
            if after.sum() > 0:
                left += after.sum() / now.sum() * entropy(after / after.sum())
        return float(entropy(now / now.sum()) - left)


def sayings(draw: Any, world: World, dose: Dose) -> dict[str, tuple[Statement, ...]]:
    """What a patient of this world may have said, of up to two items, up to three times each."""
    truth = dict(draw(st.sampled_from([a for (_, a), p in world.joint.items() if p > 0])))
    said = {}
    for item in draw(st.lists(st.sampled_from(sorted(ANSWERS)), unique=True, max_size=2)):
        times = draw(st.integers(1, 3))
        possible = [s for s, p in chances(dose, truth[item], ANSWERS[item], times).items() if p]
        said[item] = draw(st.sampled_from(possible))
    return said


@settings(max_examples=40, deadline=None)
@given(st.data(), worlds(), DOSES)
def test_the_doctor_that_knows_the_channel_is_enumeration(
    data: Any, world: World, dose: Dose
) -> None:
    said = sayings(data.draw, world, dose)
    certain = evidences(data.draw, world, most=2)
    certain = {item: answer for item, answer in certain.items() if item not in said}
    oracle = Noisy(world, dose, said)
    joint = oracle.joint(certain, said)
    if joint.sum() < 1e-9:
        return  # what is certain and what was said cannot both be
    knowledge = world.knowledge.through(Channel(dose, ANSWERS))
    evidence = {**certain, **{item: heard(each) for item, each in said.items()}}
    assert knowledge.posterior(evidence) == pytest.approx(joint / joint.sum(), abs=1e-9)
    items = [table.item for table in world.tables if table.item not in certain]
    options = {
        table.item: (None, (), *filter(None, table.outcomes))
        if table.item in ANSWERS
        else table.outcomes
        for table in world.tables
    }
    expected = [oracle.gain(certain, item, options[item]) for item in items]
    assert knowledge.gains(evidence, items) == pytest.approx(expected, abs=1e-9)


# --- encounters ---

ASKING = [n for n in environments.names() if "dose" in environments.load(n).Settings.model_fields]
FEVER, COUGH = Fact("f", "fever", "A fever of 39."), Fact("c", "cough", "I cough.")
SUGAR = Fact("s", "glucose", "Glucose is high.", Kind.LABORATORY)
ITEMS = (
    Item("fever", "Do you have a fever?", "No fever."),
    Item("cough", "Do you cough?", "No cough."),
    Item("sputum", "What do you bring up?", "Nothing comes up.", parent="cough"),
    Item("rash", "Is there a rash?", "No rash."),
    Item("glucose", "Is glucose raised?", "Glucose is normal.", Kind.LABORATORY),
)
ILL = Case(
    "ill", "A man.", Truth("flu", facts=(FEVER, SUGAR)), given=(Fact("r", "rash", "A rash."),)
)
OTHER = Case("other", "A man.", Truth("flu", facts=(COUGH, Fact("p", "sputum", "It is green."))))
PATIENTS = Source("two", (ILL, OTHER), (), ITEMS)
FREE = Case("free", "Pain.", Truth("gout", facts=(Fact("knee", "", "The right knee is swollen."),)))


def place(source: Source = PATIENTS, name: str = "consultation", **how: Any) -> Environment:
    return named_world({"name": name, **how}, {"name": name}).open(source)


def asked(on: Environment, case: Case, *requests: str, kind: str = "ask") -> tuple[Turn, ...]:
    """The turns of an encounter in which these things are asked, one after the other."""
    turns: tuple[Turn, ...] = ()
    for request in requests:
        text = on.write(kind, request)
        seen = asyncio.run(on.answer(case, turns, on.read(text)))
        turns += (Turn((), Completion(text), on.read(text), seen),)
    return turns


def replies(turns: Sequence[Turn]) -> list[str]:
    return [turn.observation.messages[0].content for turn in turns]


def marks(case: Case, turns: Sequence[Turn]) -> list[str]:
    return [became(case, turns[:number], turn) for number, turn in enumerate(turns)]


def test_each_rate_does_what_it_is_called() -> None:
    requests = "fever", "fever", "cough"
    for how, said, became_of_it, ids in (
        ({}, ["A fever of 39.", "A fever of 39.", "No cough."], ["", "", ""], ["f", "f", ""]),
        ({"withholding": 1}, ["No fever."] * 2 + ["No cough."], [WITHHELD] * 2 + [""], [""] * 3),
        ({"forgetting": 1}, [UNSURE] * 3, [FORGOTTEN] * 3, [""] * 3),
        (
            {"contradicting": 1},
            ["A fever of 39.", "No fever.", "No cough."],
            ["", CONTRADICTED, ""],
            ["f", "", ""],
        ),
        (
            {"fabricating": 1},
            ["A fever of 39.", "A fever of 39.", "I cough."],
            ["", "", FABRICATED],
            ["f", "f", "c"],
        ),
        (
            {"dose": 1, "forgetting": 0},
            ["No fever.", "A fever of 39.", "I cough."],
            [WITHHELD, CONTRADICTED, FABRICATED],
            ["", "f", "c"],
        ),
    ):
        turns = asked(place(**how), ILL, *requests)
        assert replies(turns) == said, how
        assert marks(ILL, turns) == became_of_it, how
        assert ["".join(turn.observation.evidence) for turn in turns] == ids, how
        assert [turn.observation.understood for turn in turns] == [text != UNSURE for text in said]


def test_what_is_stated_openly_or_of_another_kind_stays_true() -> None:
    turns = asked(place(dose=1, forgetting=0), ILL, "rash", "glucose", "no such thing")
    assert replies(turns)[:2] == ["A rash.", "Glucose is high."]
    assert not turns[2].observation.understood
    assert marks(ILL, turns) == ["", "", ""]
    lying = asked(place(dose=1, forgetting=0, troubled=["test"]), ILL, "glucose", "fever")
    assert replies(lying) == ["Glucose is normal.", "A fever of 39."]
    assert doubt(ILL, (), lying[0]) == "withheld; true: Glucose is high."


def test_a_sub_question_does_not_tell_of_what_is_above_it() -> None:
    assert replies(asked(place(), ILL, "sputum")) == ["No cough."]
    assert replies(asked(place(forgetting=0.001), ILL, "sputum")) == ["Nothing comes up."]
    assert replies(asked(place(fabricating=1), ILL, "sputum")) == ["It is green."]


def test_free_findings_are_denied_and_forgotten_too() -> None:
    source = Source("free", (FREE,), ())
    request = "Is the right knee swollen?"
    turns = asked(place(source, withholding=1, contradicting=1), FREE, request, request)
    assert replies(turns) == [DENIED, "The right knee is swollen."]
    assert marks(FREE, turns) == [WITHHELD, CONTRADICTED]
    assert replies(asked(place(source, forgetting=1), FREE, request)) == [UNSURE]


def test_an_invented_finding_is_never_taken_for_one_of_the_case() -> None:
    clash = Case("clash", "A man.", Truth("flu", facts=(Fact("c", "fever", "A fever."),)))
    (turn,) = asked(place(fabricating=1), clash, "cough")
    assert turn.observation.evidence == ("invented:c",)
    assert marks(clash, (turn,)) == [FABRICATED]


@pytest.mark.parametrize("name", ASKING)
def test_every_patient_makes_it(name: str) -> None:
    source = open_source("clinic:xs")
    sick = next(
        case for case in source.test if any(f.kind is Kind.HISTORY for f in case.truth.facts)
    )
    item = next(fact.item for fact in sick.truth.facts if fact.kind is Kind.HISTORY)
    fact = next(fact for fact in sick.truth.facts if fact.item == item)
    absent = next(
        i.name
        for i in source.items
        if i.kind is Kind.HISTORY
        and i.name not in {f.item for f in (*sick.given, *sick.truth.facts)}
    )
    (plain,) = asked(place(source, name), sick, item)
    assert plain.observation.evidence == (fact.id,)
    assert place(source, name).about.channel is None
    denied, again, invented = asked(
        place(source, name, withholding=1, contradicting=1, fabricating=1), sick, item, item, absent
    )
    assert marks(sick, (denied, again, invented)) == [WITHHELD, CONTRADICTED, FABRICATED]
    assert fact.text in replies((again,))[0]
    assert UNSURE in replies(asked(place(source, name, forgetting=1), sick, item))[0]
    if name != "consultation":
        assert UNKNOWN in replies((denied,))[0]
    assert UNSURE in place(source, name, dose=0.1).lessons.phrases
    assert UNSURE not in place(source, name).lessons.phrases


def test_what_a_patient_says_is_as_probable_as_the_channel_says() -> None:
    dose, invented = Dose(0.3, 0.2, 0.4, 0.25), Fact("t", "cough", "A dry cough.")
    pool = (OTHER, Case("third", "A man.", Truth("flu", facts=(invented,))))
    trouble = Trouble(dose, ("cough",), (Kind.HISTORY,), pool)
    assert trouble.channel.answers == {"cough": (("c",), ("t",))}
    count = 4_000
    for truth in ((), (COUGH,)):
        said: dict[tuple[Statement, ...], int] = {}
        for number in range(count):
            case = Case(str(number), "A man.", Truth("flu", facts=truth))
            spoken: list[Statement] = []
            past: list[Turn] = []
            for _ in range(2):
                ids = tuple(fact.id for fact in truth)
                heard_now = trouble.hear(case, past, Observation((), ids, "cough"))
                assert heard_now is not None
                facts = heard_now.facts
                spoken.append(None if facts is None else tuple(fact.id for fact in facts))
                past.append(Turn((), Completion(""), Action("ask"), Observation((), (), "cough")))
            said[tuple(spoken)] = said.get(tuple(spoken), 0) + 1
        ids = tuple(fact.id for fact in truth)
        for sequence, expected in chances(dose, ids, (("c",), ("t",)), 2).items():
            assert said.pop(sequence, 0) / count == pytest.approx(expected, abs=0.03), sequence
        assert not said


def test_a_larger_dose_makes_the_same_trouble_and_more() -> None:
    source = open_source("clinic:xs")
    history = [item.name for item in source.items if item.kind is Kind.HISTORY]

    def troubled(dose: float) -> set[tuple[int, str]]:
        on = place(source, dose=dose, trouble_seed=3)
        return {
            (number, name)
            for number in range(30)
            for name in history
            if any(marks(source.test[number], asked(on, source.test[number], name)))
        }

    less, more = troubled(0.1), troubled(0.3)
    assert less < more
    assert troubled(0.1) == less
    assert place(source, dose=0.1).about.channel != place(source, dose=0.2).about.channel


def test_a_model_patient_makes_it_too_and_tells_the_truth_in_its_own_words() -> None:
    said = ["I am burning hot.", "I feel hot.", "My sugar is high."]

    def speaks(body: dict[str, Any]) -> str:
        answer = said.pop(0)
        return json.dumps({"answer": answer, "facts": [2 if "sugar" not in answer else 3]})

    with serving(speaks) as server:
        model = Endpoint(EndpointSettings(base_url=server.url, model="m"))

        def patient(**how: Any) -> Environment:
            return place(name="questioning", **how).roles.played_by({"patient": model})

        honest = patient(contradicting=1)
        turns = asked(honest, ILL, "Do you have a fever?", "Do you have a fever?")
        assert replies(turns) == ["I am burning hot.", UNKNOWN]
        assert marks(ILL, turns) == ["", CONTRADICTED]
        # The record does not understand the question; the model tells of one item.
        turns = asked(patient(withholding=1), ILL, "Are you feeling hot?", "How sweet are you?")
        assert replies(turns) == [UNKNOWN, "My sugar is high."]
        assert marks(ILL, turns) == [WITHHELD, ""]
        (invented,) = asked(patient(fabricating=1), ILL, "Do you cough?")
        assert replies((invented,)) == ["I cough."]
    assert not said


def test_readers_of_transcripts_see_what_was_not_true(tmp_path: Path) -> None:
    on = place(dose=1, forgetting=0)
    turns = asked(on, ILL, "fever", "fever", "cough", "glucose")
    episode = Episode(ILL, on.open(ILL), turns, Ending.OUT_OF_TURNS)
    told = [
        "withheld; true: A fever of 39.",
        "contradicted; true: A fever of 39.",
        "fabricated; true: no finding",
        "",
    ]
    shown = side(Record("doctor", episode), "doctor")
    assert [line.doubt for line in shown.lines] == told
    printed = StringIO()
    with contextlib.redirect_stdout(printed):
        Record("doctor", episode).show()
    one_line = " ".join(printed.getvalue().split())
    assert one_line.count("true:") == 3
    assert "not understood" not in one_line


# --- doctors ---


def test_the_exact_reader_of_an_encounter_is_enumeration() -> None:
    """From the words of the replies alone, disease by disease and answer by answer."""
    source, dose = open_source("clinic:xs"), Dose(0.3, 0.2, 0.4, 0.25)
    rates = {name: getattr(dose, name) for name in Dose.__slots__}
    on, plain = place(source, **rates), source.knowledge
    reader = exact_reader(source, on)
    assert reader is not None
    assert isinstance(plain, TabularKnowledge)
    history = [item for item in source.items if item.kind is Kind.HISTORY][:4]
    for number in range(25):
        case = source.test[number]
        open_facts = {fact.item for fact in case.given}
        names = [item.name for item in history for _ in range(2)]
        turns = asked(on, case, *names)
        certain = evidence_of(case.given)
        said: dict[str, list[Statement]] = {}
        for name, reply in zip(names, replies(turns), strict=True):
            if name not in open_facts:
                denied = next(item.normal for item in history if item.name == name)
                yes = (f"{name}:yes",)
                now = None if reply == UNSURE else () if reply == denied else yes
                said.setdefault(name, []).append(now)
        found = np.zeros(len(source.diagnoses))
        for truths in product(*(((), (f"{name}:yes",)) for name in said)):
            evidence = {**certain, **dict(zip(said, truths, strict=True))}
            heard_so = [
                chances(dose, truth, ((f"{name}:yes",),), 2).get(tuple(each), 0.0)
                for (name, each), truth in zip(said.items(), truths, strict=True)
            ]
            found += np.exp(plain._log_joint(evidence)) @ plain._of * np.prod(heard_so)
        expected = found / found.sum()
        posterior = reader.knowledge.posterior(reader.evidence(case, turns))
        assert posterior == pytest.approx(list(expected), abs=1e-9)


@pytest.mark.long
def test_knowing_the_channel_helps_and_both_doctors_are_anchors(tmp_path: Any) -> None:
    run = workup.evaluate(
        "greedy information",
        cases="clinic:s",
        out=tmp_path / "run",
        evaluation={"cases": 150},
        environment={"dose": 0.3},
        quiet=True,
    )
    right = {name: run.summary["doctors"][name]["accuracy"]["mean"] for name in run.doctors()}
    assert set(right) == {"random doctor", CREDULOUS, "greedy information", "full information"}
    assert right[CREDULOUS] + 0.05 < right["greedy information"] < right["full information"]
    assert set(run.summary["stopped"]) == {"random doctor", "greedy information"}


def test_what_doctors_make_of_an_answer() -> None:
    source = open_source("clinic:xs")
    case = next(c for c in source.test if sum(f.kind is Kind.HISTORY for f in c.truth.facts) > 1)
    one, other = [fact for fact in case.truth.facts if fact.kind is Kind.HISTORY][:2]
    knowing = exact_reader(source, place(source, dose=0.2))
    credulous = exact_reader(source, place(source))
    assert knowing is not None
    assert credulous is not None
    unsure = asked(place(source, forgetting=1), case, one.item)
    assert one.item not in credulous.evidence(case, unsure)
    assert knowing.evidence(case, unsure)[one.item] == heard([None])
    # A model patient told of something else besides.
    more = replace(unsure[0].observation, evidence=(one.id, other.id), understood=True)
    both = (replace(unsure[0], observation=more),)
    assert knowing.evidence(case, both)[one.item] == heard([(one.id,)])
    assert knowing.evidence(case, both)[other.item] == (other.id,)
    assert credulous.evidence(case, both)[one.item] == (one.id,)
    invented = asked(place(source, fabricating=1), case, *(item.name for item in source.items))
    told = credulous.evidence(case, invented)
    assert all(told[item.name] for item in source.items if item.kind is Kind.HISTORY)


def test_the_posterior_that_knows_is_right_as_often_as_it_says() -> None:
    """Of what it holds probable with p, the share p is true; the credulous one is overconfident."""
    source = open_source("clinic:s")
    on = place(source, dose=0.3)
    knowing = exact_reader(source, on)
    credulous = exact_reader(source, place(source))
    assert knowing is not None
    assert credulous is not None
    history = [item.name for item in source.items if item.kind is Kind.HISTORY]
    sure: dict[Any, list[float]] = {knowing: [], credulous: []}
    right: dict[Any, list[bool]] = {knowing: [], credulous: []}
    for number in range(300):
        case = source.test[number]
        turns = asked(on, case, *history[:9])
        for reader, values in sure.items():
            posterior = reader.knowledge.posterior(reader.evidence(case, turns))
            values.append(max(posterior))
            right[reader].append(
                reader.most_probable(reader.evidence(case, turns)) == case.truth.diagnosis
            )
    gaps = {reader: np.mean(sure[reader]) - np.mean(right[reader]) for reader in sure}
    assert abs(gaps[knowing]) < 0.06
    assert gaps[credulous] > 0.12


def test_only_a_doctor_that_knows_asks_again() -> None:
    """The credulous one believes the first answer, and gives up where there is none."""
    source = open_source("clinic:xs")
    on = place(source, forgetting=0.9, contradicting=0.9)
    repeated = {}
    for label in ("random doctor", CREDULOUS, GREEDY):
        doctor = on.about.anchors(source, 0)[label]
        repeated[label] = 0.0
        for case in [source.test[number] for number in range(20)]:
            episode = asyncio.run(rollout(ToPlay(case), on, doctor, Play()))
            repeated[label] += repeats(episode) or 0
            assert kinds(episode)["not_understood"] == 0
    assert repeated[GREEDY] > 0
    assert repeated["random doctor"] == repeated[CREDULOUS] == 0


def test_a_person_may_ask_such_a_patient_again() -> None:
    source = open_source("clinic:xs")
    index = next(n for n in range(50) if "fever" not in {f.item for f in source.test[n].given})
    for rate, questions in ((0.0, 1), (0.5, 2)):
        lines = iter(("fever", "fever", f"dx {source.diagnoses[0]}"))
        on, ask = place(source, contradicting=rate), lambda _, said=lines: next(said)
        (yours, *_) = play(source, index=index, environment=on, ask=ask)
        assert yours.episode.questions == questions


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "name"),
    [("outcome", "consultation"), ("grpo", "questioning"), ("search-r1", "inquiry")],
)
def test_a_method_trains_with_such_patients(method: str, name: str, tmp_path: Any) -> None:
    own = {"subqueries": 0, "refine": False} if name == "inquiry" else {}
    run = workup.train(
        method,
        cases="clinic:xs",
        out=tmp_path / "run",
        quiet=True,
        environment={"name": name, "dose": 0.4, **own},
        **SMALL,
    )
    marked = {
        became(record.episode.case, record.episode.turns[:number], turn)
        for record in run.episodes(phase="train")
        for number, turn in enumerate(record.episode.turns)
    }
    assert marked & {WITHHELD, FORGOTTEN, CONTRADICTED, FABRICATED}
    assert list(run.metrics())[-1]["grad_norm"] > 0


# --- the study ---


@pytest.mark.long
def test_the_study_sweeps_the_dose_with_both_ideal_doctors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    words = "study dose 'random doctor' --cases clinic:xs n=40 doses=0,.6 --out s"
    assert "credulous greedy" in done(words)
    found, page = page_of("s", "dose")
    right = {(a["policy"], a["condition"]): a["level"]["accuracy"]["mean"] for a in found["arms"]}
    assert len(right) == 6
    assert right[GREEDY, "0"] == right[CREDULOUS, "0"]
    assert right[CREDULOUS, "0.6"] < right[GREEDY, "0.6"] < right[GREEDY, "0"]
    assert "<svg" in page
    played = sorted((path, path.stat().st_mtime_ns) for path in Path("s/runs").glob("*/episodes*"))
    done(words)  # it goes on where it was
    assert played == sorted((path, path.stat().st_mtime_ns) for path, _ in played)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("doses=.3,.1", "doses=0.3,0.1: ascending numbers between 0 and 1"),
        ("environment=reasoning", "its environment, reasoning, has no patient to ask"),
    ],
)
def test_what_has_no_dose_is_said(words: str, said: str) -> None:
    assert said in refused(f"study dose 'random doctor' --cases clinic:xs {words}")
