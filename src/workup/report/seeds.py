"""Which of the compared runs differ by their seed alone, and what to call them together.

Two runs belong together if all their settings are equal but the seed, what no result depends on
(`settings.CHANGEABLE`), and the names of folders. Where both began with the policy of a run, or
evaluate one, these runs may differ by their seed in turn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from workup.core.errors import UserError
from workup.runs import Run
from workup.runs.policies.unseen import played_cases, start_of
from workup.runs.settings import CHANGEABLE, CHANGEABLE_ENDPOINT, flat

MOST = 3  # settings that a name may hold
PLACES = (".", "policy")  # where in a run folder its trained policy lies


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ by their seed alone, by seed; a run that stands by itself is one, too.

    `traits` are those of one of them.
    """

    label: str
    runs: Mapping[str, Run]
    traits: Traits


@dataclass(frozen=True)
class Traits:
    """What a run is, apart from its seed.

    `settings` are flat, with the cases as they were played. `start` is the run that its policy
    comes from, whose method stands for the policy in `settings`. `seeds` are the run's own and
    those of the runs it started from, the newest first.
    """

    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    start: Traits | None

    @property
    def key(self) -> str:
        """Equal for runs that differ by their seed alone."""
        inner = self.start.key if self.start else None
        return json.dumps([self.settings, inner], sort_keys=True, default=str)

    @property
    def training_seeds(self) -> tuple[int, ...]:
        """The seeds that its policy was trained with, the newest first; () of one that was not."""
        before = self.start.training_seeds if self.start else ()
        return (self.seeds[0], *before) if "method" in self.settings else before

    @property
    def head(self) -> str:
        """The method, or the evaluated policy."""
        return str(self.settings.get("method", self.settings.get("policy")))


def of(run: Run) -> Traits:
    return _traits(run, ())


def _traits(run: Run, later: tuple[str, ...]) -> Traits:
    """`later` are the folders of the runs that started from this one."""
    (scheme, place, view), split = played_cases(run)
    given = run.settings | {"cases": f"{scheme}:{place}{'#' if view else ''}{view}", "split": split}
    settings = {
        name: value
        for name, value in flat(given)
        # No policy depends on how its training was evaluated.
        if not (_changeable(name) or (later and name.startswith("evaluation.")))
    }
    seeds: tuple[int, ...] = (run.seed,)
    start: Traits | None = None
    before = start_of(run)
    here = (*later, str(run.path.resolve()))
    if before is not None and str(before[0].path.resolve()) not in here:
        with before[0] as inner:
            start = _traits(inner, here)
        seeds += start.seeds
        place = "" if before[1] in PLACES else f" {before[1]}"
        settings["policy"] = start.head + place
    return Traits(settings, seeds, start)


def _changeable(name: str) -> bool:
    if name.startswith("endpoints."):
        return name.rpartition(".")[2] in CHANGEABLE_ENDPOINT
    return name == "seed" or name in CHANGEABLE


def grouped(runs: Sequence[Run], *, apart: bool = False) -> tuple[list[SeedGroup], list[str]]:
    """The runs by groups, in the order of their first runs, and what a reader has to know of them.

    A group has its runs in the order of their seeds. With `apart` every run stands by itself. Runs
    that do not differ at all, with no other seed beside them, do so too. Raises UserError for a
    seed that a group has twice.
    """
    traits = [of(run) for run in runs]
    together: dict[str, list[int]] = {}
    for place, each in enumerate(traits):
        together.setdefault(f"{place}" if apart else each.key, []).append(place)
    found: list[list[int]] = []
    for places in together.values():
        copies = len({traits[place].seeds for place in places}) == 1
        found += [[place] for place in places] if copies else [places]
    found.sort()
    names = _seeds([[traits[place].seeds for place in places] for places in found])
    labels = _labels(runs, traits, found)
    groups = [
        _group(label, [runs[place] for place in places], seeds, traits[places[0]])
        for label, places, seeds in zip(labels, found, names, strict=True)
    ]
    return groups, [] if apart else list(_other_patients(runs, traits, found))


