"""A study is one file: it is found by its name, listed, and run with `key=value`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from studying import asked, done, here, numbers_of, refused, typed

from workup.core.errors import UserError
from workup.studies.base import task
from workup.studies.base.arms import settings_of
from workup.studies.base.task import Room
from workup.studies.stopping import _settings as stopping_settings

__all__ = ["here"]  # a fixture

MODULE = '''\
"""How many facts the cases of a source have.

And nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from workup.cases import open_source
from workup.core.statistics import Estimate, interval
from workup.studies.base.result import Result, Section, sheet
from workup.studies.base.task import SourceSettings, Study, StudyTask


class Settings(SourceSettings):
    least: int = Field(0, ge=0, description="facts of a case that counts")


@dataclass(frozen=True)
class Counted:
    case: str
    facts: int


@dataclass(frozen=True)
class Facts(Result):
    source: str
    rows: tuple[Counted, ...]
    mean: Estimate

    @property
    def title(self) -> str:
        return f"Facts of {self.source}"

    @property
    def facts(self) -> Mapping[str, str]:
        return {"Cases": str(len(self.rows))}

    def sections(self) -> Sequence[Section]:
        columns = {"case": lambda row: row.case, "facts": lambda row: row.facts}
        return [Section("Facts", [sheet("Facts by case", self.rows, columns)])]


def run(task: StudyTask) -> Facts:
    source = open_source(task.settings.cases)
    tick = task.begin(task.settings.n)
    rows = []
    for case in source.test[: task.settings.n]:
        rows.append(Counted(case.id, len(case.truth.facts)))
        tick()
    counts = [row.facts for row in rows if row.facts >= task.settings.least]
    return Facts(source.name, tuple(rows), interval(counts, range(len(counts))))


study = Study("How much is there to ask about?", run, Settings)
'''


@pytest.fixture(params=["study", "audit"])
def room(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Room]:
    """The room in which a module of another folder is found beside its own."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "fact_counts.py").write_text(MODULE)
    found: Room = request.param
    package = import_module(task.ROOMS[found])
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield found
    sys.modules.pop(f"{task.ROOMS[found]}.fact_counts", None)


def test_a_new_study_is_one_file(room: Room) -> None:
    assert "fact-counts" in task.names(room)
    listed = typed(room).output
    assert "fact-counts" in listed
    assert "How many facts the cases of a source have." in listed
    described = " ".join(done(f"{room} fact-counts --help").split())
    for said in ("How much is there to ask about?", "cases=…", "n=100", "least=0", "from 0]"):
        assert said in described
    output = done(f"{room} fact-counts cases=clinic:xs n=3 least=1")
    folder = Path("studies" if room == "study" else "audits") / "fact-counts-clinic-xs"
    assert f"page  {folder}/fact-counts.html" in output
    written = numbers_of(folder, "fact-counts")
    assert written["study"] == "fact-counts"
    assert [row["facts"] > 0 for row in written["rows"]] == [True] * 3
    assert written["mean"]["n"] == 3
    page = (folder / "fact-counts.html").read_text()
    for row in written["rows"]:
        assert row["case"] in page
        assert row["case"] in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fact-counts", "say cases=…, the source whose test cases are taken"),
        ("fact-counts cases=clinic:xs leats=2", "no setting 'leats'. Did you mean 'least'?"),
        ("fact-counts cases=clinic:xs least=-1", "setting 'least': input should be greater than"),
        ("fact-counts cases=clinic:xs more", "'more' is no setting: write key=value"),
        ("fact-count cases=clinic:xs", "Did you mean 'fact-counts'?"),
    ],
)
def test_its_mistakes_are_one_line(room: Room, words: str, said: str) -> None:
    assert said in refused(f"{room} {words}")
    assert not list(Path().rglob("*.html"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("study stopping 'random doctor' cases=clinic:xs seed=-1", "setting 'seed'"),
        ("study questions run judges=x seed=-1", "setting 'seed'"),
        ("audit interpreter cases=clinic:xs seed=-1", "setting 'seed'"),
        ("audit rages seed=-1", "setting 'seed'"),
        ("audit reward craft cases=clinic:xs seed=-1", "setting 'seed'"),
        ("study stopping 'random doctor' cases=clinic:xs evaluation=5", "'evaluation': 5 is no"),
        ("study stopping 'random doctor' cases=clinic:xs stopping=abc", "setting 'stopping'"),
        ("study information endpoint:x cases=clinic:xs evaluation=x", "'evaluation': 'x' is no"),
        ("study stopping 'random doctor' cases=clinic:xs alphas=[]", "'alphas': it takes at least"),
        ("study information endpoint:x cases=clinic:xs shares=[]", "'shares': it takes at least"),
        ("study dose endpoint:x cases=clinic:xs doses=[]", "'doses': it takes at least one"),
        ("study cost endpoint:x cases=clinic:xs epsilons=[]", "'epsilons': it takes at least one"),
        ("study cost endpoint:x cases=clinic:xs sizes=[]", "'sizes': it takes at least one"),
        ("study ranks cases=clinic:xs taus=[]", "'taus': it takes at least one number"),
    ],
)
def test_a_value_that_no_study_can_take_is_told_in_one_line(words: str, said: str) -> None:
    assert said in refused(words)


def test_a_part_of_the_settings_is_no_single_value() -> None:
    with pytest.raises(UserError, match="setting 'evaluation': 5 is no mapping"):
        settings_of({"cases": "clinic:xs", "evaluation": 5}, "random doctor")
    found = asked("study", "stopping 'random doctor' cases=clinic:xs")
    with pytest.raises(UserError, match="setting 'stopping': 'abc' is no mapping"):
        stopping_settings(replace(found, others={"stopping": "abc"}), {}, "random doctor")


@pytest.mark.parametrize("room", ["study", "audit"])
def test_every_module_is_a_study_with_one_line_and_settings(room: Room) -> None:
    for name in task.names(room):
        study, summary = task.load(room, name), task.summary(room, name)
        assert 10 < len(summary) < 100
        assert summary.endswith(".")
        assert study.question.endswith((".", "?"))
        for field in study.settings.model_fields.values():
            assert field.description
