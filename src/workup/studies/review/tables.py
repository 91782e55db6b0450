"""Results as tables: on the terminal, as CSV, and as Parquet."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from workup.core.disk import whole_file
from workup.core.extras import wanted
from workup.core.statistics import Estimate
from workup.runs.files import clear_errors, write_json
from workup.runs.words import DASH
from workup.studies.review.form import EQUAL, Question
from workup.studies.review.results import Mark, Results

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = tuple(field.name for field in fields(Mark))
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # how one begins
_WHOLE, _TRUE = (
    ("item", "step", "sample", "against_sample"),
    ("skipped", "judged", "against_judged"),
)


def shown(results: Results) -> Iterator[Table | str]:
    """What `workup review results` prints; names are no markup of rich's."""
    yield _reviewers(results)
    form = results.review.form
    yield _agreement(results)
    if plain := {name: question for name, question in form.items() if not question.pairs}:
        yield from _levels(results, plain)
    for name, question in form.items():
        if question.pairs:
            yield _wins(results, name, question)
            yield from _sides(results, name)
        if question.verdicts:
            yield _beside(results, name)


def write_csv(results: Results, file: Path) -> None:
    """One row per mark, with the columns of `Mark`. Raises UserError when the disk refuses.

    A text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    private = results.review.manifest.restricted
    with (
        clear_errors(file),
        whole_file(file, private=private) as draft,
        draft.open("w", newline="", encoding="utf-8") as opened,
    ):
        writer = csv.DictWriter(opened, COLUMNS)
        writer.writeheader()
        for mark in results.marks:
            writer.writerow({name: _inert(value) for name, value in asdict(mark).items()})


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_parquet(results: Results, file: Path) -> None:
    """The same as Parquet. Raises UserError when the disk refuses."""
    pa, pq = wanted("pyarrow"), wanted("pyarrow.parquet")
    types = dict.fromkeys(COLUMNS, pa.string()) | {"number": pa.float64()}
    types |= dict.fromkeys(_WHOLE, pa.int32()) | dict.fromkeys(_TRUE, pa.bool_())
    schema = pa.schema(list(types.items()))
    rows = [asdict(mark) for mark in results.marks]
    private = results.review.manifest.restricted
    with clear_errors(file), whole_file(file, private=private) as draft:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), draft, compression="zstd")


def write_figures(results: Results, file: Path) -> None:
    """All figures as JSON."""
    with clear_errors(file):
        write_json(file, results.as_json())


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    # Of a plain string rich would read names in square brackets as markup.
    table = Table(title=Text(title, style="table.title"), title_justify="left", box=None)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    return table


def _reviewers(results: Results) -> Table:
    table = _table("Reviewers", "", "answered", "skipped", "open", "cannot say")
    for name in results.standing:
        found = results.progress(name)
        table.add_row(name, *(str(count) for count in found.values()))
    return table


def _agreement(results: Results) -> Table:
    table = _table("Agreement: Krippendorff's α", "question", "scale", "α [95 %]", "n", "")
    for name, question in results.review.form.items():
        found = results.agreement(name)
        level = "ordinal" if question.pairs else question.level
        why = results.undefined(name)
        told = f"undefined: {why}" if why else ""
        table.add_row(name, level, _words(found), str(found.n), told)
    return table


def _levels(results: Results, form: dict[str, Question]) -> Iterator[Table]:
    first, *others = results.doctors
    levels = _table("Means [95 % by case]", "", *form)
    for doctor in results.doctors:
        levels.add_row(doctor, *(_words(results.level(name, doctor)) for name in form))
    yield levels
    if others:
        gaps = _table(f"Differences to {first}, paired by case", "", *form)
        for doctor in others:
            found = [results.change(name, doctor, first) for name in form]
            gaps.add_row(doctor, *(_words(each, sign=True) for each in found))
        yield gaps
    for name, question in form.items():
        counts = _table(f"{name}: how often", "", *question.answers)
        for doctor in results.doctors:
            own = results.shares(name, doctor)
            counts.add_row(doctor, *(str(count) for count in own.values()))
        yield counts


def _wins(results: Results, name: str, question: Question) -> Table:
    tied = ["tied"] if EQUAL in question.answers else []
    table = _table(f"{name}: wins, a tie is half a win", "", "share [95 %]", "won", *tied, "lost")
    for each in results.wins(name):
        counts = [str(each.won), *([str(each.tied)] if tied else []), str(each.lost)]
        who = f"{each.one} over {each.other}"
        table.add_row(who, _words(each.share), *counts)
    return table


def _sides(results: Results, name: str) -> Iterator[str]:
    left, followed = results.left(name), results.followed(name)
    yield f"{name}: the left one wins {_words(left)}; .50 where the side does not matter"
    if followed.n:
        yield (
            f"{name}: the one that the runs' judge finds right wins {_words(followed)} where it "
            f"finds the other wrong ({followed.n} marks)"
        )


def _beside(results: Results, name: str) -> Table:
    found = results.judged(name)
    table = _table(
        f"{name}: the runs' judge beside most reviewers",
        *("", "n", "agreement [95 %]", "κ [95 %]", "reviewers split", "not judged"),
    )
    counts = str(found.accuracy.n), _words(found.accuracy), _words(found.kappa)
    table.add_row("right or wrong", *counts, str(found.split), str(found.unjudged))
    for (people, judge), count in sorted(found.confusion.items()):
        table.add_row(f"  reviewers {people}, judge {judge}", str(count))
    return table


def _words(estimate: Estimate, *, sign: bool = False) -> str:
    if math.isnan(estimate.mean):
        return DASH
    form = "{:+.2f}" if sign else "{:.2f}"
    text = form.format(estimate.mean)
    if not math.isnan(estimate.low):
        text += f" [{form.format(estimate.low)}, {form.format(estimate.high)}]"
    return text.replace("-", "−")
