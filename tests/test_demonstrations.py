"""Demonstrations stay what they were, to the character: digests of what equal seeds make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import pytest

from workup.cases import open_source
from workup.core.ports import Teaching
from workup.runs.settings import world

# (cases, environment) → the digest of 24 demonstrations.
WORLDS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "consultation": ("clinic:s", {"name": "consultation"}, "697430aaadbdd0c6"),
    "questioning": ("clinic:s", {"name": "questioning", "share": 0.5}, "e93abfbca7c96412"),
    "library": ("clinic:s", {"name": "library"}, "428f0f33c4b84363"),
    "library of findings": (
        "clinic:s",
        {"name": "library", "refined": "findings"},
        "de3ebaf1a9e987eb",
    ),
    "one query, no refinement": (
        "clinic:s",
        {"name": "library", "subqueries": 0, "refine": False, "shuffled": True},
        "c544ca79202a0416",
    ),
    "renamed": ("clinic:s#renamed", {"name": "library", "queried": 0}, "ed87b5776d029837"),
    "linked": (
        "clinic:s#renamed,linked",
        {"name": "library", "refined": "findings", "max_turns": 6},
        "19a7e2a785667677",
    ),
    "inquiry": ("clinic:s", {"name": "inquiry", "max_turns": 7}, "6385b4ea4d671788"),
    "inquiry, linked": (
        "clinic:s#renamed,linked",
        {"name": "inquiry", "max_turns": 7},
        "3e35b0f74927caed",
    ),
    "reasoning": ("clinic:s", {"name": "reasoning", "max_turns": 6}, "1874d80ec86f7a0e"),
    "reasoning, renamed": (
        "clinic:s#renamed",
        {"name": "reasoning", "max_turns": 4},
        "82814717c452b75a",
    ),
    "evidence": ("clinic:pathology", {"name": "evidence", "max_turns": 4}, "0d4ec3ef8b367d67"),
    "evidence, vague": (
        "clinic:pathology",
        {"name": "evidence", "final": "list", "vague": 0.3, "lengths": (2, 6), "max_turns": 2},
        "1e7a8f08eb55d3da",
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_equal_seeds_make_equal_demonstrations(name: str) -> None:
    cases, chosen, digest = WORLDS[name]
    source = open_source(cases)
    environment = world(dict(chosen), {}).open(source)
    teaching = Teaching(summary_share=0.2)
    made = [environment.demonstrate(source, teaching, 7, index) for index in range(24)]
    text = json.dumps([asdict(each) for each in made], ensure_ascii=False)
    assert sha256(text.encode()).hexdigest()[:16] == digest, name
