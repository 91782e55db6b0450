"""What the runs of a set-up say of each claim: a figure with its interval, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from workup.core.crossed import (
    MANY,
    Crossed,
    Decided,
    Decision,
    area_difference,
    by_seed,
    crossed_difference,
    decide,
)
from workup.core.errors import UserError, unknown
from workup.core.statistics import Clustered, gaps, mean_of
from workup.metrics.known import declared, metric
from workup.metrics.metric import ANY
from workup.report.curves import Curve, reinforced
from workup.report.dynamics import PART
from workup.runs import Outcome, Run
from workup.runs.estimates import bounds, value
from workup.runs.machine import origin
from workup.runs.rising import Learning, LearningVerdict
from workup.runs.words import TRAINED, UNTRAINED, WARM_START, number
from workup.studies.claims import AREA, ArmPlayed, Beginning, Claim, parted
from workup.studies.claims.figures import FIGURES, figure

CANNOT = "could not show it"
NOT_RUN = "not run"
FEWEST = 3
"""Seeds below which no verdict is given: two tell next to nothing about the others."""

MOST = 24
"""Seeds, three times as many as a claim usually gets: a set-up that needs more shows nothing."""

OWN = ("accuracy", "exact_reader", "questions", "critical", "recall", "repeats")


class ClaimVerdict(NamedTuple):
    """A verdict, and the reason where there is one to tell; "" if the figure says it all."""

    verdict: str
    reason: str


@dataclass(frozen=True)
class Ended:
    """What is kept of one run that has ended: figures by doctor and patient, and its curve.

    `outcomes` has doctor → measure → (values, patients); `diseases` the disease of each patient.
    `curve` has of each reinforced step the reward, the accuracy and what claims compare. `figures`
    has (name, measure) → a figure of the whole run, or why it has none. `made` says with which
    version it and its further evaluations were made, and on what machine. `begun` is what its
    policy had before reinforcement of the set-up's `begins`; None where that is not asked or was
    not evaluated.
    """

    arm: str
    seed: int
    outcomes: Mapping[str, Mapping[str, Clustered]]
    diseases: Mapping[str, str]
    curve: Curve
    learning: Learning | None
    seconds: float
    made: Sequence[Mapping[str, Any]] = ()
    figures: Mapping[tuple[str, str], float | str] = field(default_factory=dict)
    begun: float | None = None

    @property
    def rising(self) -> bool | None:
        """Whether its reward was still rising at its end; None where no reward drove it long."""
        if self.learning is None or self.learning.verdict is LearningVerdict.SHORT:
            return None
        return self.learning.verdict is LearningVerdict.RISING


@dataclass(frozen=True)
class ClaimFinding:
    """One claim's figure. `each` has the difference of every seed, by its number.

    `difference` is better − than, also where less is claimed to be better; None without a run of
    both sides. `reason` says why there is none, or what else a reader has to know. `rising` has, by
    arm, how many of its runs were still rising, and of how many this can be told.
    """

    claim: Claim
    verdict: str
    difference: Crossed | None = None
    ours: float | None = None
    theirs: float | None = None
    each: Mapping[int, float] | None = None
    rising: Mapping[str, tuple[int, int]] | None = None
    reason: str = ""

    @property
    def enough(self) -> bool:
        """Whether there are seeds enough for a verdict: fewer say next to nothing about others."""
        return self.difference is not None and self.difference.seeds >= FEWEST

    @property
    def p(self) -> float:
        """The chance of such a difference if there were none; NaN without seeds enough."""
        return self.difference.p if self.difference and self.enough else math.nan

    @property
    def detectable(self) -> float | None:
        """What these seeds and patients find with power .8.

        None without seeds enough, and where no two shares differ by so much.
        """
        if self.need is None or not self.enough:
            return None
        found = self.need * self.claim.target
        return None if found > 1 and metric(self.claim.written_as).share else found

    @property
    def need(self) -> float | None:
        """The detectable difference as a multiple of `target`; None without a standard error.

        It is known with fewer than FEWEST seeds too, since it orders the next ones. With one seed
        it counts the patients alone and is too small.
        """
        if self.difference is None or math.isnan(self.difference.se):
            return None
        return self.difference.detectable() / self.claim.target


def ended(
    folder: Path,
    arm: str,
    seed: int,
    claims: Sequence[Claim],
    elsewhere: Mapping[str, Path | None] | None = None,
    begins: Beginning | None = None,
) -> Ended:
    """What its claims need of a run of this set-up, and of its further evaluations by name.

    One that has not ended is None: nobody played there.
    """
    sides = [
        (*each, measure)
        for claim in claims
        for side, measure in _measured(claim)
        if isinstance(side, str)
        for each in parted(side)
    ]
    wanted = {(place, measure) for of, place, measure in sides if of == arm}
    wanted |= {(TRAINED, measure) for measure in (*OWN, *([begins.measure] if begins else ()))}
    areas = [claim.measure for claim in claims if claim.of_run == AREA]
    drawn = {*areas, "reward", "accuracy"}
    with Run.open(folder) as run:
        summary = run.summary or {}
        began = begun(summary, begins.measure) if begins else None
        # Of a left-out seed the page says only where its arms ended, which the run itself knows.
        out = begins is not None and begins.leaves_out(began)
        found: dict[str, dict[str, Clustered]] = {}
        diseases: dict[str, str] = {}
        for place in sorted({place for place, _ in wanted}):
            outcomes = _outcomes(run, place, {} if out else elsewhere or {})
            diseases.update((each.case_id, each.diagnosis) for each in outcomes)
            cases = [each.case_id for each in outcomes]
            found[place] = {
                measure: ([value(each, measure) for each in outcomes], cases)
                for of, measure in wanted
                if of == place
            }
        steps = reinforced(list(run.metrics()))
        curve = Curve(arm, [{name: line.get(name) for name in drawn} for line in steps])
        figures = _figures(Curve(arm, steps), run, arm, claims)
        entry = summary.get("learning")
        return Ended(
            arm,
            seed,
            found,
            diseases,
            curve,
            Learning.from_json(entry) if entry else None,
            float(summary["seconds"]),
            [origin(run.versions), *_origins(elsewhere or {})],
            figures,
            began,
        )


def begun(summary: Mapping[str, Any], measure: str) -> float | None:
    """What the policy of a run had of the measure before reinforcement, in the mean.

    That is its warm start, or the policy that it was given. None where neither was evaluated.
    """
    doctors = summary.get("doctors", {})
    start: Mapping[str, Any] = next(
        (doctors[each] for each in (WARM_START, UNTRAINED) if each in doctors), {}
    )
    entry = start.get(measure)
    return entry["mean"] if isinstance(entry, Mapping) else None


def left_out(runs: Iterable[Ended], begins: Beginning | None) -> dict[int, float]:
    """Seeds that do not count → with what the policy of one of their arms began, the lowest."""
    lowest: dict[int, float] = {}
    for run in runs:
        if begins and run.begun is not None and begins.leaves_out(run.begun):
            lowest[run.seed] = min(run.begun, lowest.get(run.seed, run.begun))
    return lowest


def counting(runs: Sequence[Ended], begins: Beginning | None) -> list[Ended]:
    """The runs of the seeds that count."""
    out = left_out(runs, begins)
    return [run for run in runs if run.seed not in out]


def _figures(
    curve: Curve, run: Run, arm: str, claims: Sequence[Claim]
) -> dict[tuple[str, str], float | str]:
    """What claims compare of the whole run of this arm."""
    wanted = {
        (claim.of_run, measure)
        for claim in claims
        for side, measure in _measured(claim)
        if claim.of_run in FIGURES and isinstance(side, str) and parted(side)[0].arm == arm
    }
    outcomes = run.outcomes(TRAINED) if wanted else []
    return {(name, of): figure(name, curve, outcomes, of) for name, of in wanted}


class _NoFigureError(UserError):
    """Every run of an arm lacks the figure that a claim compares."""


def _origins(elsewhere: Mapping[str, Path | None]) -> Iterator[Mapping[str, Any]]:
    """What the further evaluations that have ended say of themselves."""
    for folder in filter(None, elsewhere.values()):
        with Run.open(folder) as other:
            yield origin(other.versions)


def _outcomes(run: Run, place: str, elsewhere: Mapping[str, Path | None]) -> Sequence[Outcome]:
    """The outcomes of a doctor of the run, or of its policy in a further evaluation."""
    if place not in elsewhere:
        return run.outcomes(place)
    if (folder := elsewhere[place]) is None:
        return []
    with Run.open(folder) as other:
        anchors = (other.summary or {}).get("anchors", ())
        policies = [each for each in other.doctors() if each not in anchors]
        return other.outcomes(policies[0]) if policies else []


def finding(
    claim: Claim, runs: Iterable[Ended], untried: ClaimVerdict | None = None
) -> ClaimFinding:
    """What these runs of the claim's set-up say of it; `untried` where it has none, and why."""
    if claim.cannot:
        untried = ClaimVerdict(CANNOT, claim.cannot)
    if untried is not None:
        return ClaimFinding(claim, untried.verdict, reason=untried.reason)
    arms: dict[str, dict[int, Ended]] = {}
    for run in runs:
        arms.setdefault(run.arm, {})[run.seed] = run
    try:
        sides = [_side(claim, side, measure, arms) for side, measure in _measured(claim)]
    except _NoFigureError as error:
        return ClaimFinding(claim, CANNOT, reason=str(error))
    except UserError as error:
        return ClaimFinding(claim, NOT_RUN, reason=str(error))
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    if not seeds:
        return ClaimFinding(claim, NOT_RUN, reason=_alone(*sides))
    found, each = _difference(claim, *({seed: side[seed] for seed in seeds} for side in sides))
    if found.n == 0:
        return ClaimFinding(claim, NOT_RUN, reason=_undefined(claim))
    seeds = [seed for seed in seeds if not math.isnan(each.get(seed, math.nan))]
    each = {seed: each[seed] for seed in seeds}
    sides = [{seed: side[seed] for seed in seeds} for side in sides]
    compared = {
        arm: [arms[arm][seed] for seed in seeds if seed in arms[arm]] for arm, _ in claim.compared
    }
    rising = {arm: counted(own) for arm, own in compared.items()}
    ours, theirs = (_level(side) for side in sides)
    told, reason = judged(claim, found, ours, theirs)
    still = claim.of_run == AREA and not any(_has_moved(claim, side) for side in sides)
    if told == Decision.EQUAL and still:
        reason = f"nothing tells that {claim.measure} has moved by the margin on either side"
        told = CANNOT
    return ClaimFinding(claim, told, found, ours, theirs, each, rising, reason)


