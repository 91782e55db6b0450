"""Studies and audits through the command line and from Python, and what their tests share."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from handmade import SOURCE
from typer.testing import CliRunner, Result

from workup.cases import open_source
from workup.cli.app import app
from workup.core.errors import UserError
from workup.core.ports import Logprobs, ScoreRequest
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.models.tiny import TinySettings, build
from workup.report.live import PlainLive
from workup.studies.base import task
from workup.studies.base.task import Room, StudyTask

CLINIC = open_source("clinic:xs", split=0)
ENCOUNTER = Questioning(Consultation(SOURCE.items, SOURCE.diagnoses))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in an empty folder of its own, with a cache of its own."""
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


def untrained(folder: Path, source: Any = CLINIC, context: int = 1024) -> Path:
    """An untrained tiny policy for a source in the questioning environment, written to `folder`."""
    said = Questioning(Consultation(source.items, source.diagnoses)).phrases
    small = TinySettings(width=16, layers=1, heads=2, context=context)
    model, tokenizer = build(source, said, small, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("policy"))


def typed(line: str) -> Result:
    """`workup LINE` in this process."""
    sys.argv = ["workup", *shlex.split(line)]
    return CliRunner().invoke(app, shlex.split(line))


def done(line: str) -> str:
    """What it prints; it must succeed."""
    found = typed(line)
    assert found.exception is None, (found.exception, found.output[-2000:])
    return found.output


def refused(line: str) -> str:
    """The one line in which it says what is wrong."""
    found = typed(line)
    assert isinstance(found.exception, UserError), (found.exception, found.output[-2000:])
    assert "\n" not in str(found.exception)
    return str(found.exception)


def asked(room: Room, line: str) -> StudyTask:
    """What the study with which `line` begins works with."""
    name, *words = shlex.split(line)
    return task.commissioned(room, name, words, None, PlainLive(StringIO()))


def numbers_of(folder: str | Path, name: str) -> dict[str, Any]:
    """The figures of a study or an audit."""
    found: dict[str, Any] = json.loads((Path(folder) / f"{name}.json").read_text())
    return found


def page_of(folder: str | Path, name: str) -> tuple[dict[str, Any], str]:
    """The figures and the page of a study of CLINIC.

    The page opens offline, with a figure, and has no text of any case.
    """
    text = (Path(folder) / f"{name}.html").read_text()
    assert "<svg" in text
    assert "mathdefault" not in text
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', text)
    assert not [f.text for k in range(20) for f in CLINIC.test[k].truth.facts if f.text in text]
    return numbers_of(folder, name), text


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
