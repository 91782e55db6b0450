"""Demonstrations for a policy that cannot yet converse: the grammar, and how evidence speaks for a diagnosis.

Random dialogues alone teach the format but not to read evidence; half of the demonstrations are therefore textbook records,
whose diagnosis is asked for after every prefix of the findings. The questions come from no expert: what to ask is left to
reinforcement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workup.case import Case, Item, Source
from workup.environments.consultation import DIAGNOSE, Consultation
from workup.episode import Action, Message
from workup.errors import UserError
from workup.ports import Demonstration, Environment
from workup.text import tagged


@dataclass(frozen=True, slots=True)
class Teaching:
    """`textbook_share` of the demonstrations are textbook records, the others random dialogues; both within [0, 1].

    Each item is drawn with probability `focus` from those the patient's record says something about, so that evidence is seen
    where most answers are normal, otherwise from all; never twice, and never one that the presentation answers. Where every
    answer is on record, `focus` changes nothing. It has a price: what was asked then tells something about the patient, so
    that the posterior learned is a little off the exact one. Never by criticality, which knows the diagnosis.
    """

    textbook_share: float = 0.5
    focus: float = 0.5

    def demonstrate(self, source: Source, environment: Environment, seed: int, index: int) -> Demonstration:
        """The index-th demonstration: the same (source, seed, index) makes the same one.

        Dialogue: k ~ U{0 … max_turns − 1} questions and the diagnosis, all of it to imitate. Textbook record: max_turns − 1
        findings as context only, with the diagnosis to imitate after each prefix. Raises UserError for a source without items
        and for another environment than the consultation.
        """
        if not isinstance(environment, Consultation) or not source.items:
            raise UserError(
                f"no demonstrations can be made from '{source.name}': it needs a consultation about a source that lists its "
                "items; leave out the warm start and begin with a policy that can converse"
            )
        rng = np.random.default_rng([seed, index])
        case = source.train[int(rng.integers(len(source.train)))]
        textbook = bool(rng.random() < self.textbook_share)
        most = environment.max_turns - 1
        asked = self._draw(case, source, most if textbook else int(rng.integers(most + 1)), rng)
        exchanges = tuple(_exchange(environment, case, item) for item in asked)
        diagnosis = tagged(DIAGNOSE, case.truth.diagnosis)
        if textbook:
            # Whether to conclude is not taught here, only what follows from the evidence if one does.
            begun = f"<{DIAGNOSE}>"
            probes = tuple((before, begun, diagnosis.removeprefix(begun)) for before in range(len(exchanges) + 1))
            return Demonstration(environment.open(case), exchanges, probes, imitate=False)
        return Demonstration(environment.open(case), (*exchanges, (diagnosis, ())))

    def _draw(self, case: Case, source: Source, count: int, rng: np.random.Generator) -> list[Item]:
        stated = {fact.item for fact in case.given}
        positive = {fact.item for fact in case.truth.facts}
        left = [source.items[place] for place in rng.permutation(len(source.items))]
        left = [item for item in left if item.name not in stated]
        drawn: list[Item] = []
        for focused in rng.random(min(count, len(left))) < self.focus:
            telling = next((place for place, item in enumerate(left) if item.name in positive), 0) if focused else 0
            drawn.append(left.pop(telling))
        return drawn


def _exchange(environment: Consultation, case: Case, item: Item) -> tuple[str, tuple[Message, ...]]:
    said = tagged(item.kind.value, item.name)
    return said, environment.reply(case, Action(item.kind.value, (item.name,))).messages
