"""An Inspect task: its model plays our encounters, and our judge and reward are its scorers.

inspect eval workup/encounter -T method=craft -T cases=clinic:s --model …    from the command line
inspect eval workup/exam -T size=quick --model …                             the stations of an exam
inspect_ai.eval(task(Bench.of("craft", cases="clinic:s")), model=…)          from Python
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inspect_ai import Task
from inspect_ai import task as registered
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, accuracy, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from workup.core.episode import Message
from workup.core.errors import RolloutError
from workup.interop.adapters.bench import Bench, told
from workup.loops.evaluation.suites import stations

PLACE, BENCH, OUTCOME = "place", "bench", "workup"
_MANY = 100  # cases, if nobody says how many


@registered
def encounter(
    method: str = "craft",
    cases: str = "clinic:s",
    side: str = "test",
    most: int = _MANY,
    settings: dict[str, Any] | None = None,
) -> Task:
    """Encounters in the environment of `method`; `settings` are those of `Bench.of`."""
    return task(Bench.of(method, cases=cases, side=side, most=most, **(settings or {})))


@registered
def exam(
    station: str = "",
    size: str = "standard",
    data: str | None = None,
    settings: dict[str, Any] | None = None,
) -> Task:
    """The stations of `workup exam` that can be played, or one of them.

    `data` is the folder of those that need files, `settings` are those of `workup evaluate`.
    """
    own, roles = settings or {}, (settings or {}).get("roles", {})
    suite, _ = stations.exam(size, data=bool(data), roles=roles, only=[station] if station else [])
    names = [each.name for each in suite.benchmarks] or [station]
    return task(*(Bench.of_station(name, size=size, data=data, **own) for name in names))


def task(*benches: Bench) -> Task:
    """The task that plays the cases of all `benches`; a sample's id tells which.

    An encounter that fails is an error of its sample. More than the share `max_failed` of such
    samples ends the evaluation, as in ours.
    """
    first, most = benches[0], benches[0].examination.max_failed
    samples = [
        _sample(bench, place, number if len(benches) > 1 else None)
        for number, bench in enumerate(benches)
        for place in range(len(bench.cases))
    ]
    return Task(
        dataset=MemoryDataset(samples, name=first.name if len(benches) == 1 else "exam"),
        solver=_playing(benches),
        scorer=[diagnosis(), reward()],
        # There 1.0 would be a number of samples: one.
        fail_on_error=most < 1 and (most or True),
    )


def _sample(bench: Bench, place: int, number: int | None) -> Sample:
    case = bench.cases[place]
    opening = bench.examination.environment.open(case)
    return Sample(
        input=[_message(each) for each in opening],
        target=case.truth.diagnosis,
        id=place + 1 if number is None else f"{bench.name} {place + 1}",
        metadata={PLACE: place, BENCH: number or 0, "case": case.id, "category": case.category},
    )


def _message(said: Message) -> ChatMessage:
    kind = ChatMessageSystem if said.role == "system" else ChatMessageUser
    return kind(content=said.content)


@solver
def _playing(benches: Sequence[Bench]) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        bench = benches[int(state.metadata[BENCH])]
        interaction = bench.open(int(state.metadata[PLACE]))
        while not (interaction.done or state.completed):
            state = await generate(state)
            choice = state.output.choices[0] if state.output.choices else None
            if choice is None:
                break
            cut = choice.stop_reason in {"max_tokens", "model_length"}
            reply = await interaction.say(state.output.completion, truncated=cut)
            state.messages += [_message(each) for each in reply.messages]
        interaction.leave()
        outcome = told(await bench.judge(interaction.episode, str(state.model)))
        if outcome["correct"] is None:
            # Inspect counts such a sample among its errors, and does not score it.
            raise RolloutError(outcome["reason"])
        state.store.set(OUTCOME, dict(outcome))
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def diagnosis() -> Scorer:
    """Our judge's verdict."""

    async def score(state: TaskState, target: Target) -> Score:
        outcome = state.store.get(OUTCOME, {})
        answer = "; ".join(outcome.get("answer", ())) or None
        why = outcome.get("reason") or outcome.get("ending")
        return Score(value="C" if outcome.get("correct") else "I", answer=answer, explanation=why)

    return score


@scorer(metrics=[mean()])
def reward() -> Scorer:
    """The return; its metadata has the reward of every turn, its parts, and our measures."""

    async def score(state: TaskState, target: Target) -> Score:
        outcome = state.store.get(OUTCOME, {})
        shown = {
            name: outcome.get(name)
            for name in ("rewards", "parts", "measures", "ending", "understood")
        }
        return Score(value=float(outcome["reward"]), metadata=shown)

    return score
