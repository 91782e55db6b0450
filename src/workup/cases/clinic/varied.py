"""The clinic's patients told otherwise: in other words, or with diseases to choose from.

`clinic:s#reworded` has the patients of `clinic:s` with other sentences for the same findings: where
one is told "The patient reports fever.", the other is told "The patient complains of fever.". With
`clinic:s#options` every case lists all diseases as options, in an order drawn for the case; of
more than 26 diseases, the right one and 25 drawn for the case. With `clinic:s#options,reordered`
they stand in the reverse of that order. Ids are those of the plain clinic, so that results are
paired patient by patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from workup.cases.clinic.patients import SIDES, Patients, clinic, recorded
from workup.core.case import MOST_OPTIONS, Case, Fact, Source
from workup.core.errors import unknown
from workup.core.lazy import Lazy

REWORDED, CHOICES, REORDERED = "reworded", "options", "options,reordered"
VARIANTS = (REWORDED, CHOICES, REORDERED)
_ORDER = 2  # in the seed: no other draw of a patient has it


def varied(source: Source, subset: str, how: str) -> Source:
    """`source`, the clinic of that subset, told otherwise. Raises UserError for an unknown way."""
    if how not in VARIANTS:
        known = [f"{subset}#{each}" for each in (*VARIANTS, "renamed")]
        raise unknown("clinic", f"{subset}#{how}", known)

    def side(patients: Sequence[Case]) -> Sequence[Case]:
        assert isinstance(patients, Patients)  # the clinic's own, which know their places

        def tell(index: int) -> Case:
            if how == REWORDED:
                return _reworded(subset, patients[index])
            return _choosing(patients, index, source.diagnoses, reverse=how == REORDERED)

        return Lazy(len(patients), tell, id_of=patients.id_of)

    made = replace(source, name=f"{source.name}#{how}")
    return replace(made, train=side(source.train), test=side(source.test))


@lru_cache
def next_wording(subset: str) -> Mapping[str, str]:
    """Each sentence of a finding → the finding's next one."""
    found: dict[str, str] = {}
    for finding in clinic(subset).tables.findings:
        told = tuple(dict.fromkeys(finding.present))
        found |= dict(zip(told, (*told[1:], told[0]), strict=True))
    return found


def _reworded(subset: str, case: Case) -> Case:
    words = next_wording(subset)

    def told(facts: Sequence[Fact]) -> tuple[Fact, ...]:
        # What is no sentence of a finding, such as age and sex, has no other wording.
        return tuple(replace(fact, text=words.get(fact.text, fact.text)) for fact in facts)

    given, facts = told(case.given), told(case.truth.facts)
    age, _, complaint = given
    presentation = f"{age.text} {complaint.text}"
    truth = replace(case.truth, facts=facts, record=recorded(presentation, facts))
    return replace(case, presentation=presentation, given=given, truth=truth)


def _choosing(patients: Patients, index: int, diagnoses: Sequence[str], *, reverse: bool) -> Case:
    """The case with options, in the order of its own draw or in its reverse."""
    case, place = patients[index], [patients.split, SIDES.index(patients.side)]
    rng = np.random.default_rng([*place, patients.indices[index], _ORDER])
    drawn = [diagnoses[number] for number in rng.permutation(len(diagnoses))]
    others = [name for name in drawn if name != case.truth.diagnosis][: MOST_OPTIONS - 1]
    options = [name for name in drawn if name in (*others, case.truth.diagnosis)]
    return replace(case, options=tuple(options[::-1] if reverse else options))
