"""Checks a plan of claims before its first run, so that a mistake in a file costs no training.

The words of every arm are read as `workup train` reads them, but no policy is loaded. At a scale
that `needs` nothing the cases and the encounter are opened too. So it is known who will be
evaluated, and which diseases there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from workup import methods
from workup.cases import open_source
from workup.core.case import Source
from workup.core.errors import UserError, unknown
from workup.core.ports import Environment
from workup.metrics import extra
from workup.metrics.known import declared, metric
from workup.report.dynamics import PART
from workup.runs.files import read_json
from workup.runs.settings import PolicySettings, Settings, World, build, read, with_user_config
from workup.runs.settings import world as chosen_world
from workup.runs.words import TRAINED, UNTRAINED
from workup.studies.claims import START, Claim, Headroom, settings_in
from workup.studies.claims.deciding import NAME
from workup.studies.claims.queue import ClaimRun
from workup.studies.claims.trial import ClaimsPlan

TRAIN_OPTIONS = ("cases", "policy", "config")
EVALUATE_OPTIONS = ("cases", "config", "repeats")


class OpenedCases(NamedTuple):
    """Cases as an environment shows them, and the environment over them."""

    source: Source
    environment: Environment


class Foreseen(NamedTuple):
    """What is known of an evaluation before it is made.

    `outside` is whether the method or the environment is not built in: its measures may have any
    name. `doctors` are those that will be evaluated, `diseases` those that a patient can have; both
    are empty where they are not known.
    """

    cases: str
    world: World
    outside: bool
    doctors: Sequence[str] = ()
    diseases: Sequence[str] = ()


def refuse(plan: ClaimsPlan, spec: str) -> None:
    """Raises UserError for a plan whose runs would fail, or could not show what is claimed.

    Nothing is written. `spec` is what the file of claims was called. A folder with the verdicts of
    another paper, or of another scale, is refused as well.
    """
    file = plan.folder / f"{NAME}.json"
    there = read_json(file)
    if there and (there.get("paper"), there.get("scale")) != (plan.paper.paper, plan.scale):
        raise UserError(
            f"{file} has the verdicts of '{there.get('paper')}' at scale {there.get('scale')}, and "
            f"'{plan.paper.paper}' at scale {plan.scale} would replace them; choose another --out"
        )
    with _at(spec):
        Ahead(plan).refuse()


@contextmanager
def _at(place: str) -> Iterator[None]:
    """A context whose mistakes are told with their place."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


@dataclass
class Ahead:
    """A look at a plan. What several arms have in common is opened once."""

    plan: ClaimsPlan
    _opened: dict[str, OpenedCases] = field(default_factory=dict)

    def refuse(self) -> None:
        """Raises UserError for the first mistake in the plan's set-ups and their claims."""
        plan = self.plan
        for name, setup in plan.setups.items():
            closed = bool(setup.scales[plan.scale].needs)
            if begun := plan.start(name):
                with _at(f"setup {name}, {START}"):
                    self.trained(begun.words, closed=closed)
            arms: dict[str, Foreseen] = {}
            further: dict[tuple[str, str], Foreseen] = {}
            for arm in dict.fromkeys((*plan.arms(name), *setup.tried)):
                with _at(f"setup {name}, arm {arm}"):
                    arms[arm] = self.trained(plan.words(name, arm, plan.first), closed=closed)
                for place, job in plan.elsewhere(name, arm, plan.first).items():
                    with _at(f"setup {name}, {place}"):
                        further[arm, place] = self.evaluated(job, arms[arm], closed=closed)
            if setup.headroom:
                with _at(f"setup {name}, headroom"):
                    refuse_headroom(setup.headroom, arms[setup.tried[0]])
            if setup.begins and not any(each.outside for each in arms.values()):
                with _at(f"setup {name}, begins"):
                    refuse_measure(setup.begins.measure)
            for claim in plan.claims(name):
                with _at(f"claim {claim.id}"):
                    refuse_claim(claim, arms, further, [*setup.elsewhere])

    def trained(self, words: Sequence[str], *, closed: bool) -> Foreseen:
        """What the evaluation of a run of these words will have; less where it stays `closed`.

        Raises UserError as `workup train` does.
        """
        name, *rest = words
        s = with_user_config(Settings, typed(rest, TRAIN_OPTIONS, {"method": name}))
        method = methods.load(s.method)
        options = build(method.settings, s.own_reward, prefix="reward")
        found = foreseen(s, method.environment, outside=":" in s.method)
        if closed:
            return found
        opened = self._open(s, found.world, s.split)
        # The policy is evaluated before each stage and, under another name, after the last one.
        stages = [stage.name for stage in method.stages(options, opened.environment)][:-1]
        anchors = opened.environment.about.anchors(opened.source, s.seed)
        doctors = [UNTRAINED, *stages, TRAINED, *(anchors if s.evaluation.anchors else ())]
        return found._replace(doctors=doctors, diseases=opened.source.diagnoses)

    def evaluated(self, job: ClaimRun, of: Foreseen, *, closed: bool) -> Foreseen:
        """The same of a further evaluation `of` a trained policy."""
        policy, *rest = job.words
        given = {"cases": of.cases, **typed(rest, EVALUATE_OPTIONS, {"policy": policy})}
        s = with_user_config(PolicySettings, given)
        found = foreseen(s, of.world.config, outside=of.outside)
        if closed:
            return found
        return found._replace(diseases=self._open(s, found.world, s.split or 0).source.diagnoses)

    def _open(self, s: Settings | PolicySettings, world: World, split: int | str) -> OpenedCases:
        key = repr((s.cases, split, s.strict, s.seed, world.name, world.config))
        if key not in self._opened:
            source = open_source(s.cases, split=split, strict=s.strict)
            environment = world.open(source)
            presented = environment.about.presented(source, s.seed)
            self._opened[key] = OpenedCases(presented, environment)
        return self._opened[key]


