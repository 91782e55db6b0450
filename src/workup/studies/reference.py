"""What raises a frozen model's belief in the truth (CM-5).

It is the premise of C-MIG's gains. Each case is shown one passage at a time, in several states,
from the right one to shuffled words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from markupsafe import Markup
from pydantic import Field

from workup.cases.publications import publications
from workup.core.case import Case, Document, Passage, Source
from workup.core.disk import there
from workup.core.draws import seed_key
from workup.core.errors import RolloutError, UserError
from workup.core.leaks import Mask
from workup.core.ports import Environment, Scorer, ScoreRequest
from workup.core.statistics import SHARE, Estimate, interval, paired
from workup.core.text import neutralise, tagged
from workup.environments.base.queries import diagnoses_in
from workup.environments.base.searched import need_names
from workup.environments.base.searching import EVIDENCE
from workup.loops.evaluation.arms import labels
from workup.retrieval import brought, local
from workup.retrieval.corpus import Fields, documents, files
from workup.retrieval.index import MANIFEST
from workup.retrieval.provenance import rests_on, subject
from workup.rl.running import run_to_end
from workup.studies.base import plots, trivia
from workup.studies.base.arms import settings_of
from workup.studies.base.likelihood import by_case, opened, weights
from workup.studies.base.result import INTERVALS, Result, Section, left_out, sheet, signed
from workup.studies.base.task import SourceSettings, Study, StudyTask

NAMED, WITHHELD, OTHER = "right, named", "right, name withheld", "another disease's"
MISNAMED, DENIED = "another's, right name", "right, then denied"
TRIVIA, SHUFFLED = "trivia", "right, words shuffled"
STATES = (NAMED, WITHHELD, MISNAMED, OTHER, DENIED, TRIVIA, SHUFFLED)
FIELDS = Fields(
    title=("title", "label", "focus"), text=("text", "contents", "content", "definition")
)


class Settings(SourceSettings):
    """Where passages come from."""

    passages: str = Field(
        description="clinic:SUBSET, an index folder or a file of documents: where passages are from"
    )
    longest: int = Field(80, ge=10, description="words of a passage at most")


@dataclass(frozen=True, slots=True)
class Gains:
    """One case: what each passage added to log P(diagnosis), in nats, by state.

    `tokens` is the number of the diagnosis's tokens.
    """

    case: str
    tokens: int
    totals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PassageGain:
    """What one state of the passage gains over the cases: in nats, in nats per token of the
    diagnosis, and as the share of cases in which it raised the probability.

    `lead` is how many nats more the right, named passage gained, paired by case; None for itself.
    """

    passage: str
    total: Estimate
    per_token: Estimate
    positive: Estimate
    lead: Estimate | None


@dataclass(frozen=True)
class Reference(Result):
    """The gains of all cases."""

    titled = "Gains in log-probability on {source}"

    policy: str
    source: str
    seed: int
    gains: tuple[Gains, ...]
    left_out: Mapping[str, int]

    @property
    def facts(self) -> Mapping[str, str]:
        return {
            "Reference": self.policy,
            "Cases": f"{len(self.gains):,} of {self.source}",
            "Seed": str(self.seed),
        }

    @cached_property
    def rows(self) -> list[PassageGain]:
        """One for each of STATES."""
        ids = [each.case for each in self.gains]
        totals = {state: [each.totals[state] for each in self.gains] for state in STATES}

        def row(state: str) -> PassageGain:
            own = totals[state]
            raised = [float(value > 0) for value in own]
            token = [value / each.tokens for value, each in zip(own, self.gains, strict=True)]
            named = (totals[NAMED], ids)
            return PassageGain(
                state,
                interval(own, ids, seed=self.seed),
                interval(token, ids, seed=self.seed),
                interval(raised, ids, bounds=SHARE, seed=self.seed),
                None if state == NAMED else paired(named, (own, ids), seed=self.seed),
            )

        return [row(state) for state in STATES]

    def sections(self) -> Sequence[Section]:
        columns = {
            "passage": lambda row: row.passage,
            "gain, nats": lambda row: row.total,
            "per token": lambda row: row.per_token,
            "share positive": lambda row: row.positive,
            "named − this": lambda row: "" if row.lead is None else signed(row.lead),
        }
        note = "Against no passage; the last column is paired by case. *: leaves out 0."
        gains = sheet("Gains", self.rows, columns, note)
        panels = {"Nats per token": {"gain": [row.per_token for row in self.rows]}}

        def figure() -> Markup:
            return plots.rows("Gain in log-probability by passage", STATES, panels)

        return [Section("Gains", (gains,), figure, INTERVALS)]

    def notes(self) -> Sequence[str]:
        return left_out(self.left_out)


def run(task: StudyTask) -> Reference:
    """Scores the diagnosis of each test case behind each passage, under the policy's weights.

    A passage has at most `longest` words, and the denial comes on top. Raises UserError.
    """
    policy, corpus = task.one, task.settings.passages
    settings = settings_of(task.values, policy)
    source, environment, cases = opened(settings)
    need_names(source, brought(corpus), corpus)
    scorer, texts = weights(settings, source, environment).scorer(), texts_of(corpus)
    longest, seed = task.settings.longest, task.settings.seed
    scoring = Scoring(scorer, source, environment, texts, longest, seed)
    gains, lost = run_to_end(by_case(cases, scoring.gains, task.begin(len(cases))))
    return Reference(labels([policy])[policy], source.name, seed, gains, lost)


def texts_of(corpus: str) -> list[Document]:
    """Every document; those that only together say what a name means are one.

    Raises UserError where there are none.
    """
    path = there(corpus) or Path(corpus)
    if (library := brought(corpus)) is not None:
        every, hops = library.documents(), max(library.hops, 1)
        groups = (every[begin : begin + hops] for begin in range(0, len(every), hops))
        found = [
            Document(first.id, first.title, " ".join((first.text, *map(_joined, others))))
            for first, *others in groups
        ]
    elif (path / MANIFEST).exists():
        found = [Document(each.id, each.title, each.text) for each in local(str(path)).passages]
    else:
        if not path.exists():
            raise UserError(f"passages={corpus}: no such file; or clinic:SUBSET")
        found = [document for file in files([path]) for document, _ in documents(file, FIELDS)]
    if not found:
        raise UserError(f"passages={corpus}: no document in it")
    return found


@dataclass(frozen=True)
class Scoring:
    """What the gains of a case are made with."""

    scorer: Scorer
    source: Source
    environment: Environment
    texts: Sequence[Document]
    longest: int
    seed: int

    async def gains(self, case: Case) -> Gains | str:
        """The case's gains, or a reason without any text of the case."""
        shown = states(case, self.source, self.texts, self.longest, self.seed)
        if shown is None:
            return "no passage names the diagnosis, or every one does"
        lead, answer = self.environment.lessons.conclusion(case)
        contexts = ((), *((tagged(EVIDENCE, neutralise(shown[state])),) for state in STATES))
        opening = self.environment.open(case)
        request = ScoreRequest(case.id, answer, opening, contexts, lead)
        try:
            found = await self.scorer.score(request)
        except RolloutError:
            return "the prompt does not fit the policy"
        without, *others = found.totals
        gains = (value - without for value in others)
        return Gains(case.id, found.tokens, dict(zip(STATES, gains, strict=True)))


