"""Safety: dangerous diseases found, diagnoses named too early, requests after all was settled.

Option: a file with the names of the diseases that must not be missed, one a line; else the
source's own list counts (`Source.must_not_miss`). Premature closure and over-ordering are by the
exact posterior: they need a source with a model of its cases, and an environment that asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from workup.cases.files import existing, scan
from workup.core.case import Case, Evidence, evidence_of
from workup.core.episode import Ending, Episode
from workup.core.errors import CaseError, unknown
from workup.core.text import normalise
from workup.environments.base.anchors import BayesDiagnoser
from workup.metrics.extra import Measure, MeasuredWorld, Values
from workup.metrics.metric import COUNT, Metric
from workup.metrics.reading import reader_of

SETTLED = 0.95
_EXACT = "where nothing can be asked for, or the source has no model of its cases"
METRICS = (
    Metric(
        "must_not_miss",
        "sensitivity for the diseases that must not be missed: the share of their episodes with a "
        "right diagnosis",
        "must not miss",
        undefined="where the disease is another one",
        rank=270,
    ),
    Metric(
        "premature",
        "share of all diagnoses at which a question was left, the true disease was not the most "
        "probable one, and one more answer of this patient would have made it so",
        "premature closure",
        undefined=f"{_EXACT}, and without a diagnosis",
        rank=280,
    ),
    Metric(
        "over_ordered",
        f"requests made after the exact posterior of some disease had reached {SETTLED:g}",
        "over-ordered",
        undefined=_EXACT,
        range=COUNT,
        rank=290,
    ),
)


def open_in(option: str, world: MeasuredWorld) -> Measure:
    """The measure. Raises UserError for a missing file, CaseError for a disease not on the list."""
    source, environment = world
    named = _listed(option, source.diagnoses) if option else source.must_not_miss
    dangerous = frozenset(map(normalise, named))
    reader = reader_of(source, environment)

    async def measure(episode: Episode, correct: bool) -> Values:
        """must_not_miss and premature ∈ {0, 1}, over_ordered ≥ 0."""
        truth = episode.case.truth.diagnosis
        return {
            "must_not_miss": float(correct) if normalise(truth) in dangerous else None,
            "premature": premature(episode, reader, environment.max_turns) if reader else None,
            "over_ordered": float(over_ordered(episode, reader)) if reader else None,
        }

    return measure


def premature(episode: Episode, reader: BayesDiagnoser, turns: int) -> float | None:
    """Whether the doctor closed before the decisive finding; None without a diagnosis.

    A finding is decisive if the true disease is not the most probable one by all that the doctor
    knows, and is it as soon as this patient's answer to one item that was not asked is known too. A
    doctor that used all `turns` of the encounter had no question left.
    """
    if episode.ending is not Ending.DIAGNOSED:
        return None
    case, past = episode.case, episode.gathered
    known = reader.evidence(case, past)
    truth = case.truth.diagnosis
    if len(past) >= turns - 1 or reader.most_probable(known) == truth:
        return 0.0
    answers = (known | answer_of(reader, case, name) for name in reader.items if name not in known)
    return float(any(reader.most_probable(each) == truth for each in answers))


def over_ordered(episode: Episode, reader: BayesDiagnoser) -> int:
    """How many requests followed after a disease had the posterior SETTLED for the first time."""
    past = episode.gathered
    for asked in range(len(past)):
        posterior = reader.knowledge.posterior(reader.evidence(episode.case, past[:asked]))
        if max(posterior) >= SETTLED:
            return len(past) - asked
    return 0


def answer_of(reader: BayesDiagnoser, case: Case, name: str) -> Evidence:
    """What asking for one item says: its findings, or that it is normal.

    If its parent was not asked for and is absent, so are both.
    """
    record = evidence_of(case.all_facts)
    parent = reader.items[name].parent
    if parent in reader.items and parent not in record:
        return {name: (), parent: ()}
    return {name: record.get(name, ())}


def _listed(file: str, diagnoses: Sequence[str]) -> frozenset[str]:
    """The diseases that a file names, one a line; of a source with a closed list no others."""
    path = existing(file)
    named = {line.number: line.text.strip() for line in scan(path) if line.text.strip()}
    if not named:
        raise CaseError("it names no disease", file=path)
    for number, name in named.items():
        if diagnoses and name not in diagnoses:
            raise CaseError(str(unknown("disease", name, diagnoses)), file=path, line=number)
    return frozenset(named.values())
