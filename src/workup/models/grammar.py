"""Answers of a local model that fit a JSON Schema: at each step it may only draw what can fit.

The library llguidance says which tokens those are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workup.core.errors import UserError
from workup.core.extras import wanted

LARGEST = 10**9  # bound of a number without bounds of its own: its digits could go on for ever
DECIMALS = 0.001
# Where a schema holds other schemas: one, a list of them, a map from names to them.
ONE = {"items", "additionalProperties"}
SEVERAL = {"anyOf", "oneOf", "allOf", "prefixItems"}
NAMED = {"properties", "$defs"}
STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": True,  # what the library cannot hold an answer to is checked afterwards anyway
}


class Grammar:
    """Holds the completions of one tokenizer to schemas. `width` is the number of the logits."""

    def __init__(self, tokenizer: Any, width: int) -> None:
        """Raises UserError where llguidance is missing, or cannot read the tokenizer."""
        self._matcher = wanted("llguidance").LLMatcher
        try:
            self._tokenizer = wanted("llguidance.hf").from_tokenizer(tokenizer, n_vocab=width)
        except ValueError as error:
            raise UserError(f"llguidance cannot read the tokenizer ({error})") from error

    def guide(self, schema: str, longest: int) -> Guide:
        """What holds one completion to `schema`, in which a text has at most `longest` characters.

        Raises UserError for a schema that the library refuses.
        """
        whole = json.dumps(bounded(json.loads(schema), longest))
        rules = self._matcher.grammar_from_json_schema(whole, defaults=STYLE)
        guide = Guide(self._matcher(self._tokenizer, rules))
        if guide.problem:
            raise UserError(f"no answer can be held to the schema: {guide.problem}")
        return guide


class Guide:
    """Implements `Constraint` (llguidance's matcher) for one completion."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def done(self) -> bool:
        return bool(self._matcher.is_stopped())

    @property
    def problem(self) -> str:
        """Why the library gave up on this answer; "" if it did not."""
        return str(self._matcher.get_error()).partition("\n")[0]

    def begin(self) -> list[int]:
        return self._forced()

    def allowed(self) -> torch.Tensor:
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits: NDArray[np.uint8] = np.unpackbits(words, bitorder="little")
        return torch.from_numpy(bits).bool()

    def take(self, token: int) -> list[int]:
        return self._forced() if self._matcher.consume_token(token) else []

    def _forced(self) -> list[int]:
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if tokens and not self._matcher.consume_tokens(tokens):
            return []
        return tokens


def bounded(schema: Any, longest: int) -> Any:
    """`schema` with an end to every text, and to every number that has none.

    A text has at most `longest` characters, also where the schema allows more. A number is within
    ±LARGEST, and has three decimals where its range is 1 or wider.
    """
    if not isinstance(schema, Mapping):
        return schema  # true and false are schemas too
    found = dict(schema)
    for key in ONE & found.keys():
        found[key] = bounded(found[key], longest)
    for key in SEVERAL & found.keys():
        found[key] = [bounded(each, longest) for each in found[key]]
    for key in NAMED & found.keys():
        found[key] = {name: bounded(each, longest) for name, each in found[key].items()}
    kinds = {schema["type"]} if isinstance(schema.get("type"), str) else {*schema.get("type", ())}
    if found.keys() & {"enum", "const"}:
        return found
    if "string" in kinds and not found.keys() & {"pattern", "format"}:
        most = min(longest, found.get("maxLength", longest))
        found["maxLength"] = max(most, found.get("minLength", 0))
    if kinds & {"integer", "number"}:
        _bound_number(found, whole="number" not in kinds)
    return found


def _bound_number(found: dict[str, Any], whole: bool) -> None:
    if not found.keys() & {"minimum", "exclusiveMinimum"}:
        found["minimum"] = -LARGEST
    if not found.keys() & {"maximum", "exclusiveMaximum"}:
        found["maximum"] = LARGEST
    low, high = (
        found[inner] if inner in found else found[outer]
        for inner, outer in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    if not whole and high - low >= 1:
        found.setdefault("multipleOf", DECIMALS)