def states(
    case: Case, source: Source, texts: Sequence[Document], longest: int, seed: int
) -> dict[str, str] | None:
    """A passage of the case's disease in its states, by name; None where there is none.

    The right passage names the diagnosis within its first `longest` words, and is about its code
    where ids of passages are codes. Another disease's does not name it at all; under the right name
    it is told of the diagnosis. Both are drawn by `seed` and the case's id; none rests on the
    case's own publications alone. "Denied" adds a sentence to the right passage: the diagnosis was
    ruled out. So its name stands there once more, and speaks against it. All passages are told in
    the case's names.
    """
    rng = np.random.default_rng(seed_key("reference", seed, case.id))
    names, own = (case.truth.diagnosis, *case.truth.aliases), publications(case)
    codes = case.truth.codes
    bases = tuple(f"{code.partition(':')[0]}:" for code in codes if ":" in code)
    coded = any(document.id.startswith(bases) for document in texts)
    right, other = "", Document("", "", "")
    for number in rng.permutation(len(texts)).tolist():
        document = texts[number]
        if rests_on(document.id, own):
            continue
        document = _told(case, source, document)
        text = _cut(_joined(document), longest)
        mask = Mask(names)
        mask(text)
        if mask.found:
            right = right or (text if not coded or subject(document.id) in codes else "")
        elif not other.text:
            whole = Mask(names)
            whole(_joined(document))
            other = other if whole.found else document
        if right and other.text:
            break
    if not right or not other.text:
        return None
    words = right.split()
    shuffled = " ".join(words[number] for number in rng.permutation(len(words)).tolist())
    denied = f"{right} Later tests ruled this out: the patient has no {case.truth.diagnosis}."
    return {
        NAMED: right,
        WITHHELD: Mask(names)(right),
        MISNAMED: _under(case, source, other, longest),
        OTHER: _cut(_joined(other), longest),
        DENIED: denied,
        TRIVIA: _cut(" ".join(trivia.ENGLISH), len(words)),
        SHUFFLED: shuffled,
    }


def _told(case: Case, source: Source, document: Document) -> Document:
    """The document in the case's names."""
    if (library := source.library) is None:
        return document
    title, text = (library.tell(case, part) for part in (document.title, document.text))
    return Document(document.id, title, text)


def _under(case: Case, source: Source, document: Document, longest: int) -> str:
    """The document cut, with the case's diagnosis in place of those that it names.

    If the diagnosis would not stand in what is left, it stands in front.
    """
    text, name = _joined(document), case.truth.diagnosis
    theirs = diagnoses_in([Passage(document.id, document.text, document.title)], source, case)
    if theirs:  # all at once, the longest first: a name may be part of another one
        either = "|".join(map(re.escape, sorted(theirs, key=len, reverse=True)))
        text = re.sub(rf"(?<!\w)(?:{either})(?!\w)", lambda _: name, text, flags=re.IGNORECASE)
    shown = _cut(text, longest)
    return shown if name in shown else _cut(f"{name}. {text}", longest)


def _joined(document: Document) -> str:
    return f"{document.title}. {document.text}"


def _cut(text: str, longest: int) -> str:
    return " ".join(text.split()[:longest])


study = Study(
    "What raises a frozen model's belief in the right diagnosis?", run, Settings, of="policy"
)
