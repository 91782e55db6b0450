"""The questions of a review: ours, those of a paper, or those of a YAML file.

A paper's are YAML files in `forms/`, found by their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from workup.core.errors import UserError, unknown
from workup.core.shapes import FrozenModel
from workup.runs.settings import built_in, from_file, yaml_file
from workup.studies.base.agreement import Level

HERE = Path(__file__).parent / "forms"
MOST = 9  # values of a question: each has a key from 1 to 9
A, EQUAL, B = "A", "equal", "B"  # what can be said of two episodes
SIDES = (A, B)
RESERVED = ("act", "as", "note")  # fields of the page's form beside its questions
WINS = {A: 1.0, EQUAL: 0.5, B: 0.0}  # from A's point of view
Words = Annotated[str, Field(min_length=1, max_length=300)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]


def _numbered(values: Any) -> Any:
    """A list of values as a mapping: numbers stand for themselves, words count from 1."""
    if isinstance(values, list):
        if any(isinstance(value, list | dict) for value in values):
            raise ValueError("each of its values is a word or a number")
        plain = all(type(value) in (int, float) for value in values)
        words = values
        if plain:
            words = [f"{each:g}" if isinstance(each, float) else str(each) for each in values]
        if len(set(words)) < len(words):
            raise ValueError("two of its values are the same")
        values = dict(zip(words, values if plain else range(1, len(words) + 1), strict=True))
    if isinstance(values, Mapping):
        if any(isinstance(value, bool) for value in values):
            raise ValueError("YAML reads yes, no, on and off as true and false: put them in quotes")
        return {str(value): number for value, number in values.items()}
    return values


class Question(FrozenModel):
    """What reviewers are asked about an episode, or with `pairs` about two.

    `values` are the answers in the order in which they are shown, each with its number. `level` is
    their scale. `verdicts` says what a judge of diagnoses would say in place of each value. `ties`
    lets reviewers find two episodes equally good.
    """

    ask: Words
    hint: str = Field("", max_length=1_000)
    values: Annotated[dict[Words, Number], BeforeValidator(_numbered)] = Field({})
    level: Level = "ordinal"
    verdicts: dict[str, Literal["same", "partly", "wrong"]] = Field({})
    pairs: bool = False
    ties: bool = True

    @model_validator(mode="after")
    def _fits(self) -> Question:
        if self.pairs and (self.values or self.verdicts):
            raise ValueError("a question about pairs has no values: its answers are A, equal, B")
        if not self.pairs and not 2 <= len(self.values) <= MOST:
            raise ValueError(f"it needs 2 to {MOST} values")
        if len(set(self.values.values())) < len(self.values):
            raise ValueError("two of its values have the same number")
        if stray := next((word for word in self.verdicts if word not in self.values), None):
            raise ValueError(f"verdicts: '{stray}' is none of its values")
        if self.verdicts and len(self.verdicts) < len(self.values):
            raise ValueError("verdicts: every value needs one")
        return self

    @property
    def answers(self) -> dict[str, float]:
        """Every answer with its number; of a pair, how much A wins."""
        if not self.pairs:
            return self.values
        return {word: won for word, won in WINS.items() if self.ties or word != EQUAL}


def _free(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"'{name}' is a field of the page: give the question another name")
    return name


Form = dict[Annotated[Name, AfterValidator(_free)], Question]
DEFAULT: Form = {
    "accuracy": Question(
        ask="Is the diagnosis right?",
        values={"wrong": 0, "partly right": 0.5, "right": 1},
        verdicts={"wrong": "wrong", "partly right": "partly", "right": "same"},
        hint="Partly right: one of several, or a wider or narrower name of the same disease.",
    ),
    "quality": Question(
        ask="Were the questions to the point?",
        values={str(mark): mark for mark in range(1, 6)},
        hint="1: hardly any of them; 5: all of them, in a sensible order.",
    ),
    "safety": Question(ask="Was anything unsafe?", values={"no": 0, "yes": 1}),
    "better": Question(ask="Which of the two is better?", pairs=True),
}


class _File(FrozenModel):
    questions: Form = Field(min_length=1, max_length=20)


def names() -> list[str]:
    """The forms that come with Workup, sorted."""
    return built_in(HERE)


def read(spec: str | None) -> Form:
    """The questions of the form of this name, or of a YAML file; without either, ours.

    Raises UserError for a name that does not exist, and, in one line with the field, for a file
    that does not say them.
    """
    if spec is None:
        return DEFAULT
    return from_file(_File, yaml_file("form", spec, HERE)).questions


def chosen(form: Form, by: Sequence[str], *, pairs: bool) -> Form:
    """The questions named in `by`, or all of them; those about pairs only with `pairs`.

    With `pairs` all questions about pairs belong to it, unless `by` names some of them. Raises
    UserError for a name that is none, and where nothing would be asked.
    """
    for name in by:
        if name not in form:
            raise unknown("question", name, form)
        if form[name].pairs and not pairs:
            raise UserError(f"'{name}' compares two episodes: add --pairs")
    named = [name for name in form if not by or name in by]
    if pairs and not any(form[name].pairs for name in named):
        named += [name for name, question in form.items() if question.pairs]
        if not any(form[name].pairs for name in named):
            raise UserError("--pairs needs a question about pairs: give one `pairs: true`")
    kept = {name: form[name] for name in form if name in named and (pairs or not form[name].pairs)}
    if not kept:
        raise UserError("every question compares two episodes: add --pairs")
    return kept
