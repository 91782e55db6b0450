"""The role that interprets: a model says which things a request asks for, where words do not."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from workup.core.ports import Model, Request
from workup.core.shapes import ClosedModel
from workup.models.structured import ask, some_of
from workup.roles.fence import RULES, clean, numbered, prompt

INTERPRETER = "interpreter"
_MOST = 3  # things that one request may mean; of several, the doctor is asked which one
_LONGEST = 300  # characters of a request and of one thing
_ROLE = (
    "You read what a doctor asks for in a simulated consultation, a test bench. You get a "
    "numbered list of the only things that can be asked for, and the doctor's request. Say which "
    "of them the request asks for, in whatever words. A request that names a thing of the list "
    "asks for it; so does one that describes it in a layman's words. A thing that only has to do "
    "with the request is not asked for. A request for something that is not in the list, such as "
    "treatment or a disease of the family, asks for none of them. You do not answer the request, "
    "and you know nothing of the patient.\n"
    f'Answer with one JSON object: {{"numbers": the numbers of the things, at most {_MOST}, the '
    "likeliest first; empty if it asks for none of them}."
)


class _Chosen(ClosedModel):
    numbers: list[int] = Field(max_length=_MOST)


class Interpreter:
    """Maps a request to things that can be asked for.

    The prompt holds the request and the list alone, so the cache answers it in every other case.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    async def chosen(self, request: str, things: Sequence[str]) -> list[int]:
        """The places in `things`, from 0, of what the request asks for; empty if nothing.

        Raises RolloutError when the model gives no usable answer.
        """
        if not things:
            return []
        sections = [
            ("what can be asked for", numbered(things, _LONGEST)),
            ("the doctor's request", clean(" ".join(request.split()), _LONGEST)),
        ]
        closing = "Say which things it asks for, with nothing but the JSON object."
        messages = prompt(f"{_ROLE}\n\n{RULES}", sections, closing)
        count = len(things)

        def misnumbered(answer: _Chosen) -> str | None:
            wrong = [number for number in answer.numbers if not 1 <= number <= count]
            return f"there is no thing {wrong[0]}; they are numbered to {count}" if wrong else None

        answer = await ask(
            self.model,
            Request(INTERPRETER, "interpreter/1", messages, max_tokens=60),
            _Chosen,
            misnumbered,
            some_of("numbers", count, most=_MOST),
        )
        return [number - 1 for number in dict.fromkeys(answer.numbers)]
