"""Results as tables: on the terminal, as CSV, and as Parquet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

from workup.core.disk import whole_file
from workup.core.extras import wanted
from workup.report.sheets import Sheet
from workup.runs.files import clear_errors, write_json
from workup.studies.base.result import STARRED, Cell, for_each, plain, sheet, signed
from workup.studies.review.form import EQUAL, Question
from workup.studies.review.results import Mark, Results, Wins

COLUMNS = tuple(field.name for field in fields(Mark))
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # how one begins
_WHOLE = ("item", "step", "sample", "against_sample")
_TRUE = ("skipped", "judged", "against_judged")


def shown(results: Results) -> Iterator[Sheet | str]:
    """What `workup review results` prints."""
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
            row = asdict(mark)
            for name, value in row.items():
                if isinstance(value, str) and value.startswith(_FORMULA):
                    row[name] = f"'{value}"
            writer.writerow(row)


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
    """All figures as JSON. Raises UserError when the disk refuses."""
    write_json(file, results.as_json(), private=results.review.manifest.restricted)


def _reviewers(results: Results) -> Sheet:
    progress = {name: results.progress(name) for name in results.standing}
    counts = ("answered", "skipped", "open", "cannot say")
    columns = {"": lambda name: name, **for_each(counts, lambda what, name: progress[name][what])}
    return sheet("Reviewers", progress, columns)


def _agreement(results: Results) -> Sheet:
    form = results.review.form
    alphas = {name: results.agreement(name) for name in form}
    columns = {
        "question": lambda name: name,
        "scale": lambda name: "ordinal" if form[name].pairs else form[name].level,
        "α [95 %]": alphas.__getitem__,
        "n": lambda name: alphas[name].n,
        "": lambda name: f"undefined: {why}" if (why := results.undefined(name)) else "",
    }
    return sheet("Agreement: Krippendorff's α", form, columns, words=2)


def _levels(results: Results, form: dict[str, Question]) -> Iterator[Sheet]:
    who = {"": lambda doctor: doctor}
    first, *others = results.doctors
    levels = for_each(form, results.level)
    yield sheet("Means [95 % by case]", results.doctors, {**who, **levels})
    if others:
        gaps = for_each(form, lambda name, doctor: signed(results.change(name, doctor, first)))
        title = f"Differences to {first}, paired by case"
        yield sheet(title, others, {**who, **gaps}, STARRED)
    for name, question in form.items():
        yield _shares(results, name, question)


def _shares(results: Results, name: str, question: Question) -> Sheet:
    own = {doctor: results.shares(name, doctor) for doctor in results.doctors}
    counts = for_each(question.answers, lambda value, doctor: own[doctor][value])
    return sheet(f"{name}: how often", own, {"": lambda doctor: doctor, **counts})


def _wins(results: Results, name: str, question: Question) -> Sheet:
    columns: dict[str, Callable[[Wins], Cell]] = {
        "": lambda each: f"{each.one} over {each.other}",
        "share [95 %]": lambda each: each.share,
        "won": lambda each: each.won,
        **({"tied": lambda each: each.tied} if EQUAL in question.answers else {}),
        "lost": lambda each: each.lost,
    }
    return sheet(f"{name}: wins, a tie is half a win", results.wins(name), columns)


def _sides(results: Results, name: str) -> Iterator[str]:
    left, followed = results.left(name), results.followed(name)
    yield f"{name}: the left one wins {plain(left)}; 0.50 where the side does not matter"
    if followed.n:
        yield (
            f"{name}: the one that the runs' judge finds right wins {plain(followed)} where it "
            f"finds the other wrong ({followed.n} marks)"
        )


def _beside(results: Results, name: str) -> Sheet:
    found = results.judged(name)
    counts = {
        f"  reviewers {people}, judge {judge}": str(count)
        for (people, judge), count in sorted(found.confusion.items())
    }
    whole = (plain(found.accuracy), plain(found.kappa), str(found.split), str(found.unjudged))
    return Sheet(
        ("", "n", "agreement [95 %]", "κ [95 %]", "reviewers split", "not judged"),
        [
            ("right or wrong", str(found.accuracy.n), *whole),
            *((label, count, "", "", "", "") for label, count in counts.items()),
        ],
        f"{name}: the runs' judge beside most reviewers",
    )