def judged(claim: Claim, found: Crossed, ours: float | None, theirs: float | None) -> ClaimVerdict:
    """The verdict on a difference whose sides are at `ours` and `theirs`.

    A difference without a direction could not be shown where the levels leave no room for it:
    `than` is less than a margin from the end of the measure's range, a share is below the margin on
    both sides, or the paper's difference is more than the larger side has of it here. Nor could it
    where seeds differ so much that only more than MOST would decide.
    """
    if found.seeds < FEWEST:  # as in `enough`
        return ClaimVerdict(f"{Decision.UNDECIDED}, {found.seeds} of at least {FEWEST} seeds", "")
    told = decide(found, claim.margin, -1 if claim.lower else 1, claim.comparable)
    of, levels = metric(claim.measure), [each for each in (ours, theirs) if each is not None]
    other = claim.of_run or claim.than_measure or claim.gains  # no two levels of one measure
    if why := "" if told.directed else _at_the_end(claim, theirs) or _too_noisy(claim, found, told):
        return ClaimVerdict(CANNOT, why)
    if told.directed or other or not levels or of.range == ANY:
        return ClaimVerdict(told.whole, "")
    most = max(levels)
    if of.share and not claim.lower and most < claim.margin:
        return ClaimVerdict(CANNOT, f"{of.title} is at most {number(of.name, most)} on both sides")
    if told.decision == Decision.SMALLER and claim.comparable and claim.comparable > most:
        paper = number(of.name, claim.comparable)
        limit = f"{of.title} is at most {number(of.name, most)} here"
        return ClaimVerdict(CANNOT, f"{limit}, so the paper's difference of {paper} cannot occur")
    return ClaimVerdict(told.whole, "")


