"""A transcript on the terminal: findings in the colour of their criticality, turns with scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from workup.core.case import Case, Fact
from workup.core.episode import Episode, Observation, Score, Turn
from workup.core.text import unsteering
from workup.environments.base.matcher import CONTAINED, MEANING, MODEL, SHARED, SYNONYM
from workup.environments.base.trouble import doubt

# Okabe–Ito colours, which people with colour-blindness tell apart; None is "not scored".
STYLES = {None: "default", 0: "grey50", 1: "#56b4e9", 2: "#e69f00", 3: "bold #d55e00"}
NAMES = {None: "not scored", 0: "irrelevant", 1: "supportive", 2: "significant", 3: "pathognomonic"}

_STEPS = {
    SHARED: "its words",
    CONTAINED: "its name in the request",
    SYNONYM: "a synonym",
    MEANING: "its meaning",
    MODEL: "the interpreter",
}


def show(
    episode: Episode, doctor: str, place: str, correct: bool | None, score: Score | None
) -> None:
    """Prints an episode of `doctor` to standard output, with its verdict and its scores.

    `place` says where in a training it was played; "" is nowhere.
    """
    verdict = {True: "right", False: "wrong", None: "not judged"}[correct]
    reward = f"return {score.total:+.2f}" if score else ""
    line = " · ".join(filter(None, (episode.case.id, doctor, place, episode.ending.value, reward)))
    answer = f"{', '.join(episode.answer) or 'none'} ({verdict})"
    console = Console(highlight=False)
    console.print(_plain(line, "bold"))
    console.print(_plain(f"answer: {answer} · truth: {episode.case.truth.diagnosis}", "bold"))
    for message in episode.opening:
        if message.role != "system":
            console.print(_plain(message.content))
    console.print(_table(episode, score.turns if score else ()))
    console.print(_missed(episode))
    marks = [Text(f"{weight} {NAMES[weight]}", style=STYLES[weight]) for weight in (0, 1, 2, 3)]
    console.print(Text("criticality  ") + Text("  ").join(marks))


def _plain(text: str, style: str = "") -> Text:
    """A text that a model or a file wrote, without what could steer the terminal."""
    return Text(unsteering(text), style=style)


def _table(episode: Episode, scores: Sequence[float]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(ratio=2)
    table.add_column(ratio=3)
    table.add_column(justify="right")
    facts = facts_by_id(episode.case)
    for number, turn in enumerate(episode.turns):
        score = f"{scores[number]:+.2f}" if number < len(scores) else ""
        reply = _reply(turn, facts)
        if told := doubtful(episode, number):
            reply.append(_plain(f"\n[{told}]", "bold"))
        table.add_row(str(number + 1), _plain(turn.completion.text), reply, score)
    return table


def _reply(turn: Turn, facts: dict[str, Fact]) -> Text:
    weights = [facts[id].weight for id in turn.observation.evidence if id in facts]
    told = (*(message.content for message in turn.observation.messages), origins(turn))
    text = "\n".join(filter(None, told))
    heaviest = max((weight for weight in weights if weight is not None), default=None)
    return _plain(text, STYLES[heaviest] if weights else "dim")


def origins(turn: Turn) -> str:
    """Where the results of a turn came from: "results: 3 record, 1 generated"; "" without any."""
    counts = Counter(turn.observation.sources)
    told = ", ".join(f"{count} {source}" for source, count in counts.items())
    return f"results: {told}" if told else ""


def _missed(episode: Episode) -> Text:
    missed = missed_critical(episode)
    if not missed:
        return Text("no critical finding was missed", style="dim")
    lines = [
        Text("missed: ") + _plain(f"{fact.text} ({NAMES[fact.weight]})", STYLES[fact.weight])
        for fact in missed
    ]
    return Text("\n").join(lines)


def doubtful(episode: Episode, place: int) -> str:
    """What became of the truth in the answer of the turn at `place`, and the truth; "" of neither.

    Example: "withheld; true: The patient reports fever."
    """
    return doubt(episode.case, episode.turns[:place], episode.turns[place])


def facts_by_id(case: Case) -> dict[str, Fact]:
    """Every fact of a case, also those that its presentation states."""
    return {fact.id: fact for fact in case.all_facts}


def missed_critical(episode: Episode) -> list[Fact]:
    """The findings of weight 2 or 3 that the episode did not discover, the heaviest first."""
    found = episode.discovered
    missed = [
        fact
        for fact in episode.case.truth.facts
        if (fact.weight or 0) >= 2 and fact.id not in found
    ]
    return sorted(missed, key=lambda fact: -(fact.weight or 0))


def understood_as(seen: Observation) -> str:
    """What a request was taken for, and by which step: "fever, by a synonym".

    "" where it is just what the request says, and where no exact record or patient read it.
    """
    step = _STEPS.get(seen.understood_by)
    return f"{seen.item or 'a finding in free text'}, by {step}" if step else ""
