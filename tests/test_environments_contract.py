"""Every environment keeps the contract of `ports.Environment`.

It is found by its name, replayed turn by turn, and reads what it writes. One from outside is
trained and evaluated by name.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import cache
from pathlib import Path

import pytest
import yaml
from command_line import Call
from handmade import CASES, SOURCE, Script, play
from hypothesis import given
from hypothesis import strategies as st
from library_world import index_folder

import workup
from workup import environments, methods
from workup.core.case import Kind
from workup.core.episode import DIAGNOSE, MALFORMED
from workup.core.errors import UserError
from workup.core.ports import Environment, Teaching
from workup.environments.base.searching import SEARCH
from workup.loops.evaluation.loop import encounter
from workup.runs.policies import resolve
from workup.runs.settings import PolicySettings, Settings, build, world
from workup.runs.words import in_order

NAMES = environments.names()


@cache
def opened(name: str) -> Environment:
    chosen = {"name": name, "max_turns": 4}
    try:
        return world(chosen, {}).open(SOURCE)
    except UserError:  # these cases have no library of their own
        return world({**chosen, "index": str(index_folder())}, {}).open(SOURCE)


def gathering(environment: Environment) -> str:
    """The kind of action by which evidence is gathered: what a request is read as."""
    return environment.read(environment.write(Kind.HISTORY.value, "fever")).kind


def test_the_built_in_ones_are_the_modules_of_the_package() -> None:
    folder = Path(environments.__file__).parent
    assert sorted({path.stem for path in folder.glob("*.py")} - {"__init__"}) == NAMES
    for name in NAMES:
        module = environments.load(name)
        assert 0 < len(module.summary) < 100
        fields = module.Settings.model_fields
        assert fields["max_turns"].default == 10
        assert all(field.description for field in fields.values())
        assert opened(name).roles.names == getattr(module, "ROLES", ())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_setting_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(UserError, match=r"no setting 'environment\.max_trns'.*environment.max_tur"):
        world({"name": name, "max_trns": 3}, {})
    with pytest.raises(UserError, match=r"setting 'environment\.max_turns': .*, not 0"):
        world({"name": name, "max_turns": 0}, {})
    with pytest.raises(UserError, match=f"no environment '{name}s'. Did you mean '{name}'"):
        world({"name": f"{name}s"}, {})


def test_what_is_usual_holds_in_its_own_environment_alone() -> None:
    usual = {"name": "questioning", "max_turns": 11}
    assert world({}, usual).config["max_turns"] == 11
    assert world({"persona": "any"}, usual).config["max_turns"] == 11
    assert world({"max_turns": 3}, usual).config["max_turns"] == 3
    usual_there = environments.load("consultation").Settings().model_dump(mode="json")
    assert world({"name": "consultation"}, usual).config == {"name": "consultation", **usual_there}


@pytest.mark.parametrize("name", NAMES)
def test_evidence_is_gathered_as_the_environment_says(name: str) -> None:
    environment = opened(name)
    kind = gathering(environment)
    assert kind not in (DIAGNOSE, MALFORMED)
    assert (kind == Kind.HISTORY.value) == environment.about.asks
    assert kind != SEARCH or environment.about.searches


@pytest.mark.parametrize("name", NAMES)
def test_any_turn_can_be_replayed(name: str) -> None:
    environment = opened(name)
    lines = [
        environment.write(Kind.HISTORY.value, "fever"),
        "nonsense",
        environment.write(Kind.HISTORY.value, "cough"),
        environment.write(DIAGNOSE, "Flu"),
    ]
    for case in CASES:
        episode = play(Script(*lines), environment, case)
        assert len(episode.turns) == environment.max_turns
        assert episode.opening == environment.open(case)
        for place in reversed(range(len(episode.turns))):
            turn = episode.turns[place]
            assert environment.read(turn.completion.text) == turn.action
            again = environment.answer(case, episode.turns[:place], turn.action)
            assert asyncio.run(again) == turn.observation
        assert [turn.action.kind for turn in episode.turns] == [
            gathering(environment),
            MALFORMED,
            gathering(environment),
            DIAGNOSE,
        ]


words = st.text(st.characters(categories=("Ll", "Lu")), min_size=1, max_size=12)
contents = st.lists(words, min_size=1, max_size=5).map(" ".join)


@given(st.sampled_from(NAMES), st.sampled_from([Kind.HISTORY.value, DIAGNOSE]), contents)
def test_what_is_written_is_read_back(name: str, kind: str, content: str) -> None:
    environment = opened(name)
    action = environment.read(environment.write(kind, content))
    assert (action.kind, action.content, action.errors) == (
        kind if kind == DIAGNOSE else gathering(environment),
        (content,),
        0,
    )


@given(st.sampled_from(NAMES), st.text(max_size=300))
def test_reading_never_raises(name: str, text: str) -> None:
    action = opened(name).read(text)
    assert action.errors > 0 or action.kind != MALFORMED


HOSTILE = (
    *("<ask>", "<search>", "<refine>", "question:", "answer: [answer:", "[answer: ", "</think>"),
    *("<ask></ask>", "<|im_end|>", "[", "\n", " ", "question: \n", "患者："),
    *(
        "\\DiffList{",
        "\\boxed{a}",
        "\\boxed{",
        "\\DiffList{}",
        "(",
        "{",
        "a,",
        ")}",
        "<answer>",
        "\\",
    ),
)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_reading_takes_linear_time(name: str) -> None:
    began = time.process_time()
    for piece in HOSTILE:
        opened(name).read(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 30  # 1 s here; hours where a rule goes back and forth


@pytest.mark.parametrize("name", NAMES)
def test_what_training_needs_of_one(name: str) -> None:
    environment = opened(name)
    for case in CASES:
        lead, rest = environment.lessons.conclusion(case)
        action = environment.read(lead + rest)
        assert (action.kind, action.content) == (DIAGNOSE, (case.truth.diagnosis,))
    made = [environment.lessons.demonstrate(SOURCE, Teaching(), 3, index) for index in range(10)]
    assert made == [
        environment.lessons.demonstrate(SOURCE, Teaching(), 3, index) for index in range(10)
    ]
    assert environment.roles.played_by({}).open(CASES[0]) == environment.open(CASES[0])
    assert list(environment.about.presented(SOURCE, 0).test) == list(SOURCE.test)


def test_a_policy_is_evaluated_in_the_encounter_it_was_trained_in(tmp_path: Path) -> None:
    trained_in = {"name": "questioning", "max_turns": 5, "share": 0.5}
    config = {"method": "promed", "environment": trained_in}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config, explicit_end=True))
    (tmp_path / "versions.json").write_text("{}")
    given = {"policy": str(tmp_path), "cases": "clinic:xs"}
    policy = resolve(str(tmp_path))
    trained = encounter(PolicySettings(**given), policy)
    assert (trained.name, trained.settings.max_turns, trained.settings.share) == (
        "questioning",
        5,
        0.5,
    )
    other = encounter(PolicySettings(**given, environment="consultation"), policy)
    assert (other.name, other.settings.max_turns, other.settings.share) == ("consultation", 5, 0.5)
    longer = encounter(PolicySettings(**given, environment={"max_turns": 7}), policy)
    assert (longer.name, longer.settings.max_turns) == ("questioning", 7)


@pytest.mark.parametrize("word", ["max_turns", "index", "share", "persona", "told"])
def test_a_setting_of_the_encounter_elsewhere_is_answered_with_its_place(word: str) -> None:
    said = f"'reward.{word}' is a setting of the environment: write environment.{word}=…"
    with pytest.raises(UserError, match=said):
        build(methods.load("craft").settings, {word: 1}, prefix="reward")
    own = {Settings: {"method": "craft"}, PolicySettings: {"policy": "p", "cases": "c"}}
    for model, whole in own.items():
        said = f"'{word}' is a setting of the environment: write environment.{word}=…"
        with pytest.raises(UserError, match=f"^{said}$"):
            build(model, {**whole, word: 1})


# --- from outside ---

TRIAGE = '''
from pydantic import Field
from workup.environments.base.anchors import RandomDoctor
from workup.environments.base.encounter import Encounter, EncounterSettings
from workup.core.episode import DIAGNOSE, MALFORMED, Action, Message, Observation
from workup.core.ports import Request


class Triage(Encounter):
    """A nurse answers yes or no: `! name` is the diagnosis, `? name` a question."""

    class Settings(EncounterSettings):
        greeting: str = Field("Next, please.", description="what the nurse says first")

    stop = ()
    asks = True
    role_names = ("nurse",)

    def __init__(self, source, settings, nurse=None):
        super().__init__(settings.max_turns)
        self.source, self.settings, self.nurse = source, settings, nurse

    @property
    def phrases(self):
        return (self.settings.greeting, "Yes.", "No.", "! ?", "Well?")

    def open(self, case):
        return (Message("user", f"{self.settings.greeting}\\n{case.presentation}"),)

    def read(self, text):
        mark, content = text.strip()[:1], " ".join(text.strip()[1:].split())
        kind = {"?": "ask", "!": DIAGNOSE}.get(mark)
        return Action(kind, (content,)) if kind and content else Action(MALFORMED, (), 1)

    def write(self, kind, content):
        return f"{'!' if kind == DIAGNOSE else '?'} {content}"

    async def answer(self, case, past, action):
        if action.kind == DIAGNOSE:
            return Observation(done=True)
        if action.kind == MALFORMED:
            return Observation((Message("user", "Well?"),))
        name = action.content[0]
        found = tuple(fact.id for fact in case.truth.facts if fact.item == name)
        said = "Yes." if found else "No."
        if self.nurse is not None:
            asked = Request("nurse", "nurse/1", (Message("user", said),))
            said = (await self.nurse.complete(asked)).text
        return Observation((Message("user", said),), found, name)

    def conclude(self, case):
        return "Well?"

    def further_anchors(self, source, knowledge, seed):
        return {"one question": RandomDoctor(knowledge, source.items, 2, seed, self.write)}

    def with_models(self, models):
        return Triage(self.source, self.settings, models.get("nurse"))


class Mute(Triage):
    stop = Encounter.stop
    answer = Encounter.answer


class Alone(Triage):
    def __init__(self):
        super().__init__(None, None)


class Unset(Encounter):
    class Settings(EncounterSettings):
        greeting: str = "Next, please."

    stop = ()
    open, read, write, answer, conclude = (
        Triage.open, Triage.read, Triage.write, Triage.answer, Triage.conclude
    )


class Turned(Triage):
    def __init__(self, settings, source):
        super().__init__(source, settings)
'''


@pytest.fixture
def triage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "triage.py").write_text(TRIAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return "triage:Triage"


SMALL = {
    "steps": 2,
    "batch": 2,
    "group": 2,
    "max_tokens": 8,
    "sft": {"steps": 4, "batch": 4},
    "tiny": {"width": 16, "layers": 1, "context": 512},
}


@pytest.mark.long
def test_one_from_outside_is_trained_in_and_evaluated(triage: str) -> None:
    encounter = {"name": triage, "max_turns": 3, "greeting": "Who is next?"}
    evaluation = {"cases": 4}
    run = workup.train(
        "craft", cases="clinic:xs", out="run", environment=encounter, evaluation=evaluation, **SMALL
    )
    assert run.config["environment"] == encounter
    played = [*run.episodes(phase="train"), *run.episodes(phase="eval")]
    assert all(r.episode.opening[0].content.startswith("Who is next?\n") for r in played)
    assert all(len(record.episode.turns) <= 3 for record in played)
    greedy = run.episodes(phase="eval", doctor="greedy information")
    assert {turn.action.kind for r in greedy for turn in r.episode.turns} == {"ask", DIAGNOSE}
    exact = ["random doctor", "greedy information", "one question", "full information"]
    assert run.summary["anchors"] == exact
    assert in_order(run.doctors(), run.anchors) == [
        *(exact[0], "untrained", "warm start", "trained"),
        *exact[1:],
    ]
    page = run.report.read_text()
    assert len(re.findall(r'<tr class="anchor">', page)) == len(exact)
    again = workup.evaluate("run", out="again", quiet=True, evaluation=evaluation)
    assert {r.episode.opening for r in again.episodes()} == {
        r.episode.opening for r in run.episodes(phase="eval")
    }
    other = workup.evaluate(
        "greedy information", cases="clinic:xs", out="other", environment=triage, quiet=True,
        evaluation=evaluation,
    )  # fmt: skip
    assert all(r.episode.opening[0].content.startswith("Next, please.\n") for r in other.episodes())
    own = workup.evaluate(
        "one question", cases="clinic:xs", out="own", environment=triage, quiet=True,
        evaluation={"cases": 4, "anchors": False},
    )  # fmt: skip
    assert own.doctors() == ["one question"]


def test_what_one_from_outside_can_be_told_is_checked(triage: str) -> None:
    for told, said in (
        ({"name": triage, "greting": "x"}, r"Did you mean 'environment\.greeting'"),
        ({"name": "triage:nothing"}, "environment 'triage:nothing': triage has no 'nothing'"),
        ({"name": "triage:Triagge"}, r"has no 'Triagge'\. Did you mean 'triage:Triage'\?"),
        ({"name": "triage:DIAGNOSE"}, "'triage:DIAGNOSE' is no environment: name a class that is"),
        ({"name": "triage:Mute"}, "'triage:Mute' is no environment: it lacks answer, stop"),
        ({"name": "triage:Alone"}, r"'triage:Alone': write __init__\(self, source, settings\)"),
        ({"name": "triage:Unset"}, r"'triage:Unset': write __init__\(self, source, settings\)"),
        ({"name": "triage:Turned"}, r"'triage:Turned': write __init__\(self, source, settings\)"),
        ({"name": "nowhere:environment"}, "cannot import 'nowhere'"),
    ):
        with pytest.raises(UserError, match=said):
            workup.train("craft", cases="clinic:xs", out="run", environment=told, **SMALL)
    with pytest.raises(UserError, match="no role 'patient' in this triage; it has judge, nurse"):
        workup.evaluate(
            "greedy information", cases="clinic:xs", out="run", environment=triage,
            roles={"patient": "exact"},
        )  # fmt: skip
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("name", "instead", "said"),
    [
        ("mute", "return 'Well?'", "Wrong.answer returned str, not Observation"),
        ("not_async", "", "Wrong.answer is a plain function: `async def` it"),
        ("lost", "return {}['fever']", "lost.py, line 5, in answer: KeyError: 'fever' (your own"),
    ],
)
def test_a_fault_of_one_from_outside_is_told_as_its_own(
    name: str, instead: str, said: str, triage: str, call: Call
) -> None:
    text = "from triage import Triage\n\nclass Wrong(Triage):\n"
    kind = "async def" if instead else "def"
    text += f"    {kind} answer(self, case, past, action):\n        {instead or 'return 1'}\n"
    Path(f"{name}.py").write_text(text)
    words = ["evaluate", "random doctor", f"environment={name}:Wrong", "--cases", "clinic:xs"]
    status, _, err = call(*words, "evaluation.cases=2", "--out", "run")
    assert status == 2
    assert said in err
    assert "defect of workup" not in err


@pytest.mark.parametrize(
    ("called", "said"),
    [
        ("super().__init__(source, settings)", "TypeError: max_turns is of the type Source"),
        ("super().__init__(0)", "ValueError: max_turns is 0"),
        ("super().__init__(settings.max_turns, 1, 2)", "TypeError: "),
        ("self.turns = settings.turns", "AttributeError: "),
        ("self.turns = (", "SyntaxError: "),
    ],
)
def test_a_constructor_of_ones_own_that_fails_is_told_with_its_line(
    called: str, said: str, triage: str, call: Call, request: pytest.FixtureRequest
) -> None:
    name = f"made_{request.node.callspec.indices['called']}"
    constructor = f"    def __init__(self, source, settings):\n        {called}\n"
    Path(f"{name}.py").write_text(f"{BARE}\n{constructor}")
    words = ["evaluate", "random doctor", f"environment={name}:Bare", "--cases", "clinic:xs"]
    status, _, err = call(*words, "environment.max_turns=3", "--out", "run")
    assert status == 2
    where = f"{name}.py, line {len(BARE.splitlines()) + 3}, in "
    assert where in err
    assert said in err
    assert "(your own module)" in err
    assert "defect of workup" not in err
    assert not Path("run").exists()


BARE = """
from workup.core.episode import DIAGNOSE, MALFORMED, Action, Message, Observation
from workup.environments.base.encounter import Encounter


