"""Who is compared: runs, and runs pooled over their seeds, each with its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

from workup.core.episode import Ending
from workup.core.errors import UserError, unknown
from workup.report import diseases, seeds, tables
from workup.report.diseases import DiseaseGap
from workup.report.seeds import SeedGroup, Traits
from workup.report.tables import Change, Ends
from workup.runs import Run, warnings
from workup.runs.estimates import Seeds, common, value
from workup.runs.folder import goes_on
from workup.runs.policies.unseen import alike, played_cases, start_of
from workup.runs.rising import LearningVerdict
from workup.runs.summary import describe_seeds, lead, probabilities
from workup.runs.words import DASH, STAGES, TRAINED


class Compared(TypedDict, total=False):
    """What of the runs is compared.

    `apart` does not pool runs that differ by their seed alone. `measure` is shown seed by seed
    (accuracy if None). `doctor` is the evaluated row that is compared of every run: its name, or
    what follows a comma in it, as in "bayes concludes"; if None the trained policy, or else whoever
    was evaluated last.
    """

    apart: bool
    measure: str | None
    doctor: str | None


@dataclass(frozen=True)
class Side:
    """One row of the comparison: a run, or runs that differ by their seed alone.

    `runs`, `doctors` (who is compared) and `played` (how it went) are by seed. `changes` are its
    paired differences to the first side, `diseases` those of its accuracy by disease. `alike` says
    whether it was evaluated on cases of the first (`unseen.alike`), one at least.
    """

    label: str
    runs: Mapping[str, Run]
    traits: Traits
    doctors: Mapping[str, str]
    played: Seeds
    entry: Mapping[str, Any]
    changes: list[Change]
    diseases: list[DiseaseGap]
    alike: bool = True

    @property
    def run(self) -> Run:
        """Its run, or the one with the first seed."""
        return next(iter(self.runs.values()))

    @property
    def doctor(self) -> str:
        """Who is compared of `run`."""
        return next(iter(self.doctors.values()))

    @property
    def pooled(self) -> bool:
        return len(self.runs) > 1

    @property
    def cases(self) -> str:
        """The source and the split of its cases, for a reader."""
        split = self.run.settings.get("split")
        return f"{self.run.config.get('cases')}, {'whole' if split is None else f'split {split}'}"

    def unpaired(self, first: Side) -> str:
        """Why there is no paired difference to the first side, in a sentence."""
        for side in (self, first):
            if not side.entry["accuracy"]["n"]:
                return f"every episode of {side.row} failed: no paired difference"
        cases = [
            {each.case_id for played in side.outcomes.values() for each in played}
            for side in (self, first)
        ]
        if len(set.intersection(*cases)) == 1:
            both = f"{self.row} and {first.row} have one case in common"
            return f"{both}: a paired difference takes two"
        both = f"{self.row} and {first.row} were evaluated on different cases"
        other = f" ({self.cases}; {first.cases})" if self.cases != first.cases else ""
        return f"{both}{other}: no paired difference"

    @property
    def outcomes(self) -> Seeds:
        """How its episodes went; other cases than the first side's have ids of their own."""
        source = "" if self.alike else f"{played_cases(self.run)}: "
        return {
            seed: [each._replace(case_id=source + each.case_id) for each in outcomes]
            for seed, outcomes in self.played.items()
        }

    @property
    def row(self) -> str:
        """Its name; with the doctor's, unless that is the trained policy or another's name."""
        doctors = set(self.doctors.values())
        if len(doctors) > 1:  # "craft-0, bayes concludes" and "craft-1, bayes concludes"
            doctors = {doctor.partition(", ")[2] for doctor in doctors}
        name = doctors.pop() if len(doctors) == 1 else ""
        return self.label if name in ("", TRAINED) else self.named(name)

    def named(self, doctor: str) -> str:
        return f"{self.label}: {doctor}"

    def of(self, doctor: str) -> Mapping[str, Any] | None:
        """The entry of another doctor over the seeds in which it was evaluated; None without."""
        found = {
            key: run.outcomes(doctor) for key, run in self.runs.items() if doctor in run.doctors()
        }
        if not found:
            return None
        return {**describe_seeds(found, self.run.seed), **probabilities(self.run, doctor)}

    @cached_property
    def learned(self) -> dict[str, Mapping[str, Any]]:
        """How the training of each seed's policy ended (`summary.describe_learning`), by seed."""
        found = {
            seed: _learned(run)
            for seed, run in self.runs.items()
            if self.doctors[seed] not in run.anchors
        }
        return {seed: entry for seed, entry in found.items() if entry is not None}

    @property
    def ended(self) -> str:
        """ "rising", or "1 of 3 rising" where seeds differ; a dash where nothing was reinforced."""
        verdicts = [entry["verdict"] for entry in self.learned.values()]
        if len(set(verdicts)) > 1:
            up = LearningVerdict.RISING
            return f"{verdicts.count(up)} of {len(verdicts)} {up}"
        return next(iter(verdicts), DASH).removesuffix(" to tell")

    @property
    def each(self) -> Iterator[tuple[str, Run]]:
        """Its runs with a name for each."""
        for seed, run in self.runs.items():
            yield f"{self.label}, seed {seed}" if self.pooled else self.label, run


