"""TRL's GRPOTrainer in our encounters, in its two ways.

`rollout` is a `rollout_func`: our own loop plays the encounters with the trainer's weights, and
TRL gets the token ids exactly as they were sampled. `factory` is an `environment_factory`: TRL's
loop plays, and the model calls our environment as a tool, in its chat template's form of calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset

from workup.core.draws import seed_key
from workup.core.episode import Ending, Episode
from workup.core.errors import UserError
from workup.interop.adapters.bench import Bench, messages
from workup.models.local import LocalPolicy
from workup.rl.interaction import Interaction
from workup.rl.rollout import Play, TokenDoctor, ToPlay, play_all
from workup.rl.running import run_to_end
from workup.rl.samples import spoken
from workup.runs import Record

PLACE = "name"  # the message's key for which case it opens, since two cases may open alike


def dataset(bench: Bench) -> Dataset:
    """The prompts of all cases, for `rollout`: the opening, and which case it is."""
    environment = bench.examination.environment
    return Dataset.from_list(
        [
            {"prompt": [{**each, PLACE: str(place)} for each in messages(environment.open(case))]}
            for place, case in enumerate(bench.cases)
        ]
    )


def rollout(bench: Bench) -> Callable[[list[Any], Any], dict[str, Any]]:
    """A `rollout_func` that plays one episode for each prompt of `dataset(bench)`.

    Besides ids and log-probabilities it returns `env_mask` (1 where the model sampled the token),
    and for `reward` and other reward functions `reward` and `correct`. Of a failed episode nothing
    is learned: its mask is 0. Its reward is NaN, which TRL counts as 0 among its group.
    """

    def play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        model = trainer.accelerator.unwrap_model(trainer.model)
        policy = LocalPolicy(model, trainer.processing_class)
        step = int(trainer.state.global_step)
        jobs = [
            ToPlay(bench.cases[place], seed_key("trl", trainer.args.seed, step, place, number))
            for number, place in enumerate(map(_place, prompts))
        ]
        how = Play(trainer.args.temperature, trainer.args.max_completion_length)
        training = model.training
        model.eval()
        try:
            return run_to_end(_played(bench, jobs, TokenDoctor(policy), how))
        finally:
            model.train(training)

    return play


def reward(completions: Sequence[Any], reward: Sequence[float], **_: Any) -> list[float]:
    """A reward function for `rollout`: the return of each episode."""
    return list(reward)


def factory(bench: Bench) -> Callable[[], TrlEncounter]:
    """An `environment_factory` over the cases of `bench`, for the prompts of `tool_dataset`."""
    return lambda: TrlEncounter(bench)


def tool_dataset(bench: Bench) -> Dataset:
    """Prompts for `factory`: what the tool is for, and the case's place. The opening follows."""
    line = "Play this encounter with the tool `act`, one action a call, until it says it is over.\n"
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": line}], "place": place}
            for place in range(len(bench.cases))
        ]
    )


class TrlEncounter:
    """One encounter as an object that TRL resets and whose tool its model calls."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._interaction: Interaction | None = None

    def reset(self, place: int = 0, **_: Any) -> str:
        """Opens the case at `place`; returns the opening, to follow the prompt."""
        self._interaction = self._bench.open(int(place))
        return "\n\n".join(each.content for each in self._interaction.opening)

    def act(self, text: str) -> str:
        """
        Take one action in the encounter: ask, examine, search, or give the diagnosis.

        Args:
            text: One action, written as the rules of the encounter say.

        Returns:
            What the patient or the record replies.
        """
        interaction = self._opened()
        if interaction.done:
            return "The encounter is over."
        reply = run_to_end(interaction.say(text))
        said = "\n\n".join(each.content for each in reply.messages)
        return f"{said}\nThe encounter is over.".lstrip() if reply.done else said

    def get_reward(self) -> float:
        """The return of the encounter, NaN if it failed.

        An encounter that the model left unfinished counts as ended without a diagnosis.
        """
        interaction = self._opened()
        interaction.leave()
        record = run_to_end(self._bench.judge(interaction.episode))
        return record.score.total if record.score else float("nan")

    def _opened(self) -> Interaction:
        if self._interaction is None:
            raise UserError("no encounter is open: call reset first")
        return self._interaction


def _place(prompt: Any) -> int:
    try:
        return int(prompt[0][PLACE])
    except (KeyError, IndexError, TypeError, ValueError):
        shown = json.dumps(prompt, default=str, ensure_ascii=False)[:80]
        raise UserError(
            f"this prompt does not say which case it opens: train on `dataset(bench)` ({shown})"
        ) from None


async def _played(
    bench: Bench, jobs: Sequence[ToPlay], doctor: TokenDoctor, how: Play
) -> dict[str, Any]:
    examination = bench.examination
    records: list[Record] = await play_all(
        jobs, examination.environment, doctor, how, examination.concurrency, bench.judge
    )
    tokens = [_tokens(record.episode, doctor) for record in records]
    columns = {name: [each[name] for each in tokens] for name in tokens[0]}
    worth = [record.score.total if record.score else float("nan") for record in records]
    return {**columns, "reward": worth, "correct": [record.correct for record in records]}


def _tokens(episode: Episode, doctor: TokenDoctor) -> dict[str, list[Any]]:
    """The first prompt, and all that followed it; of a failed episode nothing is to be learned."""
    if not episode.turns:
        ids = list(doctor.policy.render(episode.opening))
        return {
            "prompt_ids": ids[:-1],
            "completion_ids": ids[-1:],
            "logprobs": [0.0],
            "env_mask": [0],
        }
    made = spoken(episode)
    first = len(episode.turns[0].prompt_tokens)
    failed = episode.ending is Ending.FAILED
    return {
        "prompt_ids": list(made.tokens[:first]),
        "completion_ids": list(made.tokens[first:]),
        "logprobs": list(made.logprobs[first:]),
        "env_mask": [int(own and not failed) for own in made.mask[first:]],
    }
