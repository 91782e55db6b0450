"""Answers in words: the released questions turned into what a patient would say.

The release has a question per evidence and names for its values, but no answers. "Do you have a
cough?" becomes "I have a cough." and "I do not have a cough."; a question that no rule fits is
repeated before the answer ("Is your skin pale? Yes.").
"""

from __future__ import annotations

import re

# an auxiliary and "you" open the question: what replaces them in a yes, and in a no
_OPENINGS = {
    "do you ": ("I ", "I do not "),
    "are you ": ("I am ", "I am not "),
    "have you ": ("I have ", "I have not "),
    "did you ": ("I did ", "I did not "),
    "were you ": ("I was ", "I was not "),
}
# three forms that a prefix cannot turn into a statement: a second question inside the first ("… or
# are you …"), a second subject ("Have you or …"), and an adverb between commas
_COMPOUND = re.compile(
    r"^(?:\w+,|or\b)|\b(?:or|and),? (?:are|do|did|have|has|were|was|is) (?:you|your|there|any|a)\b",
    re.I,
)
_PERSON = (
    (re.compile(r"\byou(?:'|’)re\b"), "I'm"),
    (re.compile(r"\byou are\b"), "I am"),
    (re.compile(r"\byou were\b"), "I was"),
    (re.compile(r"\b(wake|keeping|than|as|to|of|for|with) you\b"), r"\1 me"),
    (re.compile(r"\byourself\b"), "myself"),
    (re.compile(r"\byour\b"), "my"),
    (re.compile(r"\byou\b"), "I"),
)
_SIDE = {"(R)": " (right)", "(L)": " (left)"}
_FULL = {"Y": "yes", "N": "no", "NA": "none"}


def statement(question: str, positive: bool) -> str | None:
    """The first-person answer to a yes–no question, without a full stop; None if no rule fits."""
    opening = next((o for o in _OPENINGS if question.lower().startswith(o)), None)
    if opening is None or not question.endswith("?"):
        return None
    rest = question[len(opening) : -1].strip()
    if _COMPOUND.search(rest):
        return None
    for pattern, replacement in _PERSON:
        rest = pattern.sub(replacement, rest)
    if positive:
        rest = re.sub(r"^ever ", "", re.sub(r"^(\w+ )?any ", r"\1", rest))
    answer = _OPENINGS[opening][0 if positive else 1] + rest
    return answer.replace(" not ever ", " never ").replace("I do never ", "I never ")


def yes(question: str) -> str:
    sentence = statement(question, positive=True)
    return f"{sentence}." if sentence else f"{question} Yes."


def no(question: str) -> str:
    sentence = statement(question, positive=False)
    return f"{sentence}." if sentence else f"{question} No."


def value(question: str, meaning: str) -> str:
    """The answer that names a value: "I feel pain somewhere: forehead."."""
    meaning = _FULL.get(meaning, meaning)
    for short, long in _SIDE.items():
        meaning = meaning.replace(short, long)
    sentence = statement(question, positive=True)
    if sentence:
        return f"{sentence}: {meaning}."
    if question.endswith("?"):
        return f"{question} {meaning[:1].upper()}{meaning[1:]}."
    return f"{question} {meaning}."


def nothing(question: str, meaning: str) -> str:
    """The answer that names the default value of a question with values."""
    return no(question) if statement(question, positive=False) else value(question, meaning)