def _too_noisy(claim: Claim, found: Crossed, told: Decided) -> str:
    """Why no number of seeds up to MOST would decide; "" if one would, or more patients would.

    Both have to be out of reach: the nearest verdict if the difference is as found, and the
    difference that is looked for, which does not depend on what was found.
    """
    if told.more is None or told.others is not None or found.seeds + told.more <= MOST:
        return ""
    needed = found.seeds_for(claim.target)
    if needed is not None and needed <= MOST:
        return ""
    whose = "the paper's difference" if claim.comparable else "the margin"
    many = f"more than {MANY:,}" if needed is None or needed > MANY else f"about {needed}"
    return (
        f"seeds differ so much that {whose} of {number(claim.written_as, claim.target)} takes "
        f"{many} of them to be found"
    )


def _at_the_end(claim: Claim, theirs: float | None) -> str:
    """Why `than` leaves `better` no room, in the claimed direction; "" if it does."""
    if theirs is None or claim.than_measure or claim.gains:
        return ""
    known = FIGURES.get(claim.of_run)
    low, high = known.range if known else metric(claim.measure).range
    last = low + claim.margin if claim.lower else high - claim.margin
    if (theirs > last) if claim.lower else (theirs < last):
        return ""
    name = claim.written_as
    title = (known.title if known else "{}").format(metric(claim.measure).title)
    words = ("less", "above") if claim.lower else ("more", "below")
    return (
        f"{title} is {number(name, theirs)} with {claim.than}; {words[0]} can be found only where "
        f"that is {words[1]} {number(name, last)}"
    )


