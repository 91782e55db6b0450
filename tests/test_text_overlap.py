"""BLEU against nltk, ROUGE against a count by hand, in English and Chinese."""

from __future__ import annotations

import sys
import time
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.bleu_score import sentence_bleu as nltk_sentence

from workup.core.errors import UserError
from workup.metrics import text_overlap
from workup.metrics.text_overlap import bleu, rouge, words

WORDS = ["the", "patient", "has", "a", "fever", "and", "needs", "rest"]
ENGLISH = st.lists(st.sampled_from(WORDS), min_size=5, max_size=30).map(" ".join)
CHINESE = st.text(st.sampled_from("建议患者进行胃镜检查和血常规"), min_size=5, max_size=30)


def split(text: str) -> list[str]:
    return text.split() if text.isascii() else list(text)


def ngrams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1))


def shares(answer: list[str], reference: list[str], n: int) -> tuple[float, float]:
    """(recall, F1) of n-grams."""
    ours, theirs = ngrams(answer, n), ngrams(reference, n)
    both = (ours & theirs).total()
    recall = both / theirs.total() if theirs else 0.0
    precision = both / ours.total() if ours else 0.0
    return recall, 2 * precision * recall / (precision + recall) if both else 0.0


def longest(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The longest common subsequence, by its definition."""

    @cache
    def of(i: int, j: int) -> int:
        if i == len(a) or j == len(b):
            return 0
        return 1 + of(i + 1, j + 1) if a[i] == b[j] else max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.tuples(ENGLISH, ENGLISH), st.tuples(CHINESE, CHINESE)))
def test_rouge_is_its_definition(pair: tuple[str, str]) -> None:
    answer, reference = (split(text) for text in pair)
    found = rouge(*pair[:1], [pair[1]])
    recall, f1 = shares(answer, reference, 1)
    assert (found["rouge1_recall"], found["rouge1"]) == pytest.approx((recall, f1))
    assert found["rouge2"] == pytest.approx(shares(answer, reference, 2)[1])
    common = longest(tuple(answer), tuple(reference))
    assert found["rougeL"] == pytest.approx(2 * common / (len(answer) + len(reference)))


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.tuples(ENGLISH, ENGLISH), st.tuples(CHINESE, CHINESE)))
def test_bleu_is_nltks_where_nothing_is_smoothed(pair: tuple[str, str]) -> None:
    answer, reference = (split(text) for text in pair)
    if all(ngrams(answer, n) & ngrams(reference, n) for n in range(1, 5)):
        assert bleu(pair[0], [pair[1]]) == pytest.approx(nltk_sentence([reference], answer))
    assert 0 <= bleu(pair[0], [pair[1]]) <= 1


@given(st.one_of(ENGLISH, CHINESE))
def test_a_text_is_wholly_like_itself(text: str) -> None:
    assert bleu(text, [text]) == pytest.approx(1)
    found = rouge(text, ["something else", text])
    assert [
        found[name] for name in ("rouge1", "rouge2", "rougeL", "rouge1_recall")
    ] == pytest.approx([1, 1, 1, 1])


@pytest.mark.parametrize("answer", ["", "   ", "!!!", "完全不同"])
def test_what_shares_nothing_is_worth_nothing(answer: str) -> None:
    assert bleu(answer, ["fever and cough for three days"]) == pytest.approx(0, abs=1e-6)
    assert set(rouge(answer, ["fever and cough for three days"]).values()) == {0.0}
    assert rouge("fever", []) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0, "rouge1_recall": 0.0}


def test_words_are_those_of_both_languages() -> None:
    assert words("Check CRP, then 胃镜 (2 mg)!") == ["check", "crp", "then", "胃", "镜", "2", "mg"]


def test_long_answers_are_bounded() -> None:
    began = time.thread_time()
    rouge("fever cough " * 200_000, ["cough rest " * 200_000])
    bleu("fever cough " * 200_000, ["cough rest " * 200_000])
    assert time.thread_time() - began < 30


@pytest.mark.parametrize("package", ["sacrebleu", "rouge_score"])
def test_what_is_missing_is_told_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    text_overlap._bleu.cache_clear()
    text_overlap._rouge.cache_clear()
    with pytest.raises(UserError, match=rf"{package} is not installed.*pip install .*\[text\]"):
        bleu("a", ["a"]) if package == "sacrebleu" else rouge("a", ["a"])
