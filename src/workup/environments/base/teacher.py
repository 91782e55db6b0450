"""Demonstrations for a policy that cannot yet converse: the grammar, and how to read evidence.

There are three kinds. Random dialogues teach the format, but not to read evidence. Textbook records
ask for the diagnosis after every prefix of the findings. Summaries have findings in the
presentation. The questions come from no expert: what to ask is left to reinforcement. With
`Teaching.doctor` that doctor asks, in dialogues and in textbook records.

A teacher is a `Doctor`: a demonstration is what it says in an encounter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Case, Item, Source
from workup.core.draws import seed_key
from workup.core.episode import DIAGNOSE, Completion, Ending, Message, Turn
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Act, Demonstration, Doctor, Environment, Sampling, Teaching
from workup.core.text import neutralise
from workup.rl.rollout import Play, ToPlay, rollout
from workup.rl.running import run_to_end

_BLANK = "\0"  # what no diagnosis is called


def demonstrate(
    world: Environment, source: Source, teaching: Teaching, seed: int, index: int
) -> Demonstration:
    """The index-th demonstration: the same (source, seed, index) makes the same one.

    Dialogue: k ~ U{0 … max_turns − 1} questions and the diagnosis.
    Textbook record: max_turns − 1 questions and the diagnosis, which is taught after each prefix of
    the findings too. Summary: the diagnosis after U{0 … |F|} of the findings. Raises UserError for
    a source without items, and where findings cannot be asked for one by one.
    """
    if not world.about.asks or not source.items:
        raise UserError(
            f"no demonstrations can be made from '{source.name}': it needs a consultation or "
            "questions to a patient, and a source that lists its items; leave out the warm "
            "start and begin with a policy that can converse"
        )
    case, rng = drawn_case(source, seed, index)
    diagnosis = world.write(DIAGNOSE, case.truth.diagnosis)
    if teaching.summary_share and rng.random() < teaching.summary_share:
        return Demonstration(_summary(world, case, rng), ((diagnosis, ()),))
    textbook = bool(rng.random() < teaching.textbook_share)
    if teaching.doctor is None:
        most = world.max_turns - 1
        count = most if textbook else int(rng.integers(most + 1))
        items = drawn_items(
            case, source, world.about.known(case), count, teaching.focus, rng, teaching.popularity
        )
        questions = [world.write(item.kind.value, item.name) for item in items]
        shown = Demonstration(
            world.open(case), exchanges(played(case, world, Recital((*questions, diagnosis))))
        )
    else:
        shown = imitation(case, world, teaching.doctor, seed, index)
    if not textbook:
        return shown
    # This does not teach when to conclude, only what to conclude from the evidence.
    begun = world.write(DIAGNOSE, _BLANK).partition(_BLANK)[0].rstrip()
    rest = diagnosis.removeprefix(begun)
    asked = len(shown.exchanges) - 1
    return replace(shown, branches=tuple((before, begun, rest) for before in range(asked)))


def drawn_case(source: Source, seed: int, index: int) -> tuple[Case, np.random.Generator]:
    """The training case of the index-th demonstration, and the generator for the rest of it."""
    rng = np.random.default_rng([seed, index])
    return source.train[int(rng.integers(len(source.train)))], rng


Lead = Callable[[Sequence[Turn]], str]
"""Past turns → what the grammar wants before the next action, such as a refinement."""


def imitation(
    case: Case,
    environment: Environment,
    doctor: Doctor,
    seed: int,
    index: int,
    lead: Lead = lambda past: "",
) -> Demonstration:
    """The index-th demonstration as the encounter that `doctor` plays with `case`.

    All of it is imitated, the diagnosis that the doctor names included. (seed, index) seeds what it
    draws. Raises as `played` does.
    """
    turns = played(case, environment, _Led(doctor, lead), seed_key("teacher", seed, index))
    return Demonstration(environment.open(case), exchanges(turns))


@dataclass(frozen=True, slots=True)
class _Led:
    """A `Doctor` that does what `doctor` does, and begins each action with its `lead`."""

    doctor: Doctor
    lead: Lead

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        act = await self.doctor.act(case, opening, past, sampling)
        return Act((), Completion(self.lead(past) + act.completion.text))


@dataclass(frozen=True, slots=True)
class Recital:
    """A `Doctor` that says these texts, one in each turn, and from then on the last one."""

    texts: Sequence[str]

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        return Act((), Completion(self.texts[min(len(past), len(self.texts) - 1)]))


def played(case: Case, environment: Environment, teacher: Doctor, key: int = 0) -> tuple[Turn, ...]:
    """The turns of an encounter that a teacher plays, its diagnosis the last one.

    `key` seeds what the teacher draws. Raises RolloutError where the environment gives up,
    UserError where it cannot read the diagnosis.
    """
    episode = run_to_end(rollout(ToPlay(case, key), environment, teacher, Play()))
    if episode.ending is Ending.FAILED:
        raise RolloutError(episode.reason)
    if episode.ending is not Ending.DIAGNOSED:
        raise UserError(
            f"case '{case.id}': no demonstration can end with '{case.truth.diagnosis}', which is "
            "no name that this environment reads"
        )
    return episode.turns


def exchanges(turns: Sequence[Turn]) -> tuple[tuple[str, tuple[Message, ...]], ...]:
    """The turns as a demonstration has them."""
    return tuple((turn.completion.text, turn.observation.messages) for turn in turns)


def drawn_items(
    case: Case,
    source: Source,
    known: Collection[str],
    count: int,
    focus: float,
    rng: np.random.Generator,
    popularity: float = 0.0,
) -> list[Item]:
    """At most `count` items to ask for, none of which is `known`; see `Teaching` for the rest."""
    positive = {fact.item for fact in case.truth.facts}
    left = [
        source.items[place]
        for place in _by_popularity(len(source.items), known, popularity, rng)
        if source.items[place].name not in known
    ]
    drawn: list[Item] = []
    for focused in rng.random(min(count, len(left))) < focus:
        telling = (
            next((place for place, item in enumerate(left) if item.name in positive), 0)
            if focused
            else 0
        )
        drawn.append(left.pop(telling))
    return drawn


def _by_popularity(
    count: int, known: Collection[str], popularity: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The places of `count` items in the order in which they are drawn, without replacement.

    An item of rank r is drawn in proportion to (1 + r)^−popularity: the largest of the weights'
    logarithms plus Gumbel noise comes first, which is that draw. The ranks follow from `known`.
    """
    if not popularity:
        return rng.permutation(count)
    ranks = np.random.default_rng(crc32("\n".join(sorted(known)).encode())).permutation(count)
    return np.argsort(popularity * np.log1p(ranks) - rng.gumbel(size=count))


def _summary(environment: Environment, case: Case, rng: np.random.Generator) -> tuple[Message, ...]:
    facts = case.truth.facts
    count = int(rng.integers(len(facts) + 1))
    lines = "".join(
        f"\n{neutralise(facts[place].text)}" for place in rng.permutation(len(facts))[:count]
    )
    *before, last = environment.open(case)
    return (*before, replace(last, content=last.content + lines))
