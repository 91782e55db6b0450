"""Which statements does a reasoning process make, and which came from a search (MR-9)?

A language model reads them; `ExactStatements` is its exact counterpart in the built-in clinic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from workup.cases.clinic.graph import canonical, read_triples, stated
from workup.core.case import LONGEST_ENTITY, MOST_STATEMENTS, Statement
from workup.core.ports import Model
from workup.core.shapes import ClosedModel
from workup.roles.fence import clean, numbered
from workup.roles.judges.assessor import Rubric, consult

LONGEST_REASONING = 20_000  # characters that the model reads
TOKENS = 4_000  # the most tokens of one answer
LONGEST_DOCUMENT = 2_000  # characters of each document that the model reads


class StatementReader(Protocol):
    """Reads the statements of a reasoning process, in their order.

    `reasoning` is what the doctor wrote, without the documents; `documents` are the texts that its
    searches returned. Raises RolloutError when it cannot; it never returns a part.
    """

    async def read(self, reasoning: str, documents: Sequence[str]) -> tuple[Statement, ...]: ...


class ExactStatements:
    """Reads the sentences of the built-in clinic, and no others.

    A statement came from a search if one of the documents makes it too.
    """

    async def read(self, reasoning: str, documents: Sequence[str]) -> tuple[Statement, ...]:
        return self.found(reasoning, documents)

    def found(self, reasoning: str, documents: Sequence[str]) -> tuple[Statement, ...]:
        """What `read` returns, without a coroutine."""
        found = {triple for document in documents for triple in read_triples(document)}
        made = read_triples(reasoning)[:MOST_STATEMENTS]
        return tuple(Statement(*triple, triple in found) for triple in made)

    def stated(self, text: str) -> tuple[tuple[str, Statement], ...]:
        """The statements of a text, each once, with its own words before it."""
        return tuple((said, each) for said in stated(text) for each in self.found(said, ())[:1])

    def canonical(self, name: str) -> str:
        """The one name of an entity's synonyms; for an unknown one its normal form."""
        return canonical(name)


Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_ENTITY)
]


class _Statement(ClosedModel):
    head: Name
    relation: Name
    tail: Name
    document: int = Field(ge=0)


class _StatementList(BaseModel):
    model_config = ConfigDict(extra="forbid", title="_Answer")  # as `_shape` names what is asked

    statements: list[_Statement] = Field(max_length=MOST_STATEMENTS)


@cache
def _shape(most: int) -> type[_StatementList]:
    """The answer's shape with at most so many statements."""
    bounded = (list[_Statement], Field(max_length=most))
    return create_model("_Answer", __base__=_StatementList, statements=bounded)


VERSION = "statements/1"
_TASK = (
    "You turn a clinical reasoning process into a list of statements, each of which ties two "
    "medical entities together: a head, a relation and a tail.\n"
    "Take up every statement that the reasoning makes and relies on, in its order, and no other: "
    "nothing that you know yourself, and nothing that only a document says.\n"
    "Name an entity as shortly as it stays clear (a disease, a finding, a test, a treatment, a "
    "property of the patient), and the same entity always by the same name. Word a relation in "
    "one to four words, in the present tense, and the same relation always alike.\n"
    '"document" is the number of the document that the statement was taken from, or 0 if no '
    "document says it.\n"
    'Answer with one JSON object: {{"statements": [{{"head": …, "relation": …, "tail": …, '
    '"document": 0}}, …]}}, with at most {most} statements.'
)


class ModelStatements:
    """A language model as `StatementReader`.

    It is not asked about blank reasoning, which states nothing. An answer has at most `most`
    statements and `max_tokens` tokens.
    """

    def __init__(self, model: Model, most: int = MOST_STATEMENTS, max_tokens: int = TOKENS) -> None:
        self._model, self._shape = model, _shape(most)
        self._rubric = Rubric(VERSION, _TASK.format(most=most), max_tokens, role="extractor")

    async def read(self, reasoning: str, documents: Sequence[str]) -> tuple[Statement, ...]:
        if not reasoning.strip():
            return ()
        sections = [("reasoning", clean(reasoning, LONGEST_REASONING))]
        if documents:
            sections.append(("documents", numbered(documents, LONGEST_DOCUMENT)))

        def misplaced(answer: _StatementList) -> str | None:
            beyond = [each.document for each in answer.statements if each.document > len(documents)]
            return f"there is no document {beyond[0]}" if beyond else None

        answer = await consult(
            self._model,
            self._rubric,
            sections,
            self._shape,
            misplaced,
            {"document": (0, len(documents))},
        )
        return tuple(
            Statement(each.head, each.relation, each.tail, each.document > 0)
            for each in answer.statements
        )
