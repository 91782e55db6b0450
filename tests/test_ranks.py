"""The study of ranked lists: what honest lists earn, against sums written out (ES-6)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studying import done, here, numbers_of

from workup.cases import open_source
from workup.core.case import Source, evidence_of
from workup.core.errors import UserError
from workup.methods.evidence_seeking.ranked import R_d
from workup.studies.ranks import LENGTHS, PRESENTATION, RESULTS, earned

__all__ = ["here"]  # a fixture

WING = open_source("clinic:pathology")
TAUS = (0.8, 1.5)
FOUND = earned(WING, 6, TAUS, 0, lambda: None)


def test_what_honest_lists_earn_is_what_the_posterior_says() -> None:
    assert WING.knowledge is not None
    cases = [WING.test[place * len(WING.test) // 6] for place in range(6)]
    for τ in TAUS:
        for D in LENGTHS:
            (one,) = (
                each
                for each in FOUND.honest
                if (each.known, each.τ, each.length) == (PRESENTATION, τ, D)
            )
            expected = paid = hit = 0.0
            for case in cases:
                posterior = WING.knowledge.posterior(evidence_of(case.given))
                ranked = sorted(zip(posterior, WING.knowledge.diagnoses, strict=True), reverse=True)
                weights = [math.exp(-place / τ) for place in range(1, D + 1)]
                for weight, (chance, name) in zip(weights, ranked, strict=False):
                    expected += chance * weight / sum(weights) / len(cases)
                    if name == case.truth.diagnosis:
                        paid += weight / sum(weights) / len(cases)
                        hit += 1 / len(cases)
            assert one.expected.mean == pytest.approx(expected)
            assert one.paid.mean == pytest.approx(paid)
            assert one.hit.mean == pytest.approx(hit)


def test_a_list_of_one_is_the_best_at_every_tau_without_the_bonus() -> None:
    assert {each.known for each in FOUND.honest} == {PRESENTATION, RESULTS}
    assert all(each.best.mean == float(each.length == 1) for each in FOUND.honest)
    for known in (PRESENTATION, RESULTS):
        for τ in TAUS:
            shares = [e.rewarded.mean for e in FOUND.honest if (e.known, e.τ) == (known, τ)]
            assert math.fsum(shares) == pytest.approx(1)


@given(st.floats(0.01, 0.99), st.floats(0, 1), st.floats(0.2, 10), st.floats(0, 0.5))
def test_the_bonus_makes_two_better_by_the_gap_of_the_first_two(
    first: float, share: float, τ: float, bonus: float
) -> None:
    second = share * min(first, 1 - first)
    two = first * R_d(1, 2, τ) + second * R_d(2, 2, τ) + bonus
    gap = bonus * (1 + math.exp(1 / τ)) - (first - second)
    assert abs(gap) < 1e-9 or (two > first) == (gap > 0)


def test_what_it_cannot_study_is_told() -> None:
    with pytest.raises(UserError, match="every τ is larger than 0"):
        earned(WING, 2, (0.0, 1.0), 0, lambda: None)
    with pytest.raises(UserError, match="clinic:pathology has one"):
        earned(Source("jsonl:x", (), ()), 2, TAUS, 0, lambda: None)
    with pytest.raises(UserError, match="name each τ once"):
        earned(WING, 2, (1.0, 1.0), 0, lambda: None)


def test_no_list_is_longer_than_there_are_diseases() -> None:
    small = open_source("clinic:xs")
    found = earned(small, 2, (1.0,), 0, lambda: None)
    assert found.lengths == list(range(1, len(small.diagnoses) + 1)) != list(LENGTHS)
    assert [row[1] for row in found.sections()[1].sheets[0].rows] == ["1", "2", "3", "5"] * 2


def test_every_line_is_in_the_legend_with_its_own_look() -> None:
    small = open_source("clinic:xs")
    sections = earned(small, 2, (0.5, 1.0), 0, lambda: None).sections()
    pages = [str(section.figure()) for section in sections if section.figure is not None]
    keys, honest = (
        re.findall(r'<b style="color:(.*?)">(.*?)</b>(.*?)</span>', page) for page in pages
    )
    assert [name for *_, name in keys] == [
        *("τ = 0.5", "τ = 1"),
        *(f"|D| = {length}" for length in (1, 3, 5, 10)),
    ]
    assert len({(colour, symbol) for colour, symbol, _ in keys}) == len(keys)
    assert honest == keys[:2], "a τ looks the same in both figures"


def test_the_command_writes_numbers_and_a_page() -> None:
    done("study ranks n=3 taus=0.8 --out s")
    ((τ, *rewards),) = numbers_of("s", "ranks")["tables"][0]["rows"]
    assert τ == "0.8"
    assert rewards == [f"{R_d(i, D, 0.8):.3f}" for i, D in (*((i, 5) for i in range(1, 6)), (1, 4))]
    assert "Fig. 3" in Path("s/ranks.html").read_text()
