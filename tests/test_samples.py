from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.core.case import Case, Truth
from workup.core.episode import Action, Completion, Ending, Episode, Message, Observation, Turn
from workup.core.errors import WorkupError
from workup.core.ports import Demonstration
from workup.rl.samples import Branch, Packed, TokenTree, pack, sample, token_tree, visible

ids = st.integers(0, 999)
tokens = st.lists(ids, min_size=1, max_size=6).map(tuple)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    turns = []
    for _ in range(draw(st.integers(1, 5))):
        said = draw(tokens)
        logprobs = tuple(-float(i) - 1 for i in range(len(said)))
        turns.append(
            Turn(draw(tokens), Completion("", said, logprobs), Action("ask"), Observation())
        )
    return Episode(Case("c", "", Truth("d")), (), tuple(turns), Ending.OUT_OF_TURNS)


@given(episodes())
def test_sample_is_the_transcript_with_its_authors(episode: Episode) -> None:
    advantages = [10.0 + k for k in range(len(episode.turns))]
    made = sample(episode, advantages)
    # Reading the record back by author and turn gives every turn as it was.
    for k, turn in enumerate(episode.turns):
        mine = [i for i, turn_id in enumerate(made.turn_ids) if turn_id == k]
        assert mine == list(range(mine[0], mine[-1] + 1))
        environment, policy = (
            [i for i in mine if not made.mask[i]],
            [i for i in mine if made.mask[i]],
        )
        assert tuple(made.tokens[i] for i in environment) == turn.prompt_tokens
        assert tuple(made.tokens[i] for i in policy) == turn.completion.tokens
        assert tuple(made.logprobs[i] for i in policy) == turn.completion.logprobs
        assert {made.advantages[i] for i in policy} == {advantages[k]}
        assert all(made.logprobs[i] == made.advantages[i] == 0 for i in environment)
    assert (
        len(
            {
                len(made.tokens),
                len(made.mask),
                len(made.logprobs),
                len(made.advantages),
                len(made.turn_ids),
            }
        )
        == 1
    )
    assert list(made.turn_ids) == sorted(made.turn_ids)


@pytest.mark.parametrize(
    "turn",
    [
        Turn((1,), Completion("from an endpoint"), Action("ask"), Observation()),
        Turn((1,), Completion("", (2, 3), (-0.1,)), Action("ask"), Observation()),
        Turn((), Completion("", (2,), (-0.1,)), Action("ask"), Observation()),
    ],
)
def test_what_no_token_policy_said_cannot_be_trained_on(turn: Turn) -> None:
    with pytest.raises(WorkupError, match="case 'c', turn 1"):
        sample(Episode(Case("c", "", Truth("d")), (), (turn,), Ending.OUT_OF_TURNS), [0.0])


def test_advantages_must_be_one_per_turn() -> None:
    turn = Turn((1,), Completion("", (2,), (-0.1,)), Action("ask"), Observation())
    with pytest.raises(ValueError):
        sample(Episode(Case("c", "", Truth("d")), (), (turn,), Ending.OUT_OF_TURNS), [0.0, 1.0])


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    trunk = draw(tokens)
    labelled = tuple(draw(st.lists(st.booleans(), min_size=len(trunk), max_size=len(trunk))))
    branches = draw(
        st.lists(
            st.builds(Branch, st.integers(1, len(trunk)), tokens, st.integers(0, 3)), max_size=5
        )
    )
    return TokenTree(trunk, labelled, tuple(branches))


def path(packed: Packed, token: int) -> list[int]:
    """The tokens on the way from the first one to this one, by following the parents."""
    way = [token]
    while packed.parents[way[-1]] >= 0:
        way.append(int(packed.parents[way[-1]]))
    return way[::-1]


@given(trees())
def test_packing_keeps_every_root_to_leaf_sequence(whole: TokenTree) -> None:
    packed = pack(whole)
    ends = np.cumsum([len(whole.trunk), *(len(b.tokens) for b in whole.branches)]) - 1
    assert tuple(packed.tokens[path(packed, int(ends[0]))]) == whole.trunk
    for branch, end in zip(whole.branches, ends[1:], strict=True):
        assert (
            tuple(packed.tokens[path(packed, int(end))]) == whole.trunk[: branch.at] + branch.tokens
        )
    assert packed.branched == bool(whole.branches)
    assert tuple(packed.labelled[: len(whole.trunk)]) == whole.labelled
    assert list(packed.labelled[len(whole.trunk) :]) == [
        i >= b.given for b in whole.branches for i in range(len(b.tokens))
    ]


