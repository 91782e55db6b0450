"""What papers claim, as data: one YAML file for each paper, and the runs that would show it.

    paper: "CRAFT"
    setups:
      clinic:
        about: "Twelve diseases, one reader for every policy"
        arms: {crit: craft, outcome: outcome}
        scales: {tiny: {words: "--cases clinic:s max_tokens=8"}}
        headroom: {measure: exact_reader, high: greedy information, low: random doctor, least: 0.1}
        paid: {crit: "α·CR·acc"}
    claims:
      - id: better-questions
        place: "Table 1"
        says: "Paying for critical findings makes better questions than paying for the outcome"
        setup: clinic
        measure: exact_reader
        better: crit
        than: outcome
        margin: 0.02

An arm is what one types behind `workup train`, with its scale's words behind the method: here
`craft --cases clinic:s max_tokens=8`. What the arm says itself comes last and is kept. A side of a
claim is an arm, or `ARM @ DOCTOR` for another doctor than the trained policy of the arm's
evaluation, such as `crit @ warm start`. `ARM @ PLACE` is the trained policy in another evaluation,
which the set-up names in `elsewhere`. `crit - base` is what the one has above the other, so that a
claim can compare two gains. The built-in papers are the YAML files beside this one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Field, model_validator

from workup.core.errors import unknown
from workup.core.shapes import FrozenModel
from workup.runs.settings import built_in, from_file, yaml_file
from workup.runs.words import TRAINED
from workup.studies.claims.figures import FIGURES

HERE = Path(__file__).parent
AT, LESS = " @ ", " - "
AREA = "area"
START = "start"  # the run with whose policy all arms of a set-up begin
ScaleName = Literal["tiny", "small", "paper"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)


def _split(words: str) -> str:
    try:
        shlex.split(words)
    except ValueError as error:
        raise ValueError(f"'{words}' cannot be read as a shell reads it: {error}") from None
    return words


def _method(words: str) -> str:
    if not _split(words).strip():
        raise ValueError("it names no method")
    return words


Words = Annotated[str, AfterValidator(_split)]
Typed = Annotated[str, AfterValidator(_method)]
"""A method, and further words behind `workup train`."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
"""Names of papers, set-ups, arms and claims: parts of folders, in small letters."""


class ArmPlayed(NamedTuple):
    """An arm, and a doctor of its evaluation or a further evaluation of its policy."""

    arm: str
    place: str


class Scale(FrozenModel):
    """How large a set-up's runs are. `words` stand behind those of every arm.

    `start` is a run that is trained once, and with whose policy all arms begin. `patients` is how
    many play with each trained policy once more, in an evaluation of its own; claims about patients
    then go by it, and cannot compare a doctor of the run's own evaluation. `hardware` and `hours`
    say what one run takes where we did not run it, and `needs` what has to be there. `arms` take
    the place of the set-up's own.
    """

    words: Words
    start: Words = ""
    patients: int | None = Field(None, ge=1)
    arms: Mapping[Name, Typed] = Field(default_factory=dict)
    hardware: str = ""
    hours: float | None = Field(None, gt=0)
    needs: str = ""

    @property
    def further(self) -> Mapping[str, Words]:
        """The evaluation of `patients`: its name, and the words behind `workup evaluate RUN`."""
        words = f"evaluation.cases={self.patients} evaluation.anchors=false"
        return {TRAINED: words} if self.patients else {}


class Headroom(FrozenModel):
    """Two anchors that must differ by `least` in `measure`: else no method could show anything."""

    measure: str
    high: str
    low: str
    least: float = Field(gt=0)


class Beginning(FrozenModel):
    """What a policy has before reinforcement, in the mean over the patients of its evaluation.

    A seed whose policy begins with less counts in no claim of the set-up, whatever became of it. So
    nothing that training did decides which seeds count.
    """

    measure: str
    least: float = Field(gt=0)

    def leaves_out(self, began: float | None) -> bool:
        """Whether a seed whose policy began with so much does not count; None is not known."""
        return began is not None and began < self.least


