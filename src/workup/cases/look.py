"""The output of `workup cases SOURCE`: counts, the diagnoses, and whole cases for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from workup.core.case import Case, Source
from workup.core.text import unsteering

_SAMPLE = 1_000  # cases read for a distribution that no index knows
_TOP, _BAR = 12, 24
_WIDEST = 60  # columns that a diagnosis gets in the table
_COLOURS = {None: "dim", 0: "dim", 1: "cyan", 2: "yellow", 3: "bold red"}


def lines(source: Source, n: int = 2, seed: int = 0) -> list[Text]:
    """The description, one text per line, with styles; `n` cases drawn by `seed`.

    Nothing from a file is read as markup or steers the terminal.
    """
    rng = np.random.default_rng(seed)
    sample = _sample(source.train if len(source.train) else source.test, _SAMPLE, rng)
    shown = _sample(source.test if len(source.test) else source.train, n, rng)
    parts = [
        *_counts(source),
        *_spread(source, sample),
        *_facts(sample),
        *(line for case in shown for line in _whole(case)),
    ]
    found = [part if isinstance(part, Text) else Text(part) for part in parts]
    for part in found:
        part.plain = unsteering(part.plain)  # as long as before, so that the styles stay in place
    return found


def _sample(cases: Sequence[Case], most: int, rng: np.random.Generator) -> list[Case]:
    count = min(most, len(cases))
    return [cases[int(i)] for i in sorted(rng.choice(len(cases), size=count, replace=False))]


def _counts(source: Source) -> list[str | Text]:
    items = f"{len(source.items):,} items" if source.items else "free text, no list of items"
    if source.diagnoses:
        answers = f"{len(source.diagnoses):,} diagnoses"
    else:
        first = source.test if len(source.test) else source.train
        answers = "options in each case" if len(first) and first[0].options else "open answers"
    return [
        Text(source.name, "bold"),
        (
            f"{len(source.train):,} cases to train on, {len(source.test):,} to test on · {items} "
            f"· {answers}"
        ),
        *(Text(note, "dim") for note in source.notes),
    ]


def _spread(source: Source, sample: Sequence[Case]) -> list[str | Text]:
    """The most frequent diagnoses.

    They are those of the training split if its labels are known, else of the sample.
    """
    labels = getattr(source.train, "labels", None)
    counts = (
        Counter(source.diagnoses[i] for i in labels)
        if labels
        else Counter(case.truth.diagnosis for case in sample)
    )
    total, top = counts.total(), counts.most_common(_TOP)
    rest = total - sum(count for _, count in top)
    what = "training cases" if labels else f"{total:,} sampled cases"
    # The answer of a question need not be a diagnosis: it may be a drug, a mechanism, or yes.
    asked = "Answers" if any(case.question for case in sample) else "Diagnoses"
    if top and top[0][1] == 1:
        return ["", Text.assemble((asked, "bold"), f" of {what}: all different")]
    head: list[str | Text] = [
        "",
        Text.assemble((asked, "bold"), f" of {what}, {len(counts):,} different:"),
    ]
    names: list[str] = []
    for name, _ in top:
        # On one line, cut where it is long: an answer may be a paragraph.
        line = " ".join(name.split()) or name
        cut = set_cell_size(line, _WIDEST - 1).rstrip() + "…"
        names.append(line if cell_len(line) <= _WIDEST else cut)
    width = max(map(cell_len, names), default=0)
    rows: list[str | Text] = [
        f"  {set_cell_size(name, width)} {count / total:6.1%} "
        + "█" * max(1, round(count / top[0][1] * _BAR))
        for name, (_, count) in zip(names, top, strict=True)
    ]
    return head + rows + ([f"  {'all others'.ljust(width)} {rest / total:6.1%}"] if rest else [])


def _indented(text: str, by: int = 2) -> str:
    """Every line of a text that a file wrote, further in."""
    return "\n".join(" " * by + line for line in text.split("\n"))


def _facts(sample: Sequence[Case]) -> list[str | Text]:
    counts = np.array([len(case.truth.facts) for case in sample])
    weights = Counter(fact.weight for case in sample for fact in case.truth.facts)
    low, middle, high = (int(q) for q in np.quantile(counts, [0, 0.5, 1], method="nearest"))
    scored = {weight: count for weight, count in weights.items() if weight is not None}
    parts = " · ".join(
        f"{weight}: {scored[weight] / sum(weights.values()):.0%}" for weight in sorted(scored)
    )
    said = f"criticality {parts}" if scored else "nobody has scored their criticality"
    line = (
        f" per case: median {middle}, from {low} to {high}; {said}"
        if high
        else ": none; everything is told at the outset"
    )
    return ["", Text.assemble(("Hidden facts", "bold"), line)]


def _whole(case: Case) -> list[str | Text]:
    truth = case.truth
    names = "; ".join([", ".join(truth.codes), *truth.aliases]).strip("; ")
    hidden = Text.assemble(
        "  ",
        ("hidden:", "dim"),
        " ",
        (truth.diagnosis, "bold"),
        (f" ({names})" if names else "", "dim"),
    )
    facts = (
        Text.assemble(
            "    ",
            ("·" if fact.weight is None else str(fact.weight), _COLOURS[fact.weight]),
            f" {fact.text}",
        )
        for fact in sorted(truth.facts, key=lambda fact: -(fact.weight or 0))
    )
    return [
        "",
        Text.assemble((case.id, "bold"), f" · {case.category}" if case.category else ""),
        _indented(case.presentation),
        *([_indented(case.question)] if case.question else []),
        *(f"    – {option}" for option in case.options),
        hidden,
        *facts,
    ]


def show(source: Source, console: Console, *, n: int = 2, seed: int = 0) -> None:
    """Prints `lines`."""
    for line in lines(source, n, seed):
        console.print(line)
