"""A review's folder.

review.json       the questions, the items, and whose episodes they show
episodes.sqlite   copies of the drawn episodes, as in a run folder; doctors have numbers for names
answers.sqlite    the reviewers and what they have said (see answers.py)

What was drawn is copied: runs that are moved, changed or deleted afterwards change no review.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from workup.core.disk import whole_folder
from workup.core.episode import Ending
from workup.core.errors import UserError, unknown
from workup.core.shapes import FrozenModel
from workup.report.suite import is_suite
from workup.report.tables import Ends
from workup.runs import Record, Run
from workup.runs.files import clear_errors, read_json, write_json
from workup.runs.store import EpisodeStore
from workup.runs.untouched import Untouched
from workup.studies.review import drawing
from workup.studies.review.answers import Answers
from workup.studies.review.drawing import Played, ReviewItem
from workup.studies.review.form import Form

FORMAT = 1
SEEDS = 2**32


class ReviewedDoctor(FrozenModel):
    """Whose episodes these are; reviewers are not told. `label` is the name in results."""

    label: str
    run: str
    path: str
    doctor: str


class Manifest(FrozenModel):
    """The content of review.json."""

    format: Literal[1]
    seed: int
    pairs: bool
    restricted: bool
    truth: bool
    questions: Form
    doctors: tuple[ReviewedDoctor, ...] = Field(min_length=1)
    items: tuple[ReviewItem, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Review:
    """A review that was made; `records` are the copied episodes."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> Review:
        """The review in a folder. Raises UserError for none, a damaged one, or a newer format."""
        file = path / "review.json"
        if not file.is_file():
            what = "is no review (it has no review.json)" if path.exists() else "does not exist"
            raise UserError(f"{path} {what}; type `workup review make RUN --out {path}` for one")
        held = read_json(file)
        if isinstance(made := held.get("format"), int) and made > FORMAT:
            raise UserError(f"{file} was written by a newer workup (format {made}); update workup")
        try:
            return cls(path, Manifest.model_validate(held))
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
            raise UserError(
                f"{file}, field '{where}': this file is damaged; restore it from a copy"
            ) from None

    @property
    def form(self) -> Form:
        return self.manifest.questions

    @property
    def items(self) -> Sequence[ReviewItem]:
        return self.manifest.items

    @property
    def answers(self) -> Answers:
        """What was said so far."""
        return Answers(self.path / "answers.sqlite")

    def records(self, item: ReviewItem) -> list[Record]:
        """The episodes of an item, the left one first; the doctor's name is its number.

        Raises UserError where the copy of one is missing.
        """
        store = Untouched(self.path / "episodes.sqlite")
        found = []
        for shown in item.sides:
            where = {"doctor": str(shown.doctor), "case": item.case, "sample": shown.sample}
            record = next(iter(store.read(where)), None)
            if record is None:
                raise UserError(f"{store.path}: an episode of '{item.case}' is missing; restore it")
            found.append(record)
        return found


@dataclass(frozen=True, slots=True)
class ReviewPlan:
    """What a review is to hold; `doctors` are names of evaluated doctors, or none for default.

    Without a `seed` one is drawn: reviewers who know it know which side is whose.
    """

    form: Form
    cases: int
    pairs: bool
    seed: int | None = None
    doctors: Sequence[str] = ()
    truth: bool = True


def make(paths: Sequence[Path], plan: ReviewPlan, out: Path) -> Review:
    """Draws a review from the runs in `paths`, which stay as they are, and writes it.

    Raises UserError where the runs cannot be compared, or `out` exists already.
    """
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out")
    chosen = list(_chosen(paths, plan.doctors))
    if plan.pairs and len(chosen) < 2:
        raise UserError(
            "--pairs needs two doctors: name a second run, or two doctors of this one, as in "
            "--doctor 'warm start' --doctor trained"
        )
    played = [_played(run, doctor) for run, doctor in chosen]
    if not drawing.common(played):
        raise UserError("there is no case that all of these doctors have played to its end")
    seed = secrets.randbelow(SEEDS) if plan.seed is None else plan.seed
    items = (drawing.pairs if plan.pairs else drawing.singles)(played, plan.cases, seed)
    with clear_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(out) as draft:
            draft.chmod(0o700)
            _copy(chosen, items, draft / "episodes.sqlite")
            manifest = Manifest(
                format=FORMAT,
                seed=seed,
                pairs=plan.pairs,
                restricted=any(bool(run.config.get("restricted")) for run, _ in chosen),
                truth=plan.truth,
                questions=plan.form,
                doctors=tuple(_doctors(chosen)),
                items=tuple(items),
            )
            write_json(draft / "review.json", manifest.model_dump(mode="json"))
    return Review(out, manifest)


def _copy(chosen: Sequence[tuple[Run, str]], items: Sequence[ReviewItem], file: Path) -> None:
    """Copies the drawn episodes, each under its doctor's number.

    Raises UserError where two doctors had different patients under one id.
    """
    store = EpisodeStore(file)
    patients: dict[str, tuple[str, str]] = {}
    for item in items:
        for shown in item.sides:
            run, doctor = chosen[shown.doctor]
            record = run.evaluated(doctor, case=item.case, sample=shown.sample)[0]
            case = record.episode.case
            patient = (case.presentation, case.truth.diagnosis)
            if patients.setdefault(item.case, patient) != patient:
                raise UserError(
                    f"{run.path}: its case '{item.case}' is another patient than in the runs "
                    "before it; review runs on the same cases together"
                )
            store.write([replace(record, doctor=str(shown.doctor))])
    store.close()


def _chosen(paths: Sequence[Path], names: Sequence[str]) -> Iterator[tuple[Run, str]]:
    """The runs with the doctors that are reviewed of each."""
    runs = [Run.open(path, Untouched) for path in dict.fromkeys(path.resolve() for path in paths)]
    evaluated = {run.path: run.doctors() for run in runs}
    for name in names:
        if not any(name in own for own in evaluated.values()):
            raise unknown("evaluated doctor", name, {n for own in evaluated.values() for n in own})
    for run in runs:
        if is_suite(run):
            raise UserError(f"{run.path} is a suite; name evaluations of it, in {run.path}/runs")
        own = evaluated[run.path]
        if not own:
            raise UserError(f"{run.path}: nobody has been evaluated in this run")
        named = [name for name in dict.fromkeys(names) if name in own]
        chosen = named if names else [Ends.of(own, run.anchors).after or own[0]]
        yield from ((run, name) for name in chosen)


def _played(run: Run, doctor: str) -> Played:
    """The samples of each case in the doctor's last evaluation; failed episodes are left out."""
    done = [each for each in run.outcomes(doctor) if each.ending != Ending.FAILED]
    return {
        case: [each.sample for each in own]
        for case, own in groupby(done, key=lambda each: each.case_id)
    }


def _doctors(chosen: Sequence[tuple[Run, str]]) -> Iterator[ReviewedDoctor]:
    """Their names in results: the doctor's where there is one run, else with its run's."""
    alone = len({run.path for run, _ in chosen}) == 1
    names = [doctor if alone else f"{run.name}: {doctor}" for run, doctor in chosen]
    for name, (run, doctor) in zip(names, chosen, strict=True):
        label = name if names.count(name) == 1 else f"{run.path}: {doctor}"
        yield ReviewedDoctor(label=label, run=run.name, path=str(run.path), doctor=doctor)
