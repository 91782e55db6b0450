"""Queries for demonstrations in a library: drawn at random; reinforcement is to choose them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from workup.case import Case, Source
from workup.environments.base.searching import SearchGrammar
from workup.text import normalise

MOST_FINDINGS = 3  # in one query


def known_findings(source: Source, case: Case, grammar: SearchGrammar) -> list[str]:
    """The names of the findings that the patient is known to have."""
    items = {item.name for item in source.items}
    facts = (*case.given, *grammar.facts(case))
    return list(dict.fromkeys(fact.item for fact in facts if fact.item in items))


def random_query(
    source: Source, findings: Sequence[str], named: Sequence[str], rng: np.random.Generator
) -> str:
    """Some of the patient's `findings`, or one of the diagnoses that passages have `named`.

    Any diagnosis of the source where there are neither.
    """
    if named and (not findings or rng.random() < 0.5):
        return named[int(rng.integers(len(named)))]
    if not findings:
        return source.diagnoses[int(rng.integers(len(source.diagnoses)))]
    count = int(rng.integers(min(MOST_FINDINGS, len(findings)))) + 1
    return ", ".join(findings[place] for place in rng.permutation(len(findings))[:count])


@lru_cache(maxsize=1 << 12)
def mentioned(text: str, diagnoses: Sequence[str]) -> list[str]:
    """The diagnoses that `text` names, the most frequent first."""
    by_form = {normalise(name): name for name in diagnoses}
    forms = "|".join(map(re.escape, sorted(by_form, key=len, reverse=True)))
    found = re.findall(rf"(?<!\w)(?:{forms})(?!\w)", normalise(text))
    return [by_form[form] for form, _ in Counter(found).most_common()]
