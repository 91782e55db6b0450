"""What happened: turns make an episode, episodes of one case a group, groups a batch.

Everything is frozen and a transcript only ever grows. Token ids are kept exactly as they were
sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from workup.case import Case

# Two kinds of actions are in every environment: the diagnosis, which ends the encounter, and what
# could not be read.
DIAGNOSE = "diagnose"
MALFORMED = "malformed"


class Ending(StrEnum):
    """How an episode ended; one boolean must not hide these."""

    DIAGNOSED = "diagnosed"
    OUT_OF_TURNS = "out of turns"
    OUT_OF_TOKENS = "out of tokens"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What the doctor said: the text, and for a token policy exactly the ids it sampled with their
    log-probabilities.

    `tokens` and `logprobs` have the same length; both are empty for doctors that are no token
    policies (endpoints, people, anchors). `truncated` tells that the token limit cut it off.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """What the doctor did: the ONE parse of its text, read by the environment and by rewards alike.

    `kind` is a tag of the environment's grammar ("ask", "diagnose", …) or "malformed"; `content`
    its items in order; `errors` counts violations of the grammar.
    """

    kind: str
    content: tuple[str, ...] = ()
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's reply: what the doctor reads, which facts (by id) it revealed, and whether
    the episode is over.

    `item` is the canonical name of what was asked for, or "" where the environment knows no such
    item.
    """

    messages: tuple[Message, ...] = ()
    evidence: tuple[str, ...] = ()
    item: str = ""
    done: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange.

    `prompt_tokens` are the ids appended since the last completion (the environment's, never trained
    on).
    """

    prompt_tokens: tuple[int, ...]
    completion: Completion
    action: Action
    observation: Observation


@dataclass(frozen=True, slots=True)
class Episode:
    """One encounter with one case, start to end. `reason` says why a FAILED episode failed."""

    case: Case
    opening: tuple[Message, ...]
    turns: tuple[Turn, ...]
    ending: Ending
    reason: str = ""

    @property
    def answer(self) -> tuple[str, ...]:
        """The diagnosis (or ranked list) given, empty if none was."""
        last = self.turns[-1].action if self.turns else None
        return last.content if last is not None and last.kind == DIAGNOSE else ()

    @property
    def discovered(self) -> frozenset[str]:
        """Ids of the facts revealed during the encounter: CRAFT's δ(τ, F) by identity (CR-5)."""
        return frozenset(fact for turn in self.turns for fact in turn.observation.evidence)

    @property
    def questions(self) -> int:
        """How many actions other than the diagnosis were taken."""
        return sum(turn.action.kind != DIAGNOSE for turn in self.turns)


Group = tuple[Episode, ...]
Batch = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """One number per turn; their sum is the episode's return.

    `parts` names every component for reader and report.
    """

    turns: tuple[float, ...]
    parts: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def at_end(cls, episode: Episode, value: float, **parts: float) -> Score:
        """A trajectory-level reward: everything on the last turn."""
        return cls((0.0,) * (len(episode.turns) - 1) + (value,), parts)

    @property
    def total(self) -> float:
        return sum(self.turns)


Scores = Sequence[Sequence[Score]]  # aligned with Batch: scores[group][episode]


@dataclass(frozen=True, slots=True)
class Sample:
    """The waist: everything above is ours, everything below is the engine's.

    All five tuples have one entry per token of the whole transcript. `mask` is True for tokens the
    policy produced; `advantages` and `logprobs` (of the sampling policy, natural log) are 0
    elsewhere; `turn_ids` counts turns from 0.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    turn_ids: tuple[int, ...]
