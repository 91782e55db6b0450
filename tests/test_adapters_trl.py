"""TRL's GRPOTrainer in our encounters: what it gets and trains on is what was played."""

from __future__ import annotations

import asyncio
import inspect
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from acting import bench, ours, script
from waiting import HANG

from workup.cases import open_source
from workup.core.errors import UserError
from workup.environments.consultation import Consultation
from workup.interop.adapters import trl as adapter
from workup.interop.adapters.bench import Bench
from workup.models.tiny import TinySettings, build
from workup.runs import Record

TOKENS = 6


def weights() -> tuple[Any, Any]:
    source = open_source("clinic:xs")
    phrases = Consultation(source.items, source.diagnoses).phrases
    return build(source, phrases, TinySettings(width=32, layers=2), 0)


def test_the_tool_gives_our_replies_and_rewards(tmp_path: Path) -> None:
    made = bench()
    rows = adapter.tool_dataset(made)
    environment = adapter.factory(made)()
    for row, record in zip(rows, ours(made, tmp_path / "run"), strict=True):
        opening = environment.reset(**row)
        assert opening == "\n\n".join(m.content for m in record.episode.opening)
        for text, turn in zip(script(made, row["place"]), record.episode.turns, strict=True):
            heard = environment.act(text)
            said = "\n\n".join(m.content for m in turn.observation.messages)
            assert heard.removesuffix("The encounter is over.").rstrip("\n") == said
        assert environment.act("more") == "The encounter is over."
        assert environment.get_reward() == pytest.approx(record.score.total)


def test_trl_takes_the_object_as_an_environment() -> None:
    from transformers.utils import get_json_schema

    made = adapter.factory(bench())()
    tools = [n for n, _ in inspect.getmembers(type(made), inspect.isfunction) if n[0] != "_"]
    assert sorted(tools) == ["act", "get_reward", "reset"]
    schema = get_json_schema(made.act)["function"]
    assert schema["parameters"]["required"] == ["text"]
    with pytest.raises(UserError, match="call reset first"):
        made.act("fever?")


def test_a_loop_that_runs_is_no_obstacle(tmp_path: Path) -> None:
    made = bench()
    environment = adapter.factory(made)()

    async def notebook() -> float:
        environment.reset(place=0)
        for text in script(made, 0):
            environment.act(text)
        return environment.get_reward()

    record = ours(made, tmp_path / "run")[0]
    assert asyncio.run(notebook()) == pytest.approx(record.score.total)


def test_a_trainer_learns_what_was_sampled(tmp_path: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer

    made = bench(most=2)
    model, tokenizer = weights()
    seen: list[dict[str, Any]] = []
    play = adapter.rollout(made)

    def watched(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        seen.append(play(prompts, trainer))
        return dict(seen[-1])

    settings = GRPOConfig(
        output_dir=str(tmp_path / "grpo"),
        per_device_train_batch_size=4,
        num_generations=4,
        max_steps=2,
        max_completion_length=TOKENS,
        temperature=1.0,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        model,
        adapter.reward,
        settings,
        train_dataset=adapter.dataset(made),
        processing_class=tokenizer,
        rollout_func=watched,
    )
    trainer.train()
    assert len(seen) == 2
    logged = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    for out, mean in zip(seen, logged, strict=True):
        assert len(out["prompt_ids"]) == 4
        assert mean == pytest.approx(sum(out["reward"]) / 4, abs=1e-5)
        for ids, logprobs, mask in zip(
            out["completion_ids"], out["logprobs"], out["env_mask"], strict=True
        ):
            assert len(ids) == len(logprobs) == len(mask)
            assert mask[0] == 1
            assert all(p < 0 for p, own in zip(logprobs, mask, strict=True) if own)
            assert all(p == 0 for p, own in zip(logprobs, mask, strict=True) if not own)


def stopped(model: Any, tokenizer: Any) -> Any:
    """What a rollout reads of a trainer."""
    return SimpleNamespace(
        model=model,
        processing_class=tokenizer,
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(seed=0, temperature=1.0, max_completion_length=TOKENS),
    )


def test_a_judge_is_asked_about_all_episodes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, judge, inside = bench(most=3), Bench.judge, asyncio.Barrier(3)

    async def together(self: Bench, episode: Any, label: str = "policy") -> Record:
        async with asyncio.timeout(HANG):  # it runs out where one is asked about after the other
            await inside.wait()
        return await judge(self, episode, label)

    monkeypatch.setattr(Bench, "judge", together)
    prompts = [row["prompt"] for row in adapter.dataset(made)]
    assert len(adapter.rollout(made)(prompts, stopped(*weights()))["reward"]) == 3


def test_the_ids_are_those_of_our_own_loop() -> None:
    made = bench(most=2)
    model, tokenizer = weights()
    trainer = stopped(model, tokenizer)
    prompts = [row["prompt"] for row in adapter.dataset(made)]
    first, again = (adapter.rollout(made)(prompts, trainer) for _ in range(2))
    assert first == again
    opening = made.examination.environment.open(made.cases[0])
    from workup.models.local import LocalPolicy

    assert tuple(first["prompt_ids"][0]) == LocalPolicy(model, tokenizer).render(opening)
    assert not any(map(math.isnan, first["reward"]))
    with pytest.raises(UserError, match="which case it opens"):
        adapter.rollout(made)([[{"role": "user", "content": "hello"}]], trainer)
