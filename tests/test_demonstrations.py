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
    "consultation": ("clinic:s", {"name": "consultation"}, "891542222f17aaef"),
    "questioning": ("clinic:s", {"name": "questioning", "share": 0.5}, "993364bf7f07aac7"),
    "library": ("clinic:s", {"name": "library"}, "84f50807d9011347"),
    "library of findings": (
        "clinic:s",
        {"name": "library", "refined": "findings"},
        "1fbea3ac0c384b40",
    ),
    "one query, no refinement": (
        "clinic:s",
        {"name": "library", "subqueries": 0, "refine": False, "shuffled": True},
        "bbfe661a1e45501c",
    ),
    "renamed": ("clinic:s#renamed", {"name": "library", "queried": 0}, "9de2928624131a75"),
    "linked": (
        "clinic:s#renamed,linked",
        {"name": "library", "refined": "findings", "max_turns": 6},
        "9b9812834483e5cb",
    ),
    "inquiry": ("clinic:s", {"name": "inquiry", "max_turns": 7}, "2059427b7c1c4f00"),
    "inquiry, linked": (
        "clinic:s#renamed,linked",
        {"name": "inquiry", "max_turns": 7},
        "da683fa89eddae34",
    ),
    "reasoning": ("clinic:s", {"name": "reasoning", "max_turns": 6}, "f9f1d28fa4e78f6b"),
    "reasoning, renamed": (
        "clinic:s#renamed",
        {"name": "reasoning", "max_turns": 4},
        "c027407957bae8bd",
    ),
    "evidence": ("clinic:pathology", {"name": "evidence", "max_turns": 4}, "2bde3462e95acd51"),
    "evidence, vague": (
        "clinic:pathology",
        {"name": "evidence", "final": "list", "vague": 0.3, "lengths": (2, 6), "max_turns": 2},
        "e7139806ff395a2a",
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