def _learned(run: Run) -> Mapping[str, Any] | None:
    """The entry `learning` of the run, or of the one that trained the policy it evaluated."""
    if "method" not in run.config and (before := start_of(run)) and before[1] in seeds.PLACES:
        with before[0] as trained:
            return trained.summary.get("learning")
    return run.summary.get("learning")


def compared(runs: Sequence[Run], **chosen: Unpack[Compared]) -> tuple[list[Side], list[str]]:
    """The sides in the order of their first runs, and what a reader has to know of them.

    The measure asked for is paired too, whatever it is. Raises UserError for a run in which no one
    was evaluated, for runs of one group that got unequally far, for a measure or a doctor that one
    lacks, and as `seeds.grouped`.
    """
    apart, measure = chosen.get("apart", False), chosen.get("measure")
    doctors = _doctors(runs, chosen.get("doctor"))
    groups, notes = seeds.grouped(runs, apart=apart)
    made: list[Side] = []
    for group in groups:
        made.append(_side(group, doctors, made[0] if made else None, measure))
    if measure is not None and all(tables.level(side.entry, measure) is None for side in made):
        known = {name for side in made for name in side.entry if tables.level(side.entry, name)}
        raise unknown("measure", measure, known)
    told = [*_single_seeds(made), *(note for side in made for note in _lacking(side))]
    played = {side.row: side.run.encounter for side in made}
    warned = warnings.lines({side.row: side.entry for side in made}, played)
    return made, [*notes, *told, *warned]


def _doctors(runs: Sequence[Run], name: str | None) -> dict[Path, str]:
    """Who is compared of each run. Raises UserError where a run has no such row, or several."""
    if name is None:
        return {run.path: doctor_of(run) for run in runs}
    found: dict[Path, list[str]] = {}
    for run in runs:
        rows = list(run.doctors())
        ends = [row for row in rows if row.partition(", ")[2] == name]
        found[run.path] = [name] if name in rows else ends
    if all(len(rows) == 1 for rows in found.values()):
        return {path: rows[0] for path, rows in found.items()}
    if not any(found.values()):
        known = dict.fromkeys(doctor for run in runs for doctor in run.doctors())
        raise UserError(
            f"no evaluated row '{name}' in these runs; they have {', '.join(map(repr, known))}"
        )
    run = next(run for run in runs if len(found[run.path]) != 1)
    many = "several rows" if found[run.path] else "no row"
    raise UserError(
        f"{run.path} has {many} '{name}': name one that every run has; it has "
        f"{', '.join(map(repr, run.doctors()))}"
    )


def doctor_of(run: Run) -> str:
    """Whom the run is about: its policy as it ended. Raises UserError where none was evaluated."""
    policy = run.config.get("policy")  # the evaluation of an anchor is about that anchor
    own = str(policy) if policy in run.doctors() else None
    doctor = Ends.of(run.doctors(), run.anchors).after or own
    if doctor is None:
        raise UserError(
            f"{run.path}: no policy has been evaluated in this run yet; let it finish with "
            f"{goes_on(run.path)}"
        )
    return doctor


def _side(
    group: SeedGroup, doctors: Mapping[Any, str], first: Side | None, measure: str | None
) -> Side:
    who = {seed: doctors[run.path] for seed, run in group.runs.items()}
    _refuse_unequal(group, who)
    played = {seed: run.outcomes(who[seed]) for seed, run in group.runs.items()}
    run = next(iter(group.runs.values()))
    same = first is None or (alike(run, first.run) and not _apart(played, first.played))
    entry = {**describe_seeds(played, run.seed), **probabilities(run, who[next(iter(who))])}
    metrics = dict.fromkeys((*tables.paired_of({"": entry}), *([measure] if measure else ())))
    gaps, sick = [], []
    if first and same:
        gaps = tables.gaps(played, first.played, metrics, run.seed)
        sick = diseases.by_disease(played, first.played, run.seed)
    return Side(group.label, group.runs, group.traits, who, played, entry, gaps, sick, same)