def _group(label: str, runs: Sequence[Run], seeds: Sequence[str], traits: Traits) -> SeedGroup:
    for seed, count in Counter(seeds).items():
        if count > 1:
            twice = [run.path for run, own in zip(runs, seeds, strict=True) if own == seed]
            raise UserError(
                f"{twice[0]} and {twice[1]} have the same settings and the same seed, {seed}: name "
                "one of them, or put every run by itself with --apart"
            )
    order = sorted(range(len(runs)), key=lambda k: [int(part) for part in seeds[k].split("/")])
    return SeedGroup(label, {seeds[k]: runs[k] for k in order}, traits)


def _seeds(groups: Sequence[Sequence[tuple[int, ...]]]) -> list[list[str]]:
    """What to call each run's seed: its own, where that tells the runs of every group apart.

    Else that of the run they started from, and so on; else all of them, as in "0/1". A run by
    itself that started from no other keeps its own.
    """
    several = [group for group in groups if len(group) > 1]
    for place in range(min((len(seeds) for group in several for seeds in group), default=1)):
        if all(len({seeds[place] for seeds in group}) == len(group) for group in several):
            return [[str(seeds[min(place, len(seeds) - 1)]) for seeds in group] for group in groups]
    return [["/".join(map(str, seeds)) for seeds in group] for group in groups]


def _other_patients(
    runs: Sequence[Run], traits: Sequence[Traits], groups: Sequence[Sequence[int]]
) -> Iterator[str]:
    """Lines on runs that would be pooled if they had been tested on the same patients."""
    known: dict[str, int] = {}
    for first, *_ in groups:
        each = traits[first]
        other = known.setdefault(_on_any_split(each).key, first)
        if other != first and traits[other].seeds != each.seeds:
            yield (
                f"{runs[other].path} and {runs[first].path} differ by their seed, and by their "
                "split as well: their patients are others, so they stand apart"
            )


def _on_any_split(traits: Traits) -> Traits:
    """The traits without the split, that of the runs before included."""
    rest = {name: value for name, value in traits.settings.items() if name != "split"}
    return Traits(rest, traits.seeds, _on_any_split(traits.start) if traits.start else None)


# --- names ----------------------------------------------------------------------------------------


def _labels(
    runs: Sequence[Run], traits: Sequence[Traits], groups: Sequence[Sequence[int]]
) -> list[str]:
    """A run by itself has its folder's name, or its path where two have the same.

    A group has the method or the evaluated policy, unless all have the same, and the settings in
    which it differs from those that do; where these are many, what its runs' names share: "warm*".
    Where they share nothing, it has its first run's name: "x and 1 more".
    """
    folders = [run.name for run in runs]
    names = [run.name if folders.count(run.name) == 1 else str(run.path) for run in runs]
    kinds = [traits[places[0]] for places in groups]
    labels = [
        _told(own, kinds) if len(places) > 1 else names[places[0]]
        for places, own in zip(groups, kinds, strict=True)
    ]
    shared = [
        f"{commonprefix([names[place] for place in places])}*"  # noqa: RUF071 (letters, not folders)
        for places in groups
    ]
    otherwise = [
        both
        if both != "*" and shared.count(both) == 1
        else f"{names[places[0]]} and {len(places) - 1} more"
        for both, places in zip(shared, groups, strict=True)
    ]
    return [
        label if len(places) == 1 or (label and labels.count(label) == 1) else other
        for label, other, places in zip(labels, otherwise, groups, strict=True)
    ]


def _told(own: Traits, everyone: Sequence[Traits]) -> str:
    """Empty where it would be too long."""
    rivals = [each for each in everyone if each.head == own.head]
    settings = list(_differing(own, rivals))
    if len(settings) > MOST:
        return ""
    head = [] if settings and len(rivals) == len(everyone) else [own.head]
    return ", ".join([*head, *settings])


def _differing(own: Traits, rivals: Sequence[Traits]) -> Iterator[str]:
    """ "steps=68", and "policy.steps=20" of the run that the policy comes from."""
    for name, value in own.settings.items():
        if any(each.settings.get(name, value) != value for each in rivals) or any(
            name not in each.settings for each in rivals
        ):
            yield f"{name}={_text(value)}"
    alike = [each for each in rivals if each.settings.get("policy") == own.settings.get("policy")]
    starts = [each.start for each in alike if each.start is not None]
    if own.start is not None:
        yield from (f"policy.{text}" for text in _differing(own.start, starts))


def _text(value: object) -> str:
    """As on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return json.dumps(value, default=str)
