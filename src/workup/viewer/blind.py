"""What a reviewer sees of an item: not whose episodes they are, and not how they were judged.

Each field is copied by name. No run, doctor, verdict, reward, weight or case id is among them, nor
the system prompt, nor a doctor's thoughts and markup around an action that could be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workup.core.episode import MALFORMED, Ending, Turn
from workup.runs import Record
from workup.runs.transcript import facts_by_id
from workup.studies.review.folder import Review
from workup.studies.review.form import EQUAL, SIDES, Question

CANNOT = "cannot say"
ENDINGS = {
    Ending.DIAGNOSED: "",
    Ending.OUT_OF_TURNS: "No diagnosis: it asked until its turns had run out.",
    Ending.OUT_OF_TOKENS: "No diagnosis: it wrote until its tokens had run out.",
}


@dataclass(frozen=True, slots=True)
class BlindTurn:
    """One question, order or search, and what came back."""

    number: int
    kind: str
    said: str
    reply: str


@dataclass(frozen=True, slots=True)
class BlindEpisode:
    """One episode; `name` is A or B, or "" where it stands alone."""

    name: str
    steps: tuple[BlindTurn, ...]
    answer: str
    ending: str


@dataclass(frozen=True, slots=True)
class AnswerChoice:
    """A value with the words and the key that are shown for it; no key where the words are it."""

    value: str
    words: str
    key: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class FormQuestion:
    """A question of the form; `field` is its name in it, `side` the episode that it is about."""

    field: str
    side: str
    ask: str
    hint: str
    choices: tuple[AnswerChoice, ...]
    missing: bool


@dataclass(frozen=True, slots=True)
class BlindCase:
    """What the doctors were told at first, and what was recorded."""

    presentation: str
    question: str
    options: tuple[str, ...]
    diagnosis: str
    findings: tuple[str, ...]


def patient(review: Review, record: Record) -> BlindCase:
    """Without the recorded diagnosis and findings where the review does not show them."""
    case, told = record.episode.case, review.manifest.truth
    return BlindCase(
        case.presentation,
        case.question,
        case.options,
        case.truth.diagnosis if told else "",
        tuple(fact.text for fact in case.truth.facts) if told else (),
    )


def side(record: Record, name: str) -> BlindEpisode:
    episode = record.episode
    facts = {id: fact.text for id, fact in facts_by_id(episode.case).items()}
    steps = tuple(
        _step(number, turn, facts) for number, turn in enumerate(episode.gathered, start=1)
    )
    return BlindEpisode(name, steps, ", ".join(episode.answer), ENDINGS.get(episode.ending, ""))


def _step(number: int, turn: Turn, facts: Mapping[str, str]) -> BlindTurn:
    kind, content = turn.action.kind, ", ".join(turn.action.content)
    reply = "\n".join(message.content for message in turn.observation.messages)
    told = "\n".join(facts[id] for id in turn.observation.evidence if id in facts)
    if kind == MALFORMED:
        return BlindTurn(number, "unreadable", turn.completion.text.strip(), reply or told)
    return BlindTurn(number, kind, content, reply or told)


def fields(review: Review) -> list[tuple[str, str, Question]]:
    """(field, side, question) for each thing that is asked of an item, in the order of the page."""
    found = []
    for name, question in review.form.items():
        if question.pairs or not review.manifest.pairs:
            found.append((name, "", question))
        else:
            found += [(f"{name}.{letter}", letter, question) for letter in SIDES]
    return sorted(found, key=lambda each: each[2].pairs)


def asked(
    review: Review, given: Mapping[str, str | None], *, missing: Sequence[str] = ()
) -> Iterator[FormQuestion]:
    """The form of an item with what was said; the fields in `missing` are marked."""
    for field, letter, question in fields(review):
        words = {word: word for word in question.answers}
        if question.pairs:
            words = {word: "equally good" if word == EQUAL else word for word in words}
        choices = [
            AnswerChoice(
                word, shown, "" if shown == str(key) else str(key), given.get(field) == word
            )
            for key, (word, shown) in enumerate(words.items(), start=1)
        ]
        unsure = AnswerChoice("", CANNOT, "0", field in given and given[field] is None)
        yield FormQuestion(
            field, letter, question.ask, question.hint, (*choices, unsure), field in missing
        )