@given(trees())
def test_a_token_sees_exactly_its_path_and_stands_at_its_end(whole: TokenTree) -> None:
    packed = pack(whole)
    mask = visible(np.arange(len(packed.tokens)), packed.segments, packed.reach)
    for token in range(len(packed.tokens)):
        way = path(packed, token)
        assert packed.positions[token] == len(way) - 1
        assert list(np.flatnonzero(mask[token])) == sorted(way)


@pytest.mark.parametrize("branch", [Branch(0, (1,)), Branch(3, (1,)), Branch(1, ())])
def test_a_branch_must_leave_the_trunk(branch: Branch) -> None:
    with pytest.raises(ValueError, match="between 1 and 2"):
        pack(TokenTree((5, 6), (False, True), (branch,)))


class Letters:
    """Writes one id per character; messages are opened by 0 and the policy's turn by 1."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def render(self, messages: Sequence[Message], past: Sequence[int] = ()) -> tuple[int, ...]:
        # A later message is set off from the completion before it, as chat templates do.
        lead = (9,) if past else ()
        return lead + tuple(i for m in messages for i in (0, *map(ord, m.content))) + (1,)


def said(demonstration: Demonstration) -> tuple[str, str]:
    whole = token_tree(demonstration, Letters())
    mark = "".join("x" if label else "." for label in whole.labelled)
    return "".join(chr(i) if i > 9 else str(i) for i in whole.trunk), mark


DEMONSTRATION = Demonstration(
    opening=(Message("system", "S"), Message("user", "U")),
    exchanges=(("ab", (Message("user", "c"),)), ("d", (Message("user", "e"),)), ("fg", ())),
    branches=((0, "", "p"), (2, "s", "qr")),
)


def test_a_demonstration_is_rendered_turn_by_turn() -> None:
    assert said(DEMONSTRATION) == (
        "0S0U1" + "ab" + "90c1" + "d" + "90e1" + "fg",
        "....." + "xx" + "...." + "x" + "...." + "xx",
    )


def test_probes_branch_off_where_the_policy_would_speak() -> None:
    whole = token_tree(DEMONSTRATION, Letters())
    assert [(b.at, "".join(map(chr, b.tokens))) for b in whole.branches] == [(5, "p"), (16, "sqr")]
    packed = pack(whole)
    # The first token of a branch is predicted where the completion it replaces is.
    starts = [int(np.flatnonzero(packed.segments == s)[0]) for s in (1, 2)]
    assert [int(packed.parents[s]) for s in starts] == [4, 15]
    assert chr(packed.tokens[5]) == "a"
    assert chr(packed.tokens[16]) == "f"


letters = st.text("ab", max_size=3)


@given(letters, letters, letters, letters.filter(bool))
def test_what_a_branch_shares_with_the_trunk_is_computed_once(
    first: str, second: str, begun: str, rest: str
) -> None:
    turns = ((first, (Message("user", "c"),)), (second, ()))
    probes = ((0, begun, rest), (1, begun, rest))
    made = Demonstration((Message("user", "U"),), turns, probes)
    whole, words = token_tree(made, Letters()), tuple(map(ord, begun + rest))
    ends = [len("0U1"), len("0U1" + first + "90c1")]
    for end, turn, branch in zip(ends, (first, second), whole.branches, strict=True):
        # It reads the same, and what is to be predicted is the rest alone.
        assert whole.trunk[: branch.at] + branch.tokens == whole.trunk[:end] + words
        assert len(branch.tokens) - branch.given == len(rest)
        # No token of the beginning is there twice.
        assert branch.at >= end
        if branch.given and branch.at < len(whole.trunk):
            assert branch.tokens[0] != whole.trunk[branch.at]
        if turn.startswith(begun):
            assert branch.given == 0
