"""Tree search at test time (ProMed's MCTS-BT and MCTS-MV): many trajectories, one is shown.

At test time no truth can be rewarded. The policy's own estimate of its answer replaces R, on the
scale of ProMed's outcome reward. With a chat model it is 2 · (confidence − 1) / 4, for a rating
from 1 to 5. For a policy that cannot be asked, it is 2 · the probability with which it said its
last action. A trajectory without an answer has R = 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, fsum

from workup.core.episode import Ending, Episode, Score
from workup.core.errors import UserError
from workup.core.ports import Environment, Model
from workup.core.stages import Value
from workup.core.text import normalise
from workup.doctors.strategies import Driven, Strategy
from workup.doctors.strategies.framing import Framable, framed
from workup.doctors.strategies.mediq import Confidence
from workup.doctors.strategies.prompting import encounter, inquire
from workup.rl.rollout import Play, ToPlay
from workup.rl.treesearch import Extent, Search, Trajectory, Tree, TreeSearch
from workup.roles.judges.options import chosen

ALPHA = 2.0  # the scale of R that the exploration weight of 2.2 was chosen for (H.1)
VERSION = "mcts-estimate/1"
TASK = (
    "An encounter with a patient has ended with an answer to the case's question. Estimate how "
    "likely that answer is right, from the case and from what came to light; whether it was asked "
    "for well does not matter. First say in one or two sentences what speaks for the answer and "
    "what against it. Then rate:\n"
    "1: almost certainly wrong.\n2: probably wrong.\n3: as likely right as wrong.\n"
    "4: probably right.\n"
    "5: almost certainly right.\n"
    'Answer with one JSON object: {"reason": …, "confidence": 1 to 5}.'
)


class Settings(Framable, Extent):
    """The search's extent."""

    @property
    def in_flight(self) -> int:
        return self.width


Pick = Callable[[Tree], Trajectory | None]


@dataclass(frozen=True)
class TreeSearcher:
    """A `Searcher`: grows a tree for each job and shows the trajectory that `pick` chooses."""

    environment: Environment
    policy: Driven
    settings: Settings
    pick: Pick

    async def play(self, job: ToPlay, play: Play) -> Episode:
        """The chosen trajectories; FAILED if every branch failed.

        Raises UserError at temperature 0, where all samples are the same.
        """
        if not play.temperature:
            raise UserError(
                "a tree search draws several actions at a node: set evaluation.temperature above 0"
            )
        search = Search(**self.settings.model_dump(include={*Extent.model_fields}))
        value = estimated(self.policy.model) if self.policy.model is not None else own_probability
        tree = await TreeSearch(self.environment, self.policy.doctor, value, search, play).grow(job)
        picked = self.pick(tree)
        if picked is None:
            return Episode(job.case, tree.opening, (), Ending.FAILED, tree.failures[0])
        return picked.episode


def estimated(model: Model) -> Value:
    """R by the model's own rating of its answer."""

    async def value(episode: Episode) -> Score:
        if not episode.answer:
            return Score.at_end(episode, 0.0)
        rated = await inquire(
            model, TASK, VERSION, encounter(episode.opening, episode.turns), Confidence
        )
        return Score.at_end(episode, ALPHA * (rated.confidence - 1) / 4)

    return value


async def own_probability(episode: Episode) -> Score:
    """R by the probability with which a token policy said its answer."""
    probability = exp(fsum(episode.turns[-1].completion.logprobs)) if episode.answer else 0.0
    return Score.at_end(episode, ALPHA * probability)


def best(tree: Tree) -> Trajectory | None:
    """The trajectory of highest R, answered ones first."""
    return tree.best(lambda trajectory: bool(trajectory.episode.answer)) or tree.best()


def majority(tree: Tree) -> Trajectory | None:
    """The best trajectory of the most frequent answer; of equally frequent ones, that of highest R.

    A simulation counts as often as its node's action was sampled. Trajectories without an answer do
    not count.
    """
    votes: Counter[tuple[str, ...]] = Counter()
    for trajectory in tree.trajectories:
        votes[_ballot(trajectory.episode)] += trajectory.node.times
    votes.pop((), None)
    if not votes:
        return best(tree)
    most = max(votes.values())
    return tree.best(lambda trajectory: votes[_ballot(trajectory.episode)] == most)


def _ballot(episode: Episode) -> tuple[str, ...]:
    """The answer as a key: its options, or its name in normal form; () for none."""
    if not episode.answer:
        return ()
    return chosen(episode.answer[0], episode.case.options) or (normalise(episode.answer[0]),)


def _searching(pick: Pick) -> Callable[[Driven, Environment, Settings], TreeSearcher]:
    return lambda policy, environment, settings: TreeSearcher(
        environment, framed(policy, environment, settings), settings, pick
    )


_PAPER = "ProMed, section 4.1 ({}); the search is Algorithm 2"

strategies = {
    "mcts-bt": Strategy(
        summary="tree search; the best trajectory by the policy's own estimate",
        paper=_PAPER.format("MCTS-BT"),
        settings=Settings,
        open=_searching(best),
    ),
    "mcts-mv": Strategy(
        summary="tree search; a majority vote over the trajectories' answers",
        paper=_PAPER.format("MCTS-MV"),
        settings=Settings,
        open=_searching(majority),
    ),
}