class Setup(FrozenModel):
    """Arms that differ in what a claim is about, and in nothing else.

    `bounds` are arms that no claim compares: what the policy could hold, and what better credit
    could bring. `paid` names, for an arm, the part of its reward that a claim is about. `begins`
    says which seeds count. `elsewhere` has further evaluations of the trained policies: a name, and
    the words behind `workup evaluate RUN`.
    """

    about: str
    arms: Mapping[Name, Typed] = Field(min_length=1)
    scales: Mapping[ScaleName, Scale] = Field(min_length=1)
    bounds: Mapping[Name, Typed] = Field(default_factory=dict)
    headroom: Headroom | None = None
    begins: Beginning | None = None
    paid: Mapping[Name, str] = Field(default_factory=dict)
    elsewhere: Mapping[Name, Words] = Field(default_factory=dict)

    @property
    def tried(self) -> list[str]:
        """The arms with a short training first: those whose reward is looked at, or else the first.

        The anchors of the first one's evaluation are the set-up's headroom.
        """
        return [*self.paid] or ([next(iter(self.arms))] if self.headroom else [])

    def commands(self, scale: ScaleName, more: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
        """Arm → the words behind `workup train`, without seed and folder; bounds come last.

        `more` holds for all arms, but for the settings that an arm names itself: `steps=2000`
        leaves an arm with `steps=0` untrained.
        """
        size = self.scales[scale]
        arms = size.arms or {**self.arms, **self.bounds}
        found = {}
        for name, typed in arms.items():
            method, *own = shlex.split(typed)
            found[name] = (method, *shlex.split(size.words), *more, *own)
        return found


def small(claim: Mapping[str, Any]) -> float:
    """The margin of a claim that names none: .02, or half of a smaller difference of the paper's.

    Else two sides would be called equal that differ by as much as the paper reports.
    """
    reported = claim.get("reported")
    return 0.02 if reported is None or claim.get("of_run") == AREA else min(0.02, reported / 2)


class Claim(FrozenModel):
    """One directional claim: `better` is above `than` in `measure` (below it if `lower`).

    `place` is where the paper says it, `says` is the claim in our words. `reported` is the paper's
    own difference in the claimed direction, above 0 also where `lower` is better. A claim is `ours`
    where the paper does not make it, and we ask it to learn why another one fails; it is counted
    apart. Differences up to `margin` are called small. `of_run` compares one number of each run
    instead of patients: "area", the mean over the training curve, or one of `figures.FIGURES`.
    `where` keeps the cases of one disease. `than` can be a number. `than_measure` is what is
    measured of `than`, where that is something else. `cannot` is the reason why no set-up here can
    show it. `headline` marks the few claims that a paper is read for.
    """

    id: Name
    place: str
    says: str
    setup: Name = ""
    measure: str = "accuracy"
    better: str = ""
    than: str | float = ""
    than_measure: str = ""
    lower: bool = False
    reported: float | None = Field(None, gt=0)
    of_run: str = ""
    margin: float = Field(default_factory=small, gt=0)
    ours: bool = False
    where: str = ""
    cannot: str = ""
    headline: bool = False

    @property
    def sides(self) -> tuple[str | float, str | float]:
        """`better` and `than` as the file has them, such as "crit - base" and 0.5."""
        return self.better, self.than

    @property
    def gains(self) -> bool:
        """Whether a side is a difference of two arms."""
        return any(LESS in str(side) for side in self.sides)

    @property
    def compared(self) -> tuple[ArmPlayed, ...]:
        """The arms of both sides, and who plays there; a number is none."""
        sides = (each for each in self.sides if isinstance(each, str) and each)
        return tuple(each for side in sides for each in parted(side))

    @property
    def comparable(self) -> float | None:
        """`reported` where we compare the same; papers report ends, and no areas."""
        return None if self.of_run == AREA else self.reported

    @property
    def target(self) -> float:
        """The difference that is looked for: what the paper reports of its ends, or the margin."""
        return self.margin if self.comparable is None else self.comparable

    @property
    def written_as(self) -> str:
        """The metric as which the claim's figures are written."""
        return self.measure if self.of_run in ("", AREA) else self.of_run

    def check(self) -> None:
        """Raises ValueError where the fields do not fit each other."""
        if self.cannot:
            return
        if missing := [
            key for key in ("setup", "better", "than") if getattr(self, key) in ("", None)
        ]:
            raise ValueError(
                f"claim {self.id}: {', '.join(missing)} is missing (or `cannot`, a reason)"
            )
        sides = [side for side in self.sides if isinstance(side, str)]
        if long := next((side for side in sides if side.count(LESS) > 1), ""):
            raise ValueError(
                f"claim {self.id}: '{long}' has more than two parts; a side is ARM or ARM{LESS}ARM"
            )
        same = isinstance(self.than, str) and parted(self.better) == parted(self.than)
        if same and self.than_measure in ("", self.measure):
            raise ValueError(
                f"claim {self.id}: both sides are '{self.better}'; compare two arms, or name what "
                "is measured of the other one as `than_measure`"
            )
        if self.comparable is not None and self.margin >= self.comparable:
            size = f"margin {self.margin:g} is not below reported {self.comparable:g}"
            raise ValueError(
                f"claim {self.id}: {size}, so the paper's own difference would be small"
            )
        if self.of_run:
            self._check_figure()

    def _check_figure(self) -> None:
        if self.of_run not in (names := (AREA, *FIGURES)):
            raise ValueError(f"claim {self.id}: {unknown('figure of a run', self.of_run, names)}")
        area = self.of_run == AREA
        shares = () if area else FIGURES[self.of_run].measures
        for measure in filter(None, (self.measure, self.than_measure)):
            if shares and measure not in shares:
                raise ValueError(f"claim {self.id}: {unknown('share', measure, shares)}")
        if (
            any(isinstance(each, str) and len(parted(each)) > 1 for each in self.sides)
            or any(each.place != TRAINED for each in self.compared)
            or self.where
            or (area and (self.than_measure or not isinstance(self.than, str)))
        ):
            alone = ", `than_measure` and numbers" if area else ""
            raise ValueError(
                f"claim {self.id}: `of_run` compares an arm's training with another's, without "
                f"`where`, ` @ `, ` - `{alone}"
            )


class Paper(FrozenModel):
    """A paper's claims with the set-ups that they need."""

    paper: str
    setups: Mapping[Name, Setup] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _named(self) -> Paper:
        for key, where in _twice(claim.id for claim in self.claims):
            raise ValueError(f"claim {where}: the id '{key}' stands twice")
        for claim in self.claims:
            claim.check()
            if claim.cannot:
                continue
            if claim.setup not in self.setups:
                raise ValueError(f"claim {claim.id}: {unknown('setup', claim.setup, self.setups)}")
            arms = self.setups[claim.setup].arms
            for arm, _ in claim.compared:
                if arm not in arms:
                    raise ValueError(f"claim {claim.id}: {unknown('arm', arm, arms)}")
        for name, setup in self.setups.items():
            for arm in setup.paid:
                if arm not in setup.arms:
                    raise ValueError(f"setup {name}: paid names the arm '{arm}', which it lacks")
            for scale in setup.scales:
                self._told_apart(name, scale)
        return self

    def _told_apart(self, setup: str, scale: ScaleName) -> None:
        """Raises ValueError for arms that train the same, one that a scale lacks, and START."""
        commands = self.setups[setup].commands(scale)
        if START in commands:
            raise ValueError(f"setup {setup}: '{START}' is the run that all arms begin with")
        known: dict[str, str] = {}
        for arm, words in commands.items():
            other = known.setdefault(repr(meaning(words)), arm)
            if other != arm:
                raise ValueError(f"setup {setup}, {scale}: {other} and {arm} train the same")
        for arm in self.setups[setup].tried:
            if arm not in commands:
                raise ValueError(f"setup {setup} has no arm '{arm}' at {scale}, which is checked")
        met = (TRAINED, *self.setups[setup].elsewhere)
        for claim in self.claims:
            for arm, place in claim.compared if claim.setup == setup else ():
                if arm not in commands:
                    raise ValueError(f"claim {claim.id}: {setup} has no arm '{arm}' at {scale}")
                if self.setups[setup].scales[scale].patients and place not in met:
                    raise ValueError(
                        f"claim {claim.id}: '{place}' does not meet the `patients` of {scale}; "
                        "leave them out, or give the claim a set-up of its own"
                    )

    def chosen(self, only: Sequence[str]) -> tuple[Claim, ...]:
        """The claims that `only` names by their ids or set-ups. Raises UserError."""
        ids, setups = [claim.id for claim in self.claims], [*self.setups]
        for name in only:
            if name not in ids and name not in setups:
                raise unknown("claim or set-up", name, [*ids, *setups])
        return tuple(each for each in self.claims if each.id in only or each.setup in only)


def parted(side: str) -> tuple[ArmPlayed, ...]:
    """("crit", "trained") and ("base", "warm start") of "crit - base @ warm start"; one or two."""
    parts = (each.partition(AT) for each in side.split(LESS, 1))
    return tuple(ArmPlayed(arm.strip(), place.strip() or TRAINED) for arm, _, place in parts)


def meaning(words: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """A method and its settings, the last of each: equal for commands that train the same.

    >>> meaning(["craft", "--cases", "clinic:s", "steps=9", "steps=0"])
    ('craft', {'--cases': 'clinic:s', 'steps': '0'})
    """
    method, *rest = words
    found = {}
    for key, (word, *value) in last_settings(rest).items():
        found[key] = value[0] if value else word.partition("=")[2]
    return method, found


def last_settings(words: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Each setting's name → its words, those of the last setting of the name.

    >>> last_settings(["--cases", "clinic:s", "steps=9", "steps=0"])
    {'--cases': ('--cases', 'clinic:s'), 'steps': ('steps=0',)}
    """
    return {each[0].partition("=")[0]: each for each in settings_in(words)}


def settings_in(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Each setting's words: two of an option with its value, else one.

    >>> list(settings_in(["--cases", "clinic:s", "--policy=tiny", "steps=9"]))
    [('--cases', 'clinic:s'), ('--policy=tiny',), ('steps=9',)]
    """
    left = iter(words)
    for word in left:
        alone = word[:2] != "--" or "=" in word
        yield (word,) if alone else (word, next(left, ""))


def names() -> list[str]:
    """The papers whose claims are built in, sorted."""
    return built_in(HERE)


def read(spec: str) -> Paper:
    """The claims of the built-in paper of this name, or those of a YAML file.

    Raises UserError, with the file and the field, for a name that does not exist and for a file
    that holds no claims.
    """
    return from_file(Paper, yaml_file("paper", spec, HERE))


def _twice(keys: Iterator[str]) -> Iterator[tuple[str, int]]:
    seen: set[str] = set()
    for place, key in enumerate(keys, start=1):
        if key in seen:
            yield key, place
        seen.add(key)