def _alone(ours: Side, theirs: Side) -> str:
    """Why two sides without a common seed cannot be compared."""
    if not (ours and theirs):
        return "no run of both sides has ended"
    one, other = (", ".join(map(str, sorted(side))) for side in (ours, theirs))
    return f"the two sides have no seed in common ({one}; {other})"


def _undefined(claim: Claim) -> str:
    """What is measured in no run; the measures with a similar name where nobody declares it."""
    names = dict.fromkeys(measure for _, measure in _measured(claim))
    strange = [name for name in names if not metric(name).sense and not name.startswith(PART)]
    if strange:
        return f"it is undefined in every run: {unknown('measure', strange[0], declared())}"
    return f"{' or '.join(names)} is undefined in every run"


def counted(runs: Iterable[Ended]) -> tuple[int, int]:
    """How many of these runs were still rising, and of how many this can be told."""
    told = [run.rising for run in runs if run.rising is not None]
    return sum(told), len(told)


def _measured(claim: Claim) -> list[tuple[str | float, str]]:
    """(side, measure) of both sides."""
    return [
        (claim.better, claim.measure),
        (claim.than, claim.than_measure or claim.measure),
    ]


Side = Mapping[int, Any]
"""Seed → (values, patients), or a training curve, or one number; None where it is undefined."""


def _side(
    claim: Claim, side: str | float, measure: str, arms: Mapping[str, Mapping[int, Ended]]
) -> Side:
    if not isinstance(side, str):
        return dict.fromkeys(arms.get(parted(claim.better)[0].arm, ()), side)
    first, *less = [_one(claim, each, measure, arms) for each in parted(side)]
    if not less:
        return first
    (second,) = less
    seeds = [seed for seed in first if seed in second]
    gains, _ = gaps([(first[seed], second[seed]) for seed in seeds])
    return dict(zip(seeds, gains, strict=True))


