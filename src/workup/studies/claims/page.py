"""The verdicts on a paper's claims: one page, one JSON file, one table in the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workup.core.crossed import Decision, adjusted, wrong_by_chance
from workup.core.statistics import mean_of
from workup.metrics.known import metric
from workup.report import curves
from workup.report.plotting import (
    COLOURS,
    Drawing,
    Key,
    figure,
    panel,
    row_points,
    rowed,
    series,
    series_key,
    smooth,
    tidy,
)
from workup.report.sheets import Sheet
from workup.report.tables import chance, gap_text, signed
from workup.runs.words import DASH, TRAINED, duration, finer, number
from workup.studies.base.result import Result, Section
from workup.studies.claims import AREA, LESS, Beginning, Claim, Scale, ScaleName
from workup.studies.claims.decided import FEWEST, OWN, ClaimFinding, Ended, counted, left_out
from workup.studies.claims.figures import FIGURES

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    **{"": "{}", AREA: "{}, over the training curve"},
    **{name: figure.title for name, figure in FIGURES.items()},
}
EACH = "accuracy of each seed"
PARTS = 5
"""Into how many parts an arm's training is cut, to show in figures how it learned."""

TALL, ROW = 0.55, 0.24  # inches: of a figure without rows, and of a row
WIDE = 4.6


@dataclass(frozen=True)
class ClaimVerdicts(Result):
    """What was found of the claims of one paper at one scale.

    `commands` has, for a set-up, what is typed for each arm with its first seed. `failed` has the
    reason of every run that failed. `made` says which version on which machine.
    """

    titled = "{paper}: its claims, {scale}"

    paper: str
    scale: ScaleName
    findings: Sequence[ClaimFinding]
    runs: Mapping[str, Sequence[Ended]]
    about: Mapping[str, str]
    commands: Mapping[str, Mapping[str, str]]
    failed: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> Mapping[str, str]:
        """Verdict → how many claims have it, as "4", or "4 and 1 of ours" beside the paper's."""
        told = {name: [str(count)] for name, count in self.counts.items()}
        for name, count in self._counted(ours=True).items():
            told.setdefault(name, []).append(f"{count} of ours")
        return {name: " and ".join(counts) for name, counts in told.items()}

    @property
    def counts(self) -> Mapping[str, int]:
        """Verdict → number of the paper's claims; a number of seeds behind it does not part them.

        Ours are not counted.
        """
        return self._counted(ours=False)

    def _counted(self, *, ours: bool) -> dict[str, int]:
        """The verdicts on our claims or on the paper's, the commonest first."""
        told = (each.verdict for each in self.findings if each.claim.ours == ours)
        return dict(Counter(verdict.partition(",")[0] for verdict in told).most_common())

    def sections(self) -> Sequence[Section]:
        shown = [Section("Claims", self.tables(), lambda: forest(self.findings), CAPTION)]
        for name, runs in self.runs.items():
            if runs:
                sheets = [levels(runs), commands(self.commands[name])]
                heading = f"Set-up: {name.replace('-', ' ')}"
                about = self.about[name]
                shown.append(Section(heading, sheets, partial(learned, runs), about=about))
        return shown

    def show(self, console: Console) -> None:
        """Prints the verdicts, the arms, and what a reader has to know."""
        if self.have:
            decided(self.have).show(console)
        for found in self.lack:
            line = f"{found.claim.id}: {found.verdict}: {found.reason}"
            console.print(line, markup=False, soft_wrap=True)
        for name, runs in self.runs.items():
            if runs:
                replace(levels(runs), title=name).show(console)
        for note in self.notes():
            console.print(note, markup=False, soft_wrap=True)

    @property
    def have(self) -> list[ClaimFinding]:
        """The claims that have a figure."""
        return [each for each in self.findings if each.difference is not None]

    @property
    def lack(self) -> list[ClaimFinding]:
        """Those that have none."""
        return [each for each in self.findings if each.difference is None]

    def tables(self) -> list[Sheet]:
        """The verdicts, the claims without a figure, and what every claim says."""
        found = [decided(self.have)] if self.have else []
        return [*found, *([undecidable(self.lack)] if self.lack else []), stated(self.findings)]

    def notes(self) -> Sequence[str]:
        failed = [f"{name} failed: {why}" for name, why in self.failed.items()]
        return [*notes_on(self.rows()), *failed]

    def as_json(self) -> dict[str, Any]:
        """Findings, levels of the arms, commands and provenance, without any patient's values."""
        return {
            **{"paper": self.paper, "scale": self.scale, "made": dict(self.made)},
            "counts": dict(self.counts),
            "claims": self.rows(),
            "notes": list(self.notes()),
            "setups": {
                name: {
                    "about": self.about[name],
                    "commands": dict(self.commands[name]),
                    "arms": arms(runs),
                }
                for name, runs in self.runs.items()
                if runs
            },
        }

    def rows(self) -> list[dict[str, Any]]:
        """The findings as JSON values, those with a figure with their adjusted p as well."""
        chances = adjusted([each.p for each in self.have])
        known = dict(zip((each.claim.id for each in self.have), chances, strict=True))
        found = {name: None if math.isnan(p) else p for name, p in known.items()}
        return [row(each) | {"adjusted_p": found.get(each.claim.id)} for each in self.findings]