def foreseen(s: Settings | PolicySettings, usual: Mapping[str, Any], *, outside: bool) -> Foreseen:
    """What these settings alone tell; `usual` is the encounter where they name none.

    Raises UserError for an environment, its settings, or further measures that nobody knows.
    """
    world = chosen_world(s.environment, usual)
    extra.roles(s.evaluation.measures)
    return Foreseen(s.cases, world, outside or ":" in world.name)


def typed(words: Sequence[str], options: Sequence[str], fixed: Mapping[str, str]) -> dict[str, Any]:
    """Nested settings of a command: its words, its options without their dashes, and `fixed` ones.

    Raises UserError for another option, for a word that says what is `fixed` or an option says, and
    as `settings.read` does.
    """
    given, plain = dict(fixed), []
    for word, *value in settings_in(words):
        option, _, behind = word.removeprefix("--").partition("=")
        if option == word.partition("=")[0]:
            plain.append(word)
        elif option not in options:
            raise unknown("option", f"--{option}", [f"--{each}" for each in options])
        else:
            given[option] = value[0] if value else behind
    if idle := next((word for word in plain if word.partition("=")[0] in given), ""):
        name = idle.partition("=")[0]
        raise UserError(f"'{idle}' would change nothing: it is {given[name]} already")
    config = given.pop("config", None)
    given.pop("repeats", None)  # how often each case is played: no name follows from it
    return {**read(plain, Path(config) if config else None), **given}


def refuse_headroom(room: Headroom, arm: Foreseen) -> None:
    """Raises UserError for an anchor or a measure that the evaluation of `arm` will not have."""
    for doctor in (room.high, room.low) if arm.doctors else ():
        if doctor not in arm.doctors:
            raise unknown("doctor", doctor, arm.doctors)
    if not arm.outside:
        refuse_measure(room.measure)


def refuse_claim(
    claim: Claim,
    arms: Mapping[str, Foreseen],
    further: Mapping[tuple[str, str], Foreseen],
    places: Sequence[str],
) -> None:
    """Raises UserError for a measure, a doctor or a disease that no run of the claim will have.

    `further` has the evaluations of arms in `places` elsewhere, by arm and place.
    """
    if not any(further.get(each, arms[each.arm]).outside for each in claim.compared):
        for measure in filter(None, (claim.measure, claim.than_measure)):
            refuse_measure(measure)
    for arm, place in claim.compared:
        known = [*arms[arm].doctors, *places]
        if arms[arm].doctors and place not in known:
            raise unknown("doctor or evaluation", place, known, more=f"of {arm}")
        diseases = further.get((arm, place), arms[arm]).diseases
        if claim.where and diseases and claim.where not in diseases:
            raise unknown("disease", claim.where, diseases)


def refuse_measure(name: str) -> None:
    """Raises UserError for a measure that nobody declares, and that is no part of a reward."""
    if not metric(name).sense and not name.startswith(PART):
        raise unknown("measure", name, declared())
