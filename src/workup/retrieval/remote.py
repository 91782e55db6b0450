"""A library behind Search-R1's `/retrieve`: that of `workup serve retrieval`, or another server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workup.core.case import Passage
from workup.core.errors import RolloutError
from workup.retrieval import words
from workup.retrieval.calls import DEADLINE, Caller
from workup.retrieval.fusion import digest


def contents(passage: Passage) -> str:
    """Search-R1's form of a document: the title in quotes on the first line, then the text."""
    return f'"{passage.title}"\n{passage.text}'


class Remote:
    """Searches by asking a server at `url` (with or without /retrieve).

    It waits up to `deadline` seconds for it. `patient` is as for `Caller`.
    """

    def __init__(
        self, url: str, deadline: float = DEADLINE, timeout: float = 60.0, *, patient: bool = True
    ) -> None:
        place = url.rstrip("/").removesuffix("/retrieve")
        self._caller = Caller(place, deadline, timeout, patient=patient)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The best `k` passages for each query.

        Raises RolloutError when the server stays away or answers something else.
        """
        body = json.dumps({"queries": list(queries), "topk": k, "return_scores": True}).encode()
        answer = self._caller.call("/retrieve", body)
        try:
            found = [[_passage(hit) for hit in hits] for hits in answer["result"]]
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise RolloutError(
                f"{self._caller.url} does not speak Search-R1's /retrieve: {error!r}"
            ) from error
        if len(found) != len(queries):
            raise RolloutError(
                f"{self._caller.url} answered {len(found)} of {len(queries)} queries"
            )
        return found


def _passage(hit: Mapping[str, Any]) -> Passage:
    document = hit["document"]
    title, text = document.get("title"), document.get("text")
    if text is None:
        first, _, text = str(document["contents"]).partition("\n")
        title = first.strip('"') if title is None else title
    # Half a surrogate pair would end the run: no file takes it.
    name, text, title = (
        words.plain("" if part is None else str(part)) for part in (document.get("id"), text, title)
    )
    if not math.isfinite(score := float(hit["score"])):
        raise ValueError(f"a score of {score}")
    found = Passage(name, text, title, score)
    # Without ids, two passages would pass for one.
    return found if found.id else replace(found, id=f"@{digest(found)}")
