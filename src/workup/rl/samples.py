"""Episodes and demonstrations as tokens: the training data of an engine.

No model library is imported here.

An episode becomes a `Sample`. A demonstration becomes a `TokenTree`: a trunk of tokens, and
branches that leave the trunk. A branch sees itself and the trunk up to where it leaves. No other
token sees the branch. `pack` lays a tree out as one sequence, so that the shared past is computed
once.

Example: trunk a b c, and a branch x y that leaves after b. The packed tokens are a b c x y, with
positions 0 1 2 2 3 and parents −1 0 1 1 3. The token x sees a, b and x; it does not see c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from workup.core.episode import Episode, Sample
from workup.core.errors import WorkupError
from workup.core.ports import Demonstration, Policy

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def sample(episode: Episode, advantages: Sequence[float]) -> Sample:
    """The episode's whole transcript as tokens; turn k's policy tokens have `advantages[k]`.

    The loss mask is True for the tokens that the policy sampled and False for the prompt's.
    Example: prompt P P, completion C C C, advantage 0.5: mask F F T T T, advantages 0 0 0.5 0.5
    0.5.

    Raises WorkupError when a turn has no token ids: only a token policy's episode can be trained
    on.
    """
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    values: list[float] = []
    turn_ids: list[int] = []
    for k, (turn, advantage) in enumerate(zip(episode.turns, advantages, strict=True)):
        said = turn.completion
        given, own, likely = map(len, (turn.prompt_tokens, said.tokens, said.logprobs))
        prompted = given > 0 or k > 0
        if not prompted or not own or own != likely:
            raise WorkupError(
                f"case '{episode.case.id}', turn {k + 1}: cannot train on {own} sampled tokens "
                f"with {likely} log-probabilities{'' if prompted else ' and no prompt'}; only a "
                "token policy's own episodes can be trained on"
            )
        tokens += [*turn.prompt_tokens, *said.tokens]
        mask += [False] * given + [True] * own
        logprobs += [0.0] * given + list(said.logprobs)
        values += [0.0] * given + [float(advantage)] * own
        turn_ids += [k] * (given + own)
    return Sample(tuple(tokens), tuple(mask), tuple(logprobs), tuple(values), tuple(turn_ids))


def spoken(episode: Episode) -> Sample:
    """The episode's whole transcript with advantages of 0; raises as `sample` does."""
    return sample(episode, (0.0,) * len(episode.turns))


def imitated(episode: Episode) -> Sample:
    """The episode's whole transcript for sft; only turns that are readable as a whole are labelled.

    A turn that could not be read as an action stays in the context and is not imitated (PM-9). So
    does one that has more than its action, such as a reply that the doctor wrote for the patient.
    """
    whole = spoken(episode)
    said = [bool(turn.action.content) and not turn.action.errors for turn in episode.turns]
    return replace(
        whole,
        mask=tuple(own and said[k] for own, k in zip(whole.mask, whole.turn_ids, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens that leave the trunk after its first `at` tokens (at ≥ 1).

    The first `given` of them are context: they are not labelled.
    """

    at: int
    tokens: tuple[int, ...]
    given: int = 0


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A trunk and its branches. `labelled` marks the trunk tokens that are to be predicted."""

    trunk: tuple[int, ...]
    labelled: tuple[bool, ...]
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class Packed:
    """A tree laid out as one sequence of T tokens: the trunk, then each branch.

    Every array has shape (T,).

    `parents` holds the index of the token before each token, −1 for the first; the model's output
    at that index predicts the token. `segments` is 0 on the trunk and 1, 2, … on the branches.
    `reach` is the index of the last trunk token that a branch token may see, −1 on the trunk.
    """

    tokens: Ints
    labelled: Bools
    positions: Ints
    parents: Ints
    segments: Ints
    reach: Ints

    @property
    def branched(self) -> bool:
        """Whether the tree has branches, so that a plain causal mask would be wrong."""
        return bool(self.segments[-1])


def pack(tree: TokenTree) -> Packed:
    """Lays `tree` out as one sequence.

    A branch's position ids continue those of the trunk before it. Raises ValueError if a branch is
    empty, or if it leaves before the first or after the last token of the trunk.
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
    """Which tokens of packed sequences see which: booleans (…, T, T) from integers (…, T).

    Arrays and tensors both work. A token sees its own segment up to itself, and the trunk up to
    where its branch leaves.
    """
    own = (segments[..., :, None] == segments[..., None, :]) & (
        index[..., None, :] <= index[..., :, None]
    )
    return own | (index[..., None, :] <= reach[..., :, None])


def token_tree(demonstration: Demonstration, policy: Policy) -> TokenTree:
    """The demonstration in `policy`'s token ids; completions are labelled, observations are not."""
    tokens = list(policy.render(demonstration.opening))
    labelled = [False] * len(tokens)
    ends = [len(tokens)]  # ends[k]: how many tokens come before the k-th completion
    for completion, messages in demonstration.exchanges:
        said = policy.encode(completion)
        tokens += said
        labelled += [True] * len(said)
        reply = policy.render(messages, tokens) if messages else ()
        tokens += reply
        labelled += [False] * len(reply)
        ends.append(len(tokens))
    branches = tuple(
        _branch(tokens, ends[k], policy.encode(begun), policy.encode(rest))
        for k, begun, rest in demonstration.branches
    )
    return TokenTree(tuple(tokens), tuple(labelled), branches)


def rows(items: Sequence[Demonstration | Sample], policy: Policy) -> list[Packed]:
    """Demonstrations and samples, each packed; a sample keeps the tokens that were sampled."""
    trees = [
        TokenTree(item.tokens, item.mask) if isinstance(item, Sample) else token_tree(item, policy)
        for item in items
    ]
    return [pack(item) for item in trees]


def _branch(trunk: Sequence[int], at: int, begun: tuple[int, ...], rest: tuple[int, ...]) -> Branch:
    """The branch, without the tokens of `begun` that the trunk has behind `at` as well.

    It leaves the trunk behind them, so that they are computed once. Example: trunk a b c d, `at` 1,
    `begun` b c x: the branch leaves after c, and begins with x.
    """
    given = zip(begun, trunk[at:], strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], given))
    return Branch(at + shared, (*begun[shared:], *rest), len(begun) - shared)
