"""How much of a reference text an answer shares: BLEU-4 and ROUGE, for CMB-Clin (PM-16).

The libraries (sacrebleu, rouge-score) come with the extra `text`. Chinese has no spaces: each of
its characters is a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

from workup.core.case import Case
from workup.core.extras import wanted
from workup.core.text import settled

# Characters of a text that are compared: ROUGE-L's time grows with the product of the two texts'
# lengths in words.
LONGEST = 20_000
_MOST_WORDS = 2_000
_HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_CHINESE = re.compile(f"[{_HAN}]")
ROUGE = ("rouge1", "rouge2", "rougeL")


def bleu(answer: str, references: Sequence[str]) -> float:
    """BLEU-4 of one answer, in [0, 1]: brevity penalty times the mean of n-gram precisions.

    It is sentence BLEU: the mean is geometric, n ≤ 4, with exponential smoothing of empty
    precisions. Answers of fewer than four words use the orders they have. The mean over answers is
    not the corpus BLEU, which adds counts before it divides.
    """
    if not answer.strip():
        return 0.0
    scorer = _bleu(any(map(_CHINESE.search, (answer, *references))))
    scored = scorer.sentence_score(answer[:LONGEST], [text[:LONGEST] for text in references])
    return min(1.0, float(scored.score) / 100)  # rounding may have carried it above 100 percent


def rouge(answer: str, references: Sequence[str]) -> dict[str, float]:
    """rouge1, rouge2 and rougeL (F1) and rouge1_recall, in [0, 1]; of several references the best.

    ProMed's "ROUGE-R" is an overlap divided by the reference's n-grams, that is a recall.
    """
    scorer = _rouge()
    scored = [scorer.score(text[:LONGEST], answer[:LONGEST]) for text in references]
    found = {
        name: max((float(scores[name].fmeasure) for scores in scored), default=0.0)
        for name in ROUGE
    }
    return {
        **found,
        "rouge1_recall": max((float(scores["rouge1"].recall) for scores in scored), default=0.0),
    }


def references(case: Case) -> tuple[str, ...]:
    """The texts that an answer to the case is compared with."""
    return case.truth.diagnosis, *case.truth.aliases


def words(text: str) -> list[str]:
    """Words of letters and digits in lower case, Chinese characters one by one; the first 2,000."""
    return _WORD.findall(unicodedata.normalize("NFKC", settled(text)).lower())[:_MOST_WORDS]


@cache
def _bleu(chinese: bool) -> Any:
    metric = wanted("sacrebleu.metrics").BLEU
    return metric(lowercase=True, tokenize="zh" if chinese else "13a", effective_order=True)


class _Words:
    """The tokenizer of `words`; rouge-score's own drops all characters that are not ASCII."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


@cache
def _rouge() -> Any:
    return wanted("rouge_score.rouge_scorer").RougeScorer(list(ROUGE), tokenizer=_Words())
