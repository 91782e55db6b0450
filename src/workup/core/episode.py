"""What happened: turns make an episode, episodes of one case a group, groups a batch.

Everything is frozen, and a transcript only grows. Token ids stay exactly as they were sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from workup.core.case import Case, Kind, Passage
from workup.core.text import normalise

# Two kinds of actions are in every environment: the diagnosis, which ends the encounter, and what
# could not be read.
DIAGNOSE = "diagnose"
MALFORMED = "malformed"
ASK = Kind.HISTORY.value  # a question, where a patient answers


class Ending(StrEnum):
    """How an episode ended."""

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
    """What the doctor said: the text, and from a token policy its ids and log-probabilities too.

    The ids are exactly those that were sampled. `tokens` and `logprobs` have the same length; both
    are empty for other doctors (endpoints, people, anchors). `truncated` says that the token limit
    cut the text off.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What a completion says besides its action, under a name of the environment's grammar.

    `items` are its texts in order: the candidates of a list, the one text of a thought.
    """

    name: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """What the doctor said and did: the only parse of its text.

    Environment, rewards, measures and exports read this one. `kind` is a tag of the environment's
    grammar ("ask", "diagnose", …) or "malformed". `content` holds the tag's items in order.
    `errors` counts violations of the grammar. `parts` are all else that was read: refinements,
    thoughts, ranked lists. A part that the text does not have is left out.
    """

    kind: str
    content: tuple[str, ...] = ()
    errors: int = 0
    parts: tuple[Part, ...] = ()

    def part(self, name: str) -> tuple[str, ...]:
        """The items of the part of this name; empty where the text does not have it."""
        return next((part.items for part in self.parts if part.name == name), ())


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's reply: `messages` for the doctor, and the ids of the facts revealed.

    `done` says that the episode is over. `item` is the canonical name of what was asked for; "" if
    the environment knows no such item. `understood` is False where the other side could not tell
    what a readable request means, or has nothing on it: the reply then says neither that a finding
    is there nor that it is not. With an `item` the patient understood, and is not sure.
    `understood_by` is the step by which an exact record or patient, who answered, found what was
    asked for (`workup.environments.base.matcher.STEPS`), else "". `sources` says of each ordered
    examination where its result came from, in the order of the orders, as
    `workup.environments.exams.rages.ResultSource` names it; it is empty where nothing is ordered.
    `passages` are what a search returned, in their order and as the doctor reads them in
    `messages`, with scores of 0; it is empty where the search found nothing, and None where nothing
    was searched.
    """

    messages: tuple[Message, ...] = ()
    evidence: tuple[str, ...] = ()
    item: str = ""
    done: bool = False
    sources: tuple[str, ...] = ()
    understood: bool = True
    passages: tuple[Passage, ...] | None = None
    understood_by: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and the reply to it.

    `prompt_tokens` are the ids appended since the last completion. They are the environment's, and
    are never trained on.
    """

    prompt_tokens: tuple[int, ...]
    completion: Completion
    action: Action
    observation: Observation

    @property
    def topic(self) -> tuple[str, str] | None:
        """What was asked for: the item that was reached, else the wording in its normal form.

        None where nothing could be read.
        """
        if self.observation.item:
            return "item", self.observation.item
        asked = normalise("; ".join(self.action.content))
        return ("wording", asked) if self.action.content else None


@dataclass(frozen=True, slots=True)
class Episode:
    """One encounter with one case, from start to end. `reason` says why a FAILED episode failed."""

    case: Case
    opening: tuple[Message, ...]
    turns: tuple[Turn, ...]
    ending: Ending
    reason: str = ""

    @property
    def answer(self) -> tuple[str, ...]:
        """The diagnosis (or ranked list) that was given; empty if there was none."""
        last = self.turns[-1].action if self.turns else None
        return last.content if last is not None and last.kind == DIAGNOSE else ()

    @property
    def discovered(self) -> frozenset[str]:
        """The ids of the facts revealed so far: CRAFT's δ(τ, F) by identity (CR-5)."""
        return frozenset(fact for turn in self.turns for fact in turn.observation.evidence)

    @property
    def actions(self) -> tuple[Action, ...]:
        """What the doctor did, turn by turn."""
        return tuple(turn.action for turn in self.turns)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """All passages that the turns' searches returned, in order."""
        return tuple(each for turn in self.turns for each in turn.observation.passages or ())

    @property
    def gathered(self) -> tuple[Turn, ...]:
        """The turns before the diagnosis."""
        return tuple(turn for turn in self.turns if turn.action.kind != DIAGNOSE)

    @property
    def questions(self) -> int:
        """The number of actions other than the diagnosis."""
        return len(self.gathered)


Group = tuple[Episode, ...]
Batch = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """One number per turn; their sum is the episode's return.

    `parts` names the components, for the live view and the report. `measures` are what the scoring
    found of the episode besides; they stand among the measures of its record.
    """

    turns: tuple[float, ...]
    parts: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def at_end(cls, episode: Episode, value: float, **parts: float) -> Score:
        """A reward for the whole trajectory: all of it is on the last turn."""
        return cls((0.0,) * (len(episode.turns) - 1) + (value,), parts)

    @property
    def total(self) -> float:
        return sum(self.turns)


Scores = Sequence[Sequence[Score]]  # aligned with Batch: scores[group][episode]


@dataclass(frozen=True, slots=True)
class Sample:
    """One episode as tokens: all that an engine gets.

    All five tuples have one entry per token of the whole transcript. `mask` is True for the tokens
    that the policy sampled. `advantages` and `logprobs` (natural, of the sampling policy) are 0 at
    the other tokens. `turn_ids` counts turns from 0.

    Example with two turns: the prompt has 2 tokens, the first completion 1, the reply 1, the second
    completion 2. Then `mask` is F F T F T T and `turn_ids` is 0 0 0 1 1 1.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    turn_ids: tuple[int, ...]
