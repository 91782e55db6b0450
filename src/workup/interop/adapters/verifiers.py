"""A `verifiers` environment: its loop and its client play our encounters.

Every turn's reward is in the state's trajectory. Where the client gets token ids, the episode has
them exactly as they were sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import verifiers as vf
from datasets import Dataset

from workup.core.episode import Completion
from workup.core.ports import Act
from workup.interop.adapters.bench import Bench, messages, told
from workup.rl.interaction import Interaction

INTERACTION, REPLY, OUTCOME = "workup_interaction", "workup_reply", "workup"
_MANY = 1_000  # cases, if nobody says how many


def load_environment(
    method: str = "craft",
    cases: str = "clinic:s",
    most: int = _MANY,
    station: str = "",
    **settings: Any,
) -> VerifiersEnvironment:
    """The environment of `method`, trained on the training side of `cases`, evaluated on the other.

    At most `most` cases of each side are played. `settings` are those of `Bench.of`. With the name
    of a `station` it is that of `workup exam`, and they are those of `Bench.of_station`.
    """
    if station:
        train, test = (Bench.of_station(station, side=s, **settings) for s in ("train", "test"))
        return VerifiersEnvironment(train, test)
    sides = {
        side: Bench.of(method, cases=cases, side=side, most=most, **settings)
        for side in ("train", "test")
    }
    return VerifiersEnvironment(sides["train"], sides["test"])


class VerifiersEnvironment(vf.MultiTurnEnv):
    """Encounters with the cases of `bench`; evaluations play those of `tested`."""

    def __init__(self, bench: Bench, tested: Bench, **more: Any) -> None:
        rubric = vf.Rubric(funcs=[_reward, _correct, _questions], weights=[1.0, 0.0, 0.0])
        super().__init__(
            dataset=_rows(bench, "train"),
            eval_dataset=_rows(tested, "test"),
            rubric=rubric,
            max_turns=-1,  # our encounter limits its turns itself
            **more,
        )
        self.benches = {"train": bench, "test": tested}

    async def setup_state(self, state: vf.State) -> vf.State:
        info = state["info"]
        state[INTERACTION] = self.benches[info["side"]].open(int(info["place"]))
        state[REPLY] = []
        return state

    async def add_trajectory_step(self, state: vf.State, trajectory_step: Any) -> None:
        """Takes the turn as soon as it was said, the last one too."""
        await super().add_trajectory_step(state, trajectory_step)
        interaction: Interaction = state[INTERACTION]
        # What the model said; its messages may be mappings or objects with the same fields.
        said = [
            each.get("content") if isinstance(each, Mapping) else getattr(each, "content", None)
            for each in trajectory_step["completion"]
        ]
        text = "".join(part for part in said if isinstance(part, str))
        ids = _ids(trajectory_step, interaction)
        cut = bool(trajectory_step["is_truncated"])
        if ids is None:
            reply = await interaction.say(text, truncated=cut)
        else:
            prompt, tokens, logprobs = ids
            reply = await interaction.act(Act(prompt, Completion(text, tokens, logprobs, cut)))
        state[REPLY] = messages(reply.messages)

    @vf.stop
    async def encounter_over(self, state: vf.State) -> bool:
        return bool(state[INTERACTION].done)

    async def env_response(self, said: Any, state: vf.State, **_: Any) -> Any:
        return state[REPLY]

    @vf.cleanup
    async def judged(self, state: vf.State) -> None:
        """Judges the encounter, and writes every turn's reward into the trajectory."""
        interaction: Interaction = state[INTERACTION]
        error = state.get("error")
        interaction.leave(str(error) if error is not None else "")
        bench = self.benches[state["info"]["side"]]
        outcome = told(await bench.judge(interaction.episode, str(state["model"])))
        state[OUTCOME] = dict(outcome)
        if outcome["correct"] is None and error is None:
            state["error"] = vf.Error(outcome["reason"])
        for step, reward in zip(state["trajectory"], outcome["rewards"], strict=False):
            step["reward"] = reward


def _rows(bench: Bench, side: str) -> Dataset:
    environment = bench.examination.environment
    return Dataset.from_list(
        [
            {
                "prompt": messages(environment.open(case)),
                "answer": case.truth.diagnosis,
                "info": {"place": place, "side": side, "case": case.id},
            }
            for place, case in enumerate(bench.cases)
        ]
    )


def _ids(
    step: Mapping[str, Any], interaction: Interaction
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]] | None:
    """(new prompt ids, sampled ids, log-probabilities); None where the client gave no exact ids.

    They are exact if every turn before has its ids, and the prompt continues all of them.
    """
    tokens = step.get("tokens")
    if not tokens or not tokens["completion_ids"]:
        return None
    if not all(turn.completion.tokens for turn in interaction.turns):
        return None
    past = [i for t in interaction.turns for i in (*t.prompt_tokens, *t.completion.tokens)]
    whole = list(tokens["prompt_ids"])
    if whole[: len(past)] != past:
        return None
    said, logprobs = tuple(tokens["completion_ids"]), tuple(tokens["completion_logprobs"])
    return (tuple(whole[len(past) :]), said, logprobs) if len(said) == len(logprobs) else None


async def _reward(state: vf.State) -> float:
    """The return. Of a failed encounter verifiers wants a number too; its state has the error."""
    return float(state[OUTCOME]["reward"] or 0.0)


async def _correct(state: vf.State) -> float:
    return float(bool(state[OUTCOME]["correct"]))


async def _questions(state: vf.State) -> float:
    return float(state[OUTCOME]["measures"].get("questions", 0.0))