def _one(
    claim: Claim, of: ArmPlayed, measure: str, arms: Mapping[str, Mapping[int, Ended]]
) -> Side:
    runs = arms.get(of.arm, {})
    if claim.of_run == AREA:
        return {seed: run.curve.values(measure) for seed, run in runs.items()}
    if claim.of_run:
        found = {seed: run.figures[claim.of_run, measure] for seed, run in runs.items()}
        problems = [each for each in found.values() if isinstance(each, str)]
        if problems and len(problems) == len(found):
            raise _NoFigureError(f"{of.arm}: {problems[0]}")
        return {seed: None if each in problems else each for seed, each in found.items()}
    played = {seed: run for seed, run in runs.items() if run.outcomes[of.place][measure][1]}
    if runs and not played and of.place == TRAINED:
        raise UserError(f"no policy of {of.arm} has been evaluated on the scale's patients yet")
    if runs and not played:
        raise UserError(
            f"nobody called '{of.place}' was evaluated in the runs of {of.arm}, nor has a further "
            "evaluation of this name ended"
        )
    return {seed: _kept(claim, run, of.place, measure) for seed, run in played.items()}


def _kept(claim: Claim, run: Ended, place: str, measure: str) -> Clustered:
    """The values of the patients that the claim is about.

    Raises UserError for a disease that nobody has.
    """
    values, cases = run.outcomes[place][measure]
    if not claim.where:
        return values, cases
    if claim.where not in run.diseases.values():
        raise unknown("disease", claim.where, sorted(set(run.diseases.values())))
    kept = [k for k, case in enumerate(cases) if run.diseases[str(case)] == claim.where]
    return [values[k] for k in kept], [cases[k] for k in kept]


def _difference(claim: Claim, ours: Side, theirs: Side) -> tuple[Crossed, dict[int, float]]:
    """Ours − theirs over all seeds, and of each seed; both sides have the same seeds."""
    if claim.of_run == AREA:
        one, other = ({str(seed): each for seed, each in side.items()} for side in (ours, theirs))
        every = [
            (seed, area_difference({"": ours[seed]}, {"": theirs[seed]}).mean) for seed in ours
        ]
        return area_difference(one, other), dict(every)
    if claim.of_run:
        pairs = {seed: (ours[seed], theirs[seed]) for seed in ours}
        known = {seed: a - b for seed, (a, b) in pairs.items() if a is not None and b is not None}
        return by_seed([known.get(seed) for seed in ours]), known
    if not isinstance(claim.than, str):
        theirs = {seed: ([claim.than] * len(cases), cases) for seed, (_, cases) in ours.items()}
    limits = None if claim.than_measure or claim.gains else bounds(claim.measure)
    whole = crossed_difference(
        {str(seed): part for seed, part in ours.items()},
        {str(seed): part for seed, part in theirs.items()},
        bounds=limits,
    )
    each = {seed: crossed_difference({"": ours[seed]}, {"": theirs[seed]}).mean for seed in ours}
    return whole, each


def _has_moved(claim: Claim, side: Side) -> bool:
    """Whether one side's curves end further from their start than the margin, in the mean.

    Start and end are means of a tenth of the steps. It has to be more than the seeds' own noise:
    the largest of many flat curves' movements would often be above the margin. What training has
    not changed yet is alike under all rewards, which says nothing of them.
    """
    moved = by_seed([_movement(curve) for curve in side.values()])
    return abs(moved.mean) > claim.margin and decide(moved, claim.margin).directed


def _movement(curve: Sequence[float | None]) -> float | None:
    known = [each for each in curve if each is not None]
    tenth = max(1, len(known) // 10)
    return fmean(known[-tenth:]) - fmean(known[:tenth]) if known else None


def _level(side: Side) -> float | None:
    """The mean over seeds of one side's figure."""
    values = [part[0] if isinstance(part, tuple) else part for part in side.values()]
    return mean_of(mean_of(each) if isinstance(each, list) else each for each in values)
