"""Which cases a policy is evaluated on, and whether it was trained on any of them.

A run records its cases, its split, and what its initial policy was trained on. So the cases that a
trained policy has not seen are the test side of its own split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workup.cases import open_source
from workup.cases.files import Split, every_case, with_ids
from workup.core.case import Case, Source
from workup.core.errors import UserError
from workup.models import hub
from workup.runs import Run
from workup.runs.folder import no_run
from workup.runs.policies import OURS, Resolved, resolve
from workup.runs.policies.trained import Trained, found_from, place_of, view_of

JSONL = "jsonl"  # a source whose files hold any cases


def start_of(run: Run) -> tuple[Run, str] | None:
    """The run whose policy `run` began with or evaluated, and where in its folder that lies.

    None where the policy comes from no run that exists. A relative path starts as in `found_from`.
    """
    policy = str(run.config.get("policy"))
    near = (folder / policy for folder in (*run.path.resolve().parents, Path()))
    path = next((each for each in near if policy not in OURS and each.exists()), None)
    folder = None if path is None else resolve(str(path)).run
    if path is None or folder is None or folder.resolve() == run.path.resolve():
        return None
    return Run.open(folder), path.relative_to(folder).as_posix()


def own_cases(policies: Sequence[Resolved]) -> str:
    """The cases that the trained policies among `policies` were trained on.

    For an evaluation whose cases were not named. Raises UserError if no policy was trained by a
    run, for the path of a run that does not exist, or if they were trained on different cases.
    """
    for each in policies:
        if each.place is None and hub.is_path(each.name):
            raise UserError(no_run(Path(each.name).expanduser()))
    newest = {each.name: each.history[0].spec for each in policies if each.history}
    if not newest:
        raise UserError(
            "--cases is missing: SCHEME:REST, as in clinic:s or ddxplus:FOLDER (`workup "
            "sources` lists all); only a run has cases of its own, unlike "
            f"{_named(policies)}"
        )
    if len(set(map(view_of, newest.values()))) > 1:
        trained = " and ".join(f"{policy} on {cases}" for policy, cases in newest.items())
        raise UserError(f"--cases is missing: {trained} were trained on different cases; name some")
    return next(iter(newest.values()))


def _named(policies: Sequence[Resolved]) -> str:
    return " and ".join(each.name for each in policies)


def open_unseen(
    spec: str, policies: Sequence[Resolved], split: Split | None = None, *, strict: bool = False
) -> tuple[Source, Split | None]:
    """The source `spec` with the cases to evaluate `policies` on as its test side; and its split.

    Without a `split`, it is the one that the policies were trained in. If none of them was trained
    on these cases and the cases came as one set, all of them are the test side, and the split is
    None. `strict` is `open_source`'s. Raises UserError for policies that were trained on these
    cases in different splits, and what `open_source` raises.
    """
    if split is not None:
        return open_source(spec, split=split, strict=strict), split
    known = [each.history for each in policies if each.history]
    here = [[one.split for one in trained if one.of(spec)] for trained in known]
    newest = {splits[0] for splits in here if splits}
    if len(newest) > 1:
        splits = sorted(map(str, newest))
        raise UserError(
            f"{_named(policies)} were trained in different splits of {spec}: "
            f"{', '.join(splits)}. Name one, as in split={splits[0]}, and set "
            "evaluation.seen=true, since no test side is unseen by all of them"
        )
    elsewhere = known[0][0].split if known else 0
    chosen = next(iter(newest), elsewhere if isinstance(elsewhere, int) else 0)
    source = open_source(spec, split=chosen, strict=strict)
    if source.undivided and not newest:
        return every_case(source), None
    return source, chosen


@dataclass(frozen=True, slots=True)
class Met:
    """How many of `played` cases a policy was trained on, and in which run; None if unknown."""

    policy: str
    trained: Trained
    count: int | None
    played: int
    why: str = ""

    def __str__(self) -> str:
        by = self.trained.run
        who = self.policy if by == self.policy else f"{self.policy}, which goes on from {by},"
        where = f"{self.trained.cases}, split {self.trained.split}"
        if self.count is None:
            return f"whether {who} was trained on these cases is not known: {self.why}"
        return f"{who} was trained on {self.count:,} of these {self.played:,} cases ({where})"


def met(
    cases: Sequence[Case], spec: str, split: Split | None, policies: Sequence[Resolved]
) -> Iterator[Met]:
    """How many of `cases` each of `policies` was trained on.

    `cases` are those of `spec` in `split`. In the same file or folder, two cases are the same if
    their ids are equal. In another one, ids like 1, 2, 3 may be other patients', so the
    presentation has to be equal as well.
    """
    for policy in policies:
        for trained in policy.history:
            if (view_of(trained.spec), trained.split) == (view_of(spec), split):
                continue  # these cases are the other side of the same split
            try:
                count = _shared(cases, spec, trained)
            except UserError as error:
                yield Met(policy.name, trained, None, len(cases), str(error))
            else:
                if count:
                    yield Met(policy.name, trained, count, len(cases))


def refuse_met(
    cases: Sequence[Case],
    spec: str,
    split: Split | None,
    policies: Sequence[Resolved],
    *,
    allowed: bool,
) -> list[str]:
    """What the reader has to know of cases that `policies` were trained on.

    Raises UserError if there are such cases, unless that is `allowed`.
    """
    found = list(met(cases, spec, split, policies))
    known = next((one for one in found if one.count), None)
    if known is not None and not allowed:
        trained = known.trained
        hint = "choose other cases"
        if place_of(trained.spec) == place_of(spec):
            hint = f"{trained.cases} with split={trained.split} holds cases that it has not seen"
        raise UserError(f"{known}: {hint}; to play them all the same, set evaluation.seen=true")
    return [str(one) for one in found]


def played_cases(run: Run) -> tuple[tuple[str, str, str], Split | None]:
    """The source that a run was evaluated on, and the split; None if it played a file whole."""
    source = view_of(found_from(str(run.path), str(run.config.get("cases"))))
    return source, run.config.get("split")


def alike(one: Run, other: Run) -> bool:
    """Whether cases with the same id are the same cases in the evaluations of both runs.

    They are the same if source and split are equal, or if the source is and one of the runs played
    it whole. The ids of another source, or of another split of a source that generates its cases,
    may be other patients'.
    """
    (source, split), (theirs, other_split) = played_cases(one), played_cases(other)
    return source == theirs and (split == other_split or None in (split, other_split))


def counted(source: Source, played: int, split: Split | None) -> str:
    """How many of the cases of `source` are played, in words."""
    whole, left = len(source.test), len(source.train)
    kind = "cases" if split is None or not left else "test cases"
    rest = f" (split {split}; {left:,} more are for training)" if split is not None and left else ""
    if played == whole:
        return f"all {whole:,} {kind} of {source.name}{rest}"
    some = f"{played:,} of {whole:,} {kind} of {source.name}{rest}, evenly spaced"
    return f"{some}; evaluation.cases={whole} plays all"


def _shared(cases: Sequence[Case], spec: str, trained: Trained) -> int:
    """How many of `cases` are on the side that was trained on."""
    schemes = {spec.partition(":")[0], trained.cases.partition(":")[0]}
    if len(schemes) > 1 and JSONL not in schemes:
        return 0
    by_id = {case.id: case for case in cases}
    side = open_source(trained.spec, split=trained.split).train
    same = place_of(trained.spec) == place_of(spec)
    known = with_ids(side, by_id)
    return sum(same or case.presentation == by_id[case.id].presentation for case in known)
