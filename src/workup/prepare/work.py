"""The preparation of a file: a limited number of cases at a time, each written when it is finished.

The result is in the input's order. Nothing that is finished is done again: after a stop, the same
call goes on. A case whose model fails is neither kept nor dropped; the next call tries it again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from pydantic import ValidationError

from workup.cases.jsonl import (
    CaseLine,
    ProvenanceLine,
    keeps_sidecar,
    line_of,
    no_sidecar,
    sidecar_of,
    write_lines,
    write_sidecar,
)
from workup.core.case import Case
from workup.core.errors import BudgetError, RolloutError, UserError, WorkupError
from workup.core.ports import Model
from workup.core.shapes import first_problem
from workup.prepare import load
from workup.prepare.inputs import Input
from workup.prepare.journal import Journal
from workup.prepare.prompts import TOO_LONG, MaterialError
from workup.prepare.report import Report
from workup.prepare.steps import EXACT, Aids, Drop, Outcome, PrepareStep, StepSettings
from workup.rl.running import run_to_end

GO_ON = "everything finished is kept, and the same command goes on from there"


@dataclass(frozen=True)
class Job:
    """One step for one file.

    `model` is a spec that the opener understands, "exact", or "" where none is needed.
    """

    step: str
    input: Input
    out: Path
    model: str = ""
    settings: StepSettings | None = None
    concurrency: int = 16


@dataclass(frozen=True, slots=True)
class PrepareProgress:
    """How far it is; the three sums are of cases seen so far, earlier calls included."""

    total: int
    kept: int
    dropped: int
    failed: int

    @property
    def seen(self) -> int:
        return self.kept + self.dropped + self.failed


def prepare(
    job: Job,
    opener: Callable[[str], Model],
    show: Callable[[PrepareProgress], None] = lambda progress: None,
) -> Report:
    """Does what is left of `job`, and writes the file, its report and its journal.

    Raises UserError for what cannot be begun; WorkupError when too many cases fail, and what the
    models raise besides RolloutError, after the cases in flight are finished and written.
    KeyboardInterrupt leaves the files as they were, and all that is finished in the journal.
    """
    step = load(job.step)
    settings = job.settings or step.settings()
    aids = Aids(job.model, settings, job.input.source, opener)
    _check(job, step)
    _check_places(job.out, keeps=step.keeps_items and keeps_sidecar(job.input.source))
    header = {
        "step": job.step,
        "model": aids.names,
        "version": step.version,
        "settings": settings.recipe,
        "started": datetime.now(UTC).date().isoformat(),
    }
    with Journal(journal_of(job.out), header, private=job.input.source.restricted) as journal:
        work = _Work(job, step, aids, journal, show)
        run_to_end(work.run())
        if (reason := work.in_vain) is None:
            report = work.write()
            work.conclude()
            return report
    journal_of(job.out).unlink()
    raise reason


def journal_of(out: Path) -> Path:
    """Where the finished cases of `out` are written down."""
    return out.with_suffix(".journal")


def report_of(out: Path) -> Path:
    """The path of the drop report of `out`."""
    return out.with_suffix(".report.json")


def _check(job: Job, step: PrepareStep) -> None:
    if job.out.suffix != ".jsonl":
        raise UserError(
            f"--out {job.out}: the result is a file of JSON lines, as in --out {job.out.stem}.jsonl"
        )
    if not job.out.parent.is_dir():
        raise UserError(f"--out {job.out}: there is no folder {job.out.parent}")
    given = Path(job.input.source.name.partition(":")[2].partition("#")[0]).expanduser()
    if job.out.exists() and given.exists() and given.samefile(job.out):
        raise UserError(f"--out {job.out} is the input itself; choose another --out")
    if job.model == EXACT and step.exact is None:
        raise UserError(
            f"the step {job.step} has no exact counterpart: give --model endpoint:NAME, a model "
            "folder or a hub id"
        )
    for name, its in step.settings.model_fields.items():
        own = name not in StepSettings.model_fields
        if own and job.model == EXACT and getattr(job.settings, name, its.default) != its.default:
            raise UserError(
                f"the exact way of the step {job.step} has no setting {name}: leave it out, or "
                "give another --model"
            )


def _check_places(out: Path, *, keeps: bool) -> None:
    """Raises UserError for what would be in the way when the paid work is done.

    `keeps` says that a sidecar is written. Once the work has begun, another may be added by hand.
    """
    made = [out, journal_of(out), report_of(out), *([sidecar_of(out)] if keeps else ())]
    if odd := next((path for path in made if path.exists() and not path.is_file()), None):
        raise UserError(f"{odd} has to be written and is no file; move it, or choose another --out")
    if journal_of(out).exists():
        return
    if strange := next((path for path in made if path.exists()), None):
        raise UserError(f"{strange} exists and was not made by this command; choose another --out")
    if not keeps:
        no_sidecar(out)


@dataclass
class _Work:
    job: Job
    step: PrepareStep
    aids: Aids
    journal: Journal
    show: Callable[[PrepareProgress], None]
    # id → digest of the cases seen so far, in the order of the input
    digests: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # id → reason
    finished: int = 0  # cases done in this call, failures included
    kept: int = 0
    dropped: int = 0
    stop: WorkupError | None = None

    async def run(self) -> None:
        """Works on cases until none is left or there is a reason to stop; then counts the rest."""
        pending = self._pending()
        await asyncio.gather(*(self._worker(pending) for _ in range(self.job.concurrency)))
        while self._next(pending):
            pass

    async def _worker(self, pending: Iterator[tuple[Case, str]]) -> None:
        while self.stop is None and (found := self._next(pending)):
            case, digest = found
            try:
                await self._do(case, digest)
            except RolloutError as error:
                self._fail(case, error)
            except WorkupError as error:
                self.stop = self.stop or error
            self.show(self.progress)
            # exact steps never wait: let the others, and Ctrl-C, have their turn
            await asyncio.sleep(0)

    def _next(self, pending: Iterator[tuple[Case, str]]) -> tuple[Case, str] | None:
        """The next case to do; None at the end, or if the input cannot be read on.

        The latter is a reason to stop.
        """
        try:
            return next(pending, None)
        except WorkupError as error:
            self.stop = self.stop or error
            return None

    def _pending(self) -> Iterator[tuple[Case, str]]:
        """The cases that are not finished, as a generator that all workers share.

        So the input is read only as far as they work.
        """
        for case in self.job.input:
            if case.id in self.digests:
                raise UserError(f"{self.job.input.source.name}: two cases have the id '{case.id}'")
            line = line_of(case, self._history(case), restricted=self.job.input.source.restricted)
            self.digests[case.id] = digest = blake2b(line.encode(), digest_size=12).hexdigest()
            if not self.journal.has(case.id, digest):
                yield case, digest
            else:
                self._count(self.journal.result(case.id))

    def _history(self, case: Case) -> tuple[ProvenanceLine, ...]:
        return self.job.input.histories.get(case.id, ())

    async def _do(self, case: Case, digest: str) -> None:
        exact = self.step.exact if self.job.model == EXACT else None
        try:
            outcome = (
                exact(case, self.aids.source) if exact else await self.step.apply(case, self.aids)
            )
        except MaterialError as error:
            outcome = Drop(TOO_LONG, str(error))
        result = self._line(case, outcome)
        self.journal.add(case.id, digest, result)
        self.finished += 1
        self._count(result)

    def _count(self, result: str | Drop) -> None:
        self.kept += not isinstance(result, Drop)
        self.dropped += isinstance(result, Drop)

    def _line(self, case: Case, outcome: Outcome) -> str | Drop:
        """The case's line with its new provenance, held to the format's schema."""
        if isinstance(outcome, Drop):
            return outcome
        header = self.journal.header
        made = ProvenanceLine(
            step=self.job.step,
            model=header["model"],
            version=header["version"],
            date=header["started"],
            detail=outcome.detail,
        )
        line = line_of(
            outcome.case, (*self._history(case), made), restricted=self.aids.source.restricted
        )
        try:
            CaseLine.model_validate(json.loads(line))
        except ValidationError as error:
            told = ": ".join(filter(None, first_problem(error)))
            raise RolloutError(f"the model's answer makes no case: {told}") from error
        return line

    def _fail(self, case: Case, error: RolloutError) -> None:
        self.failures[case.id] = str(error)
        self.finished += 1
        settings = self.aids.settings
        if (
            self.finished >= settings.patience
            and len(self.failures) > settings.max_failed * self.finished
        ):
            self.stop = self.stop or self._too_many()

    def _too_many(self) -> WorkupError:
        *_, last = self.failures.values()
        return WorkupError(
            f"{len(self.failures)} of {self.finished} cases failed "
            f"(max_failed={self.aids.settings.max_failed:g}), the last because of: {last[:300]}; "
            f"{GO_ON}"
        )

    @property
    def progress(self) -> PrepareProgress:
        return PrepareProgress(len(self.job.input), self.kept, self.dropped, len(self.failures))

    @property
    def in_vain(self) -> WorkupError | None:
        """What stopped the work before a case was done, now or earlier; None if one was."""
        return None if self.kept or self.dropped or self.failures else self.stopped

    @property
    def stopped(self) -> WorkupError | None:
        """What stopped the work; of a spent budget, also how to go on."""
        spent = isinstance(self.stop, BudgetError)
        return BudgetError(f"{self.stop}; {GO_ON}") if spent else self.stop

    def conclude(self) -> None:
        """Raises what stopped the work, or that too large a share failed at its end."""
        if (reason := self.stopped) is not None:
            raise reason
        if len(self.failures) > self.aids.settings.max_failed * max(self.finished, 1):
            raise self._too_many()

    def write(self) -> Report:
        """Writes the result in the order of the input, its sidecar and its report.

        Returns the report.
        """
        out, private = self.job.out, self.aids.source.restricted
        report = Report.of(
            self.journal.header, self.job.input.source.name, len(self.job.input), private=private
        )
        write_lines(out, self._lines(report), private=private)
        if self.step.keeps_items and keeps_sidecar(self.aids.source):
            source = self.aids.source
            write_sidecar(out, source.items, source.diagnoses, private=private)
        write_lines(report_of(out), [report.json()], private=private)
        return report

    def _lines(self, report: Report) -> Iterator[str]:
        for id, digest in self.digests.items():
            if self.journal.has(id, digest):
                result = self.journal.result(id)
                report.add(id, result)
                if not isinstance(result, Drop):
                    yield result
            elif id in self.failures:
                report.fail(id, self.failures[id])