def held_by_chance(enough: int) -> str:
    """How many of `enough` claims with a figure would be held if nothing differed, in words."""
    return (
        f"Claims with a figure of at least {FEWEST} seeds: {enough}. If nothing differed, "
        f"{number('accuracy', wrong_by_chance(enough))} of them would be held by chance, and as "
        "many refuted; more where seeds were added because of a verdict."
    )


def notes_on(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader has to know of these rows of `row`."""
    have = [each for each in claims if each["difference"] is not None]
    told = []
    if enough := sum(each["difference"]["seeds"] >= FEWEST for each in have):
        told.append(held_by_chance(enough))
    if any(count for each in have for count, _ in each["rising"].values()):
        told.append(
            "A verdict on runs that were still rising is about policies that had not finished "
            "learning."
        )
    told += filter(None, map(two_groups, have))
    return [*told, *(f"{each['id']}: {each['reason']}" for each in have if each["reason"])]


APART = 0.2
"""Differences of shares by seed stand in two groups where none lies in a gap as wide as this."""


def two_groups(claim: Mapping[str, Any]) -> str:
    """What makes the mean of a claim's seeds doubtful, of a row of `row`; "" where nothing does.

    The interval takes figures that spread evenly for granted (`workup.core.crossed`).
    """
    name, found = claim["written_as"], sorted(claim["by_seed"].values())
    if not metric(name).share or len(found) < FEWEST:
        return ""
    gap, above = max((b - a, k) for k, (a, b) in enumerate(pairwise(found), start=1))
    if gap < APART:
        return ""
    sides = []
    for seeds in (found[:above], found[above:]):
        ends = dict.fromkeys(signed(name, seeds[place]) for place in (0, -1))
        sides.append(f"{len(seeds)} at {' to '.join(ends)}")
    return (
        f"{claim['id']}: its seeds stand in two groups ({', '.join(sides)}). An interval around "
        "their mean does not fit that."
    )


CAPTION = (
    "The difference that a claim is about, in the direction in which the paper expects it to be "
    "above 0, with its 95 % interval over patients and seeds (of whole runs: over seeds). The band "
    "between dotted lines is the margin, below which a difference is called small. A diamond is "
    "what the paper reports, if its measure is ours."
)


def row(found: ClaimFinding) -> dict[str, Any]:
    """A finding as JSON values."""
    claim = found.claim.model_dump(mode="json", exclude_defaults=True)
    gap = found.difference
    return {
        **claim,
        "place": source(found.claim),
        "compared": side_text(found.claim).replace("`", ""),
        "written_as": found.claim.written_as,
        "expected": towards(found.claim),
        "verdict": found.verdict,
        "reason": found.reason,
        "difference": gap.as_json() if gap else None,
        "detectable": found.detectable,
        "ours": found.ours,
        "theirs": found.theirs,
        "by_seed": {str(seed): value for seed, value in (found.each or {}).items()},
        "rising": {arm: list(counts) for arm, counts in (found.rising or {}).items()},
    }


def decided(found: Sequence[ClaimFinding]) -> Sheet:
    """The claims with their verdicts."""
    chances = adjusted([each.p for each in found])
    rows = []
    for each, p in zip(found, chances, strict=True):
        claim, gap = each.claim, each.difference
        assert gap is not None
        name, more = claim.written_as, finer(claim.written_as, gap.half)
        rows.append(
            (
                claim.id,
                each.verdict,
                gap_text(name, gap),
                number(name, each.detectable, more),
                DASH if (paper := towards(claim)) is None else signed(name, paper, more),
                f"{number(name, each.ours)}, {number(name, each.theirs)}",
                str(gap.seeds),
                rising_text(*rising(each)),
                DASH if math.isnan(p) else chance(p),
            )
        )
    headings = (
        *("claim", "verdict", "difference", "detectable"),
        *("in the paper", "the two", "seeds", "still rising", "adjusted p"),
    )
    note = (
        "Detectable: the true difference that these seeds and patients find with power .8. "
        f"Adjusted p: Benjamini and Hochberg, over these claims. Both from {FEWEST} seeds on."
    )
    return filled(Sheet(headings, rows, "Verdicts", note, words=2))


def filled(sheet: Sheet) -> Sheet:
    """A table without the columns of figures that hold nothing but dashes."""
    kept = [
        place
        for place in range(len(sheet.headings))
        if place < sheet.words or any(row[place] != DASH for row in sheet.rows)
    ]
    headings = [sheet.headings[place] for place in kept]
    return replace(
        sheet, headings=headings, rows=[[row[place] for place in kept] for row in sheet.rows]
    )


def undecidable(found: Sequence[ClaimFinding]) -> Sheet:
    """The claims without a figure, and why."""
    rows = [(each.claim.id, each.verdict, each.reason) for each in found]
    return Sheet(("claim", "verdict", "why"), rows, "Without a figure", words=3)


def stated(found: Sequence[ClaimFinding]) -> Sheet:
    """What every claim says, where the paper says it, and what is compared here."""
    rows = [
        (each.claim.id, each.claim.says, source(each.claim), side_text(each.claim))
        for each in found
    ]
    headings = ("claim", "what the paper says, in our words", "where", "compared here")
    return Sheet(headings, rows, "What is claimed", words=4)


def source(claim: Claim) -> str:
    """Where the paper makes the claim; that it is ours, where it does not."""
    return f"ours, beside {claim.place}" if claim.ours else claim.place


def towards(claim: Claim) -> float | None:
    """The paper's difference with the sign of better − than; None where it reports none.

    It is None for an area as well (`Claim.comparable`).
    """
    if claim.comparable is None:
        return None
    return -claim.comparable if claim.lower else claim.comparable


def side_text(claim: Claim) -> str:
    """ "exact reader: `crit` − `recall`", "accuracy: (`a` − `b`) − (`c` − `d`)" """
    if claim.cannot:
        return DASH
    title = TITLES[claim.of_run].format(metric(claim.measure).title)
    other = f" ({metric(claim.than_measure).title})" if claim.than_measure else ""
    where = f" of {claim.where}" if claim.where else ""
    sides = []
    for side in (claim.better, claim.than):
        if isinstance(side, str):
            arms = " − ".join(f"`{arm.strip()}`" for arm in side.split(LESS, 1))
            sides.append(f"({arms})" if LESS in side else arms)
        else:
            sides.append(f"{side:g}")
    return f"{title}{where}: {' − '.join(sides)}{other}"


def rising(found: ClaimFinding) -> tuple[int, int]:
    """How many of the compared runs were still rising, and of how many this can be told."""
    counts = (found.rising or {}).values()
    return sum(count for count, _ in counts), sum(told for _, told in counts)


def rising_text(count: int, told: int) -> str:
    """ "2 of 5"; a dash where it can be told of none: no reward drove them, or for too few steps"""
    return f"{count} of {told}" if told else DASH


def arms(runs: Sequence[Ended]) -> dict[str, Any]:
    """Arm → the figures of each seed, how its runs learned, and how many were still rising.

    `updates` and `learned` are those of `curves.averaged` over the seeds: how many updates they
    made, and the accuracy of the training episodes in each of `PARTS` equal parts of them. `rising`
    is None where it can be told of no run.
    """
    found: dict[str, Any] = {}
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        count, told = counted(own)
        curve = curves.averaged(arm, [run.curve.lines for run in own])
        figures = {
            name: {
                str(run.seed): mean
                for run in own
                if (mean := mean_of(run.outcomes[TRAINED][name][0])) is not None
            }
            for name in OWN
        }
        found[arm] = {
            "seeds": [run.seed for run in own],
            "by_seed": {name: each for name, each in figures.items() if each},
            "updates": len(curve.lines),
            "learned": curve.parts("accuracy", PARTS),
            "rising": count if told else None,
            "seconds": fmean(run.seconds for run in own),
        }
    return found


def levels(runs: Sequence[Ended]) -> Sheet:
    """Every arm's figures: the means over its seeds, and the accuracy of each."""
    rows = []
    for arm, entry in arms(runs).items():
        means = {name: fmean(each.values()) for name, each in entry["by_seed"].items()}
        rows.append(
            (
                arm,
                *(number(name, means.get(name)) for name in OWN),
                each_seed(entry["by_seed"]),
                DASH if entry["rising"] is None else str(entry["rising"]),
                duration(entry["seconds"]),
            )
        )
    titles = [metric(name).title for name in OWN]
    return filled(Sheet(["arm", *titles, EACH, "still rising", "a run"], rows, "Arms"))


def each_seed(by_seed: Mapping[str, Mapping[str, float]]) -> str:
    """ ".74 .80": the accuracy that each seed ended with, in their order; a dash without any"""
    known = by_seed.get("accuracy", {}).values()
    return " ".join(number("accuracy", value) for value in known) or DASH


def told_patients(scale: Scale) -> list[str]:
    """A sentence on the patients that claims go by, where a scale names them."""
    if scale.patients is None:
        return []
    return [f"Claims go by {scale.patients:,} patients, whom each trained policy meets once more."]


def told_left_out(begins: Beginning | None, runs: Sequence[Ended]) -> list[str]:
    """A sentence on each seed that does not count: where it began, and where its arms ended."""
    if begins is None:
        return []
    told = []
    for seed, first in left_out(runs, begins).items():
        of = metric(begins.measure)
        ends = [
            f"{number(of.name, mean_of(run.outcomes[TRAINED][of.name][0]))} ({run.arm})"
            for run in runs
            if run.seed == seed
        ]
        told.append(
            f"Seed {seed} is left out of the claims: its policy began with {of.title} "
            f"{number(of.name, first)}, and {number(of.name, begins.least)} is needed. Its arms "
            f"ended at {', '.join(ends)}."
        )
    return told


def commands(typed: Mapping[str, str]) -> Sheet:
    """What is typed for each arm, with its first seed."""
    rows = [*typed.items()]
    return Sheet(("arm", "command"), rows, "Commands", words=2, typed=frozenset({1}))


@figure
def forest(found: Sequence[ClaimFinding]) -> Drawing | None:
    """Every claim's difference in a row, in units of its margin."""
    have = [each for each in found if each.difference is not None]
    if not have:
        return None
    ax = panel("Differences, in margins", TALL + ROW * len(have), WIDE)
    ax.axvspan(-1, 1, color=COLOURS["grid"], linewidth=0)
    for edge in (-1, 1):  # the band alone is hard to see where differences are many margins
        ax.axvline(edge, color=COLOURS["muted"], linewidth=0.7, linestyle=":")
    ax.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    for place, each in enumerate(have):
        claim, gap = each.claim, each.difference
        assert gap is not None
        unit = claim.margin * (-1 if claim.lower else 1)
        ends = sorted((gap.low / unit, gap.high / unit))
        scaled = type(gap)(gap.mean / unit, ends[0], ends[1], gap.n)
        row_points(ax, [place], [scaled], {"color": COLOURS[colour(each)], "marker": "o"})
        if towards(claim) is not None:
            ax.plot(claim.target / claim.margin, place, "D", color=COLOURS["ink"], ms=3.5)
    rowed(ax, [each.claim.id for each in have])
    ax.locator_params(axis="x", nbins=5)
    keys = [Key(name, COLOURS[look], "●") for look, name in LOOKS.items()]
    if any(towards(each.claim) is not None for each in have):
        keys.append(Key("in the paper", COLOURS["ink"], "◆"))
    return Drawing("Claims", [ax], [*keys, Key("the margin", COLOURS["muted"], "┊")])


LOOKS = {"s2": "held", "s1": "refuted", "muted": "no direction"}


def colour(found: ClaimFinding) -> str:
    """The colour of a verdict."""
    if found.verdict.startswith(Decision.HELD):
        return "s2"
    return "s1" if found.verdict.startswith(Decision.REFUTED) else "muted"


@figure
def learned(runs: Sequence[Ended]) -> Drawing | None:
    """The arms' training curves: the mean accuracy over their seeds."""
    ax = panel("accuracy of the training episodes", curves.HEIGHT + 0.4, curves.WIDE)
    keys = []
    for place, arm in enumerate(dict.fromkeys(run.arm for run in runs)):
        mean = curves.averaged(arm, [run.curve.lines for run in runs if run.arm == arm])
        if len(mean.lines) < 2:
            continue
        heights = smooth(mean.values("accuracy"), mean.window)
        ax.plot(range(1, len(heights) + 1), heights, **series(place))
        keys.append(series_key(arm, place))
    if not keys:
        return None
    tidy(ax)
    ax.set_xlabel("update")
    return Drawing("Learning curves", [ax], keys)