class Bare(Encounter):
    \"""One word to the pharmacist: a finding or the diagnosis.\"""

    asks = True
    stop = ()

    def open(self, case):
        return (Message("user", case.presentation),)

    def read(self, text):
        kind, _, content = text.strip().partition(" ")
        known = kind in ("is", "has") and content.strip()
        if not known:
            return Action(MALFORMED, (), 1)
        return Action(DIAGNOSE if kind == "is" else "ask", (content.strip(),))

    def write(self, kind, content):
        return f"{'is' if kind == DIAGNOSE else 'has'} {content}"

    async def answer(self, case, past, action):
        if action.kind == DIAGNOSE:
            return Observation(done=True)
        facts = [fact for fact in case.truth.facts if fact.item in action.content]
        told = facts[0].text if facts else "No."
        ids = tuple(fact.id for fact in facts)
        return Observation((Message("user", told),), ids, "".join(action.content))

    def conclude(self, case):
        return "What is it?"
"""


def test_what_is_played_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty lines, without settings, roles, phrases or anchors of their own."""
    (tmp_path / "bare.py").write_text(BARE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert len(BARE.splitlines()) <= 40
    module = environments.load("bare:Bare")
    assert module.summary == "One word to the pharmacist: a finding or the diagnosis."
    encounter = {"name": "bare:Bare", "max_turns": 3}
    run = workup.train(
        "craft", cases="clinic:xs", out="run", environment=encounter, evaluation={"cases": 4},
        **SMALL,
    )  # fmt: skip
    assert run.config["environment"] == encounter
    assert run.summary["anchors"] == ["random doctor", "greedy information", "full information"]
    greedy = [*run.episodes(phase="eval", doctor="greedy information")]
    assert {len(record.episode.turns) for record in greedy} <= {1, 2, 3}
    assert any(turn.observation.evidence for r in greedy for turn in r.episode.turns)
    again = workup.evaluate("run", out="again", quiet=True, evaluation={"cases": 4})
    assert again.config["encounter"] == "bare:Bare"
    with pytest.raises(UserError, match="no role 'patient' in this bare; it has judge"):
        workup.evaluate("run", out="other", quiet=True, roles={"patient": "exact"})
