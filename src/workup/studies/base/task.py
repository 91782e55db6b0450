"""What a study or an audit is: a question, its settings, and a function from a task to a result."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from workup.core.disk import slug, there
from workup.core.errors import UserError, nearest, unknown
from workup.core.shapes import FrozenModel
from workup.roles.config import Config
from workup.roles.run_models import RunModels
from workup.runs.settings import PolicySettings, Seed, build, mapping, read

if TYPE_CHECKING:
    from workup.report.live import Live
    from workup.studies.base.result import Result

T = TypeVar("T")
Room = Literal["study", "audit"]
ROOMS: Mapping[Room, str] = {"study": "workup.studies", "audit": "workup.studies.audits"}
Subject = Literal["policy", "run", "file", "review", "method"]
SUBJECTS: Mapping[Subject, str] = {
    "policy": "a run folder, a model folder, a hub id, endpoint:NAME or an anchor",
    "run": "the folder of a run; differences are to the first",
    "file": "a table with tabs or commas, or JSON lines",
    "review": "the folder of a review (`workup review`)",
    "method": "a method's name (`workup methods`), or package.module:attribute",
}
Begin = Callable[[int], Callable[[], None]]
"""How many units begin → what is called when one of them is done."""


def quietly(total: int) -> Callable[[], None]:
    """A `Begin` that shows nothing."""
    return lambda: None


def _parts(value: Any) -> Any:
    """A list as one types it: "2,4,8" or "2, 4, 8". Raises ValueError for an empty entry."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        if not all(parts):
            raise ValueError("a comma stands between two entries, and one is empty")
        return parts
    return value if isinstance(value, Sequence) else [value]


def _some(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError("it takes at least one number")
    return values


Numbers = Annotated[tuple[float, ...], BeforeValidator(_parts), AfterValidator(_some)]
Counts = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_parts), AfterValidator(_some)
]
Names = Annotated[tuple[str, ...], BeforeValidator(_parts)]


class StudySettings(FrozenModel):
    """The settings of a study; nothing else can be set."""


class SourceSettings(StudySettings):
    """The settings of a study of test cases."""

    cases: str = Field(description="the source whose test cases are taken (`workup sources`)")
    n: int = Field(100, ge=1, description="test cases at most, evenly spaced")
    seed: Seed = Field(0, description="of all draws")


@dataclass(frozen=True)
class Study:
    """One study or audit. `question` stands at the head of its page.

    `of` says what the words without `=` are; None where there are none. A study of policies takes
    all settings of `workup evaluate` beside its own.
    """

    question: str
    run: Callable[[StudyTask], Result]
    settings: type[StudySettings]
    of: Subject | None = None

    @property
    def evaluates(self) -> bool:
        return self.of == "policy"


def names(room: Room) -> list[str]:
    """The names of all studies or audits, sorted; none is imported."""
    places = import_module(ROOMS[room]).__path__
    return sorted(each.name.replace("_", "-") for each in iter_modules(places) if not each.ispkg)


def summary(room: Room, name: str) -> str:
    """The first line of the module's docstring; read from the file, since importing takes long."""
    spec = find_spec(_module(room, name))
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def load(room: Room, name: str) -> Study:
    """The study or audit of this name. Raises UserError if there is none."""
    if name not in names(room):
        raise unknown(room, name, names(room), more=f"`workup {room}` lists all")
    found = getattr(import_module(_module(room, name)), "study", None)
    if not isinstance(found, Study):
        raise UserError(f"{_module(room, name)} defines no `study` (see {__name__}.Study)")
    return found


def _module(room: Room, name: str) -> str:
    return f"{ROOMS[room]}.{name.replace('-', '_')}"


@dataclass(frozen=True)
class StudyTask:
    """What a study works with. `name` is its own ("study noise"), `words` are those without `=`.

    `settings` is an object of its `settings`; `others` are further settings, as for `workup
    evaluate`. Its runs and pages lie in `folder`.
    """

    name: str
    words: tuple[str, ...]
    settings: Any
    others: Mapping[str, Any]
    folder: Path
    live: Live
    config: Path | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> StudyTask:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def one(self) -> str:
        """The one policy, file or review. Raises UserError for several."""
        if len(self.words) > 1:
            raise UserError(f"one at a time: `workup {self.name}` cannot take {self.words[1]} too")
        return self.words[0]

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The settings of an evaluation of the same cases, without a policy."""
        own = {"cases": self.settings.cases, "seed": self.settings.seed}
        how = {**mapping(self.others, "evaluation"), "cases": self.settings.n}
        return {**self.others, **own, "evaluation": how}

    def begin(self, total: int, unit: str = "case") -> Callable[[], None]:
        """Shows that `total` units begin; whoever calls the result has done one of them."""
        self.live.stage(self.name, total, unit=unit)
        return lambda: self.live.step({})

    def run_models(self, *, restricted: bool) -> RunModels:
        """Where models are opened, behind the cache; closed when the study ends.

        A model that is not trusted is refused where the cases are `restricted`.
        """
        about = f"{self.name} {shlex.join(self.words)} {self.settings!r}"
        run_models = RunModels(Config.find(self.config), about, restricted=restricted)
        self._open.callback(run_models.close)
        return run_models


def commissioned(
    room: Room,
    name: str,
    words: Sequence[str],
    cases: str | None,
    live: Live,
    out: Path | None = None,
    config: Path | None = None,
) -> StudyTask:
    """What a study or audit works with where `words` are typed: what is studied, and settings.

    Raises UserError for a word that it cannot take, and for a setting that it lacks or does not
    have.
    """
    study = load(room, name)
    studied = [word for word in words if "=" not in word or there(word)]
    values = read([word for word in words if word not in studied])
    values |= {} if cases is None else {"cases": cases}
    if study.of and not studied:
        raise UserError(f"workup {room} {name}: name a {study.of}: {SUBJECTS[study.of]}")
    if studied and not study.of:
        raise UserError(f"'{studied[0]}' is no setting: write key=value, for example seed=1")
    own = {key: value for key, value in values.items() if key in study.settings.model_fields}
    others = {key: value for key, value in values.items() if key not in own}
    _refuse_strange(study, others)
    for key, about in study.settings.model_fields.items():
        if about.is_required() and key not in own:
            raise UserError(f"workup {room} {name}: say {key}=…, {about.description}")
    if study.evaluates and "cases" in mapping(others, "evaluation"):
        raise UserError("evaluation.cases: a study takes its number of cases from n=…; type that")
    settings = build(study.settings, own if study.evaluates else values)
    of = getattr(settings, "cases", "") or "".join(studied[:1])
    place = slug(f"{name}-{Path(of).name}")
    folder = out or Path("studies" if room == "study" else "audits") / place
    return StudyTask(f"{room} {name}", tuple(studied), settings, others, folder, live, config)


def _refuse_strange(study: Study, others: Mapping[str, Any]) -> None:
    """Raises UserError for a setting that is most like one of the study's own.

    All others are left to the models of settings, which know where a name belongs.
    """
    known = {
        *study.settings.model_fields,
        *(PolicySettings.model_fields if study.evaluates else ()),
    }
    for key in others.keys() - PolicySettings.model_fields.keys():
        if nearest(key, known) in study.settings.model_fields:
            raise unknown("setting", key, known)
