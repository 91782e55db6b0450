"""What `workup cases SOURCE` shows: counts, the spread of diagnoses, and whole cases as a person would read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape

from workup.case import Case, Fact, Source

_SAMPLE = 1_000  # cases read for a distribution that no index knows
_TOP, _BAR = 12, 24
_WIDEST = 60  # columns that a diagnosis gets in the table
_COLOURS = {None: "dim", 0: "dim", 1: "cyan", 2: "yellow", 3: "bold red"}


def lines(source: Source, n: int = 2, seed: int = 0) -> list[str]:
    """The description, one string per line, with rich markup (text from files is escaped); `n` cases drawn by `seed`."""
    rng = np.random.default_rng(seed)
    sample = _sample(source.train if len(source.train) else source.test, _SAMPLE, rng)
    shown = _sample(source.test if len(source.test) else source.train, n, rng)
    return [
        *_counts(source),
        *_spread(source, sample),
        *_facts(sample),
        *(line for case in shown for line in _whole(case)),
    ]


def _sample(cases: Sequence[Case], most: int, rng: np.random.Generator) -> list[Case]:
    count = min(most, len(cases))
    return [cases[int(i)] for i in sorted(rng.choice(len(cases), size=count, replace=False))]


def _counts(source: Source) -> list[str]:
    items = f"{len(source.items):,} items" if source.items else "free text, no list of items"
    diagnoses = f"{len(source.diagnoses):,} diagnoses" if source.diagnoses else _answers(source)
    return [
        f"[bold]{escape(source.name)}[/bold]",
        f"{len(source.train):,} cases to train on, {len(source.test):,} to test on · {items} · {diagnoses}",
        *(f"[dim]{escape(note)}[/dim]" for note in source.notes),
    ]


def _answers(source: Source) -> str:
    first = source.test if len(source.test) else source.train
    return "options in each case" if len(first) and first[0].options else "open answers"


def _spread(source: Source, sample: Sequence[Case]) -> list[str]:
    """The most frequent diagnoses: counted over the training split where its labels are known, else over the sample."""
    labels = getattr(source.train, "labels", None)
    counts = Counter(source.diagnoses[i] for i in labels) if labels else Counter(case.truth.diagnosis for case in sample)
    total, top = counts.total(), counts.most_common(_TOP)
    rest = total - sum(count for _, count in top)
    what = "training cases" if labels else f"{total:,} sampled cases"
    # What a question asks for may be a drug, a mechanism, or yes.
    asked = "Answers" if any(case.question for case in sample) else "Diagnoses"
    if top and top[0][1] == 1:
        return ["", f"[bold]{asked}[/bold] of {what}: all different"]
    head = ["", f"[bold]{asked}[/bold] of {what}, {len(counts):,} different:"]
    names = [_short(name) for name, _ in top]
    width = max(map(cell_len, names), default=0)
    rows = [
        f"  {escape(set_cell_size(name, width))} {count / total:6.1%} {_bar(count / top[0][1])}"
        for name, (_, count) in zip(names, top, strict=True)
    ]
    return head + rows + ([f"  {'all others'.ljust(width)} {rest / total:6.1%}"] if rest else [])


def _short(name: str) -> str:
    """A name on one line, cut where it is long: an answer may be a paragraph."""
    line = " ".join(name.split()) or name
    return line if cell_len(line) <= _WIDEST else set_cell_size(line, _WIDEST - 1).rstrip() + "…"


def _indented(text: str, by: int = 2) -> str:
    """Every line of a text that a file wrote, further in."""
    return "\n".join(" " * by + escape(line) for line in text.split("\n"))


def _bar(share: float) -> str:
    return "█" * max(1, round(share * _BAR))


def _facts(sample: Sequence[Case]) -> list[str]:
    counts = np.array([len(case.truth.facts) for case in sample])
    weights = Counter(fact.weight for case in sample for fact in case.truth.facts)
    low, middle, high = (int(q) for q in np.quantile(counts, [0, 0.5, 1], method="nearest"))
    if not high:
        return ["", "[bold]Hidden facts[/bold]: none; everything is told at the outset"]
    line = f"[bold]Hidden facts[/bold] per case: median {middle}, from {low} to {high}"
    scored = {weight: count for weight, count in weights.items() if weight is not None}
    if not scored:
        return ["", f"{line}; nobody has scored their criticality"]
    parts = " · ".join(f"{weight}: {scored[weight] / sum(weights.values()):.0%}" for weight in sorted(scored))
    return ["", f"{line}; criticality {parts}"]


def _whole(case: Case) -> list[str]:
    truth = case.truth
    names = "; ".join([", ".join(truth.codes), *truth.aliases]).strip("; ")
    return [
        "",
        f"[bold]{escape(case.id)}[/bold]" + (f" · {escape(case.category)}" if case.category else ""),
        _indented(case.presentation),
        *([_indented(case.question)] if case.question else []),
        *(f"    – {escape(option)}" for option in case.options),
        f"  [dim]hidden:[/dim] [bold]{escape(truth.diagnosis)}[/bold]" + (f" [dim]({escape(names)})[/dim]" if names else ""),
        *(_fact(fact) for fact in sorted(truth.facts, key=lambda fact: -(fact.weight or 0))),
    ]


def _fact(fact: Fact) -> str:
    mark = "·" if fact.weight is None else str(fact.weight)
    colour = _COLOURS[fact.weight]
    return f"    [{colour}]{mark}[/{colour}] {escape(fact.text)}"


def show(source: Source, console: Console, *, n: int = 2, seed: int = 0) -> None:
    """Prints `lines`."""
    for line in lines(source, n, seed):
        console.print(line)