def _apart(ours: Seeds, theirs: Seeds) -> bool:
    """Whether no case was played on both sides, of the seeds that both have in one of them."""
    pairs = [(ours[seed], theirs[seed]) for seed in common(ours, theirs)]
    every = [tuple([each for run in side.values() for each in run] for side in (ours, theirs))]
    return all(
        {each.case_id for each in one}.isdisjoint(each.case_id for each in other)
        for one, other in pairs or every
    )


def _refuse_unequal(group: SeedGroup, doctors: Mapping[str, str]) -> None:
    """A run that was interrupted before its last stage has no place among the others."""
    reached = {seed: STAGES.index(who) for seed, who in doctors.items() if who in STAGES}
    if len(set(reached.values())) > 1:
        least, most = min(reached, key=reached.__getitem__), max(reached, key=reached.__getitem__)
        behind, ahead = group.runs[least].path, group.runs[most].path
        raise UserError(
            f"{behind} got as far as '{doctors[least]}', and {ahead}, of another seed, as far as "
            f"'{doctors[most]}': go on with {goes_on(behind)}, leave it out, or put every "
            "run by itself with --apart"
        )


def _single_seeds(sides: Sequence[Side]) -> Iterator[str]:
    """A line where differences rest on policies that were trained with a single seed.

    The intervals by patient say nothing of that seed, however narrow they are.
    """
    paired = [side for side in sides if side.alike]
    single = [side for side in paired if not side.pooled and side.traits.training_seeds]
    if len(paired) < 2 or not single:
        return
    seeds = {side.row: "/".join(map(str, side.traits.training_seeds)) for side in single}
    named = ", ".join(f"{row} (seed {seed})" for row, seed in seeds.items())
    same = len(set(seeds.values())) == 1
    if len({side.traits.key for side in paired}) == 1:
        if not same:
            yield f"{named}: they differ by their seed alone, so their differences are the seeds'"
    elif not same:
        yield (
            f"trained with one seed each, and not with the same: {named}. What the seeds do and "
            "what the methods do cannot be told apart: train each with the same seeds, several "
            "of them"
        )
    else:
        yield (
            f"trained with one seed: {named}. The intervals are about other patients, and do not "
            "cover seeds: how far another one would lead cannot be told. Train with several"
        )


def _lacking(side: Side) -> Iterator[str]:
    """A line where some patients have no verdict in some of the seeds."""
    if not side.pooled:
        return
    judged = [
        {each.case_id for each in outcomes if value(each, "accuracy") is not None}
        for outcomes in side.played.values()
    ]
    lacking = side.entry["cases"] - len(set.intersection(*judged))
    if lacking:
        failed = side.entry["endings"].get(Ending.FAILED, 0)
        why = f" ({failed:,} {'episode' if failed == 1 else 'episodes'} failed)" if failed else ""
        yield (
            f"{side.row}: {lacking:,} of {side.entry['cases']:,} patients have no verdict in some "
            f"of the seeds{why}; they count in the other seeds alone"
        )


def as_json(sides: Sequence[Side], notes: Sequence[str]) -> dict[str, Any]:
    """All figures as JSON values: every side's entry, its runs, and its lead over the first."""
    first = sides[0]
    return {
        "first": first.label,
        "groups": {
            side.label: {
                "runs": {seed: str(run.path) for seed, run in side.runs.items()},
                "doctors": dict(side.doctors),
                **side.entry,
                **({"learning": side.learned} if side.learned else {}),
                **({} if side is first or not side.alike else _leads(side, first)),
            }
            for side in sides
        },
        "notes": [
            *notes,
            *(
                f"{side.row} and {first.row} have no case in common: no paired difference."
                for side in sides
                if not side.alike
            ),
        ],
    }


def _leads(side: Side, first: Side) -> dict[str, Any]:
    known = {change.metric: change.lead for change in side.changes}
    leads = {
        metric: known.get(metric) or lead(side.played, first.played, metric, side.run.seed)
        for metric in side.entry
        if all(tables.level(each.entry, metric) is not None for each in (side, first))
    }
    return {
        "lead": {
            metric: {**gap, "verdict": tables.verdict(tables.gap_of(gap))}
            for metric, gap in leads.items()
        },
        "lead_by_disease": {each.disease: each.as_json() for each in side.diseases},
    }
