"""Episodes and demonstrations as token records: what an engine trains on.

No backend is imported here.

An episode becomes a `Sample`. A demonstration becomes a `Tree`: one trunk of tokens, and branches
that leave it, see the trunk up to where they leave and themselves, and are seen by nothing else.
`pack` lays a tree out as one sequence, so that a shared past is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from workup.episode import Episode, Message, Sample
from workup.errors import WorkupError
from workup.ports import Demonstration

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def sample(episode: Episode, advantages: Sequence[float]) -> Sample:
    """The episode's whole transcript with `advantages[k]` on every policy token of turn k.

    Raises WorkupError when a turn has no token ids: only what a token policy sampled can be trained
    on.
    """
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    values: list[float] = []
    turn_ids: list[int] = []
    for k, (turn, advantage) in enumerate(zip(episode.turns, advantages, strict=True)):
        said = turn.completion
        _check(episode, k, bool(turn.prompt_tokens) or k > 0, len(said.tokens), len(said.logprobs))
        given, own = len(turn.prompt_tokens), len(said.tokens)
        tokens += [*turn.prompt_tokens, *said.tokens]
        mask += [False] * given + [True] * own
        logprobs += [0.0] * given + list(said.logprobs)
        values += [0.0] * given + [float(advantage)] * own
        turn_ids += [k] * (given + own)
    return Sample(tuple(tokens), tuple(mask), tuple(logprobs), tuple(values), tuple(turn_ids))


def spoken(episode: Episode) -> Sample:
    """The episode's whole transcript without advantages; raises as `sample` does."""
    return sample(episode, (0.0,) * len(episode.turns))


def imitated(episode: Episode) -> Sample:
    """The same with questions and answer labelled alone: what could not be read as an action is
    context (PM-9).
    """
    whole = spoken(episode)
    said = [bool(turn.action.content) for turn in episode.turns]
    return replace(
        whole,
        mask=tuple(own and said[k] for own, k in zip(whole.mask, whole.turn_ids, strict=True)),
    )


def _check(episode: Episode, turn: int, prompted: bool, tokens: int, logprobs: int) -> None:
    if not prompted or not tokens or tokens != logprobs:
        raise WorkupError(
            f"case '{episode.case.id}', turn {turn + 1}: cannot train on {tokens} sampled tokens "
            f"with {logprobs} log-probabilities{'' if prompted else ' and no prompt'}; only a "
            "token policy's own episodes can be trained on"
        )


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens that leave the trunk after its first `at` tokens (at ≥ 1); the first `given` of them
    are not to be predicted.
    """

    at: int
    tokens: tuple[int, ...]
    given: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
    """A trunk and its branches. `labelled` marks the trunk's tokens to be predicted."""

    trunk: tuple[int, ...]
    labelled: tuple[bool, ...]
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class Packed:
    """A tree laid out as one sequence of T tokens: the trunk, then each branch.

    Every array has shape (T,).

    `parents` is the index of the token that each token follows, −1 for the very first: the model's
    output there predicts it. `segments` is 0 on the trunk and 1, 2, … on the branches; `reach` the
    index of the last trunk token that a branch's tokens may see, −1 on the trunk itself.
    """

    tokens: Ints
    labelled: Bools
    positions: Ints
    parents: Ints
    segments: Ints
    reach: Ints

    @property
    def branched(self) -> bool:
        """Whether a plain causal mask would be wrong."""
        return bool(self.segments[-1])


def pack(tree: Tree) -> Packed:
    """Lays `tree` out; position ids continue from where a branch leaves.

    Raises ValueError when a branch leaves before the first or after the last token of the trunk, or
    is empty.
    """
    n = len(tree.trunk)
    if any(not 1 <= branch.at <= n or not branch.tokens for branch in tree.branches):
        raise ValueError(
            f"a branch must hold tokens and leave between 1 and {n} tokens of the trunk"
        )
    counts = np.array([len(branch.tokens) for branch in tree.branches], dtype=np.int64)
    starts = n + np.cumsum(counts) - counts
    at = np.repeat(np.array([branch.at for branch in tree.branches], dtype=np.int64), counts)
    offset = np.arange(n, n + counts.sum()) - np.repeat(starts, counts)
    given = np.repeat(np.array([branch.given for branch in tree.branches], dtype=np.int64), counts)
    parents = np.where(offset == 0, at - 1, np.arange(n - 1, n - 1 + counts.sum()))
    trunk = np.arange(n)
    tokens = [*tree.trunk, *(token for branch in tree.branches for token in branch.tokens)]
    return Packed(
        tokens=np.array(tokens, dtype=np.int64),
        labelled=np.concatenate([np.array(tree.labelled, dtype=bool), offset >= given]),
        positions=np.concatenate([trunk, at + offset]),
        parents=np.concatenate([trunk - 1, parents]),
        segments=np.concatenate(
            [np.zeros(n, dtype=np.int64), np.repeat(1 + np.arange(len(counts)), counts)]
        ),
        reach=np.concatenate([np.full(n, -1, dtype=np.int64), at - 1]),
    )


def visible(index: Any, segments: Any, reach: Any) -> Any:
    """Who sees whom in packed sequences: (…, T, T) booleans from integer arrays (or tensors) of
    shape (…, T).

    A token sees those of its own segment up to itself, and the trunk up to where its branch leaves.
    """
    own = (segments[..., :, None] == segments[..., None, :]) & (
        index[..., None, :] <= index[..., :, None]
    )
    return own | (index[..., None, :] <= reach[..., :, None])


def attention(packed: Packed) -> Bools:
    """The attention mask (T, T) of a packed tree: row i is True at the tokens that token i sees."""
    mask: Bools = visible(np.arange(len(packed.tokens)), packed.segments, packed.reach)
    return mask


class Writer(Protocol):
    """The part of a token policy that turns text into ids."""

    def render(self, messages: Sequence[Message], past: Sequence[int] = ()) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...


def tree(demonstration: Demonstration, writer: Writer) -> Tree:
    """The demonstration in `writer`'s tokens: completions are labelled, what the environment says
    is not.
    """
    tokens = list(writer.render(demonstration.opening))
    labelled = [False] * len(tokens)
    ends = [len(tokens)]  # ends[k]: how many tokens come before the k-th completion
    for completion, messages in demonstration.exchanges:
        said = writer.encode(completion)
        tokens += said
        labelled += [demonstration.imitate] * len(said)
        reply = writer.render(messages, tokens) if messages else ()
        tokens += reply
        labelled += [False] * len(reply)
        ends.append(len(tokens))
    branches = tuple(
        _branch(ends[k], writer.encode(begun), writer.encode(rest))
        for k, begun, rest in demonstration.probes
    )
    return Tree(tuple(tokens), tuple(labelled), branches)


def rows(items: Sequence[Demonstration | Sample], writer: Writer) -> list[Packed]:
    """Demonstrations and samples, whose tokens stay what they are, as an engine learns them."""
    trees = [
        Tree(item.tokens, item.mask) if isinstance(item, Sample) else tree(item, writer)
        for item in items
    ]
    return [pack(item) for item in trees]


def _branch(at: int, begun: tuple[int, ...], rest: tuple[int, ...]) -> Branch:
    return Branch(at, (*begun, *rest), len(begun))
