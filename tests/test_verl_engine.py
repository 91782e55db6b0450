"""engine=verl through verl's own trainer, TransferQueue and loss, on the processor."""

from __future__ import annotations

import asyncio
import copy
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")

import ray
import torch
import transfer_queue
import verl_world as world
from peft import LoraConfig, get_peft_model
from ray.exceptions import ActorDiedError
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.utils import need_reference_policy
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.replica import TokenOutput
from waiting import HANG

from workup.core.episode import Message, Sample
from workup.core.errors import RolloutError, UserError, WorkupError
from workup.core.ports import Sampling, ScoreRequest
from workup.engines.verl import checkpoints, cluster, estimator, losses, manager
from workup.engines.verl.adapters import whole_policy
from workup.engines.verl.cluster import composed
from workup.engines.verl.lessons import paired
from workup.engines.verl.mapping import configuration, learning
from workup.engines.verl.policy import VerlPolicy
from workup.engines.verl.rows import place, rows
from workup.engines.verl.scorer import ReferenceScorer, ServerScorer
from workup.engines.verl.trainer import WorkupTrainer, micro_batch
from workup.models.local import LocalPolicy
from workup.models.remote import KnownModel
from workup.models.samplers import How
from workup.models.scorer import LocalScorer
from workup.runs.settings import Settings, build

GROUPS = [3, 1, 2]  # episodes left of three cases, played three times each


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.model_folder(tmp_path_factory.mktemp("model"))


def configured(folder: Path, **values: Any) -> Any:
    given = {**world.SMALL, "method": "outcome", "policy": str(folder), **values}
    settings = build(Settings, given)
    return composed(configuration(settings.model_dump(), str(folder), folder / "kept"))


@pytest.fixture(scope="module")
def queue(folder: Path) -> Iterator[Any]:
    """Ray and TransferQueue, running."""
    config = configured(folder)
    world.join(config)
    transfer_queue.init(config.transfer_queue)
    yield config
    transfer_queue.close()
    ray.shutdown()


def samples() -> list[Sample]:
    """Episodes of 1 to 3 turns with an advantage of its own for each turn."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for group, size in enumerate(GROUPS):
        for number in range(size):
            tokens, mask, advantages = [10 + group, 3], [False] * 2, [0.0] * 2
            for turn in range(1 + (group + number) % 3):
                said = 2 + turn
                worth = float(torch.randn((), generator=generator))
                tokens += [7] * said + [9]
                mask += [True] * said + [False]
                advantages += [worth] * said + [0.0]
            logprobs = [-0.5 if own else 0.0 for own in mask]
            parts = (tokens, mask, logprobs, advantages, [0] * len(tokens))
            made.append(Sample(*(tuple(part) for part in parts)))  # type: ignore[arg-type]
    return made


def put(made: list[Any]) -> Any:
    """The rows in TransferQueue, and verl's name for them."""
    return manager.put(made, "train")


def trainer(config: Any, ranks: int = 1) -> WorkupTrainer:
    """verl's trainer with no workers but their number."""
    made = WorkupTrainer.__new__(WorkupTrainer)
    made.config, made.use_critic, made.global_steps = config, False, 1
    made.tokenizer = type("Tokenizer", (), {"eos_token_id": 0, "pad_token_id": 0})()
    made.actor_rollout_wg = world.Workers(config, torch.nn.Linear(1, 1), ranks)
    return made


def test_our_advantages_come_back_from_verls_trainer_unchanged(queue: Any) -> None:
    assert estimator.advantages
    drawn = samples()
    batch = put(rows(drawn, ["a", "b", "c"], step=1))
    got = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train")
    fields = got.select("rollout_log_probs").rename_key_("rollout_log_probs", "old_log_probs")
    transfer_queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
    PPOTrainer._compute_advantage(trainer(queue), batch, {})
    back = transfer_queue.kv_batch_get(
        keys=batch.keys, partition_id="train", select_fields=["advantages"]
    )
    for found, sample in zip(back["advantages"].unbind(), drawn, strict=True):
        assert found.tolist() == pytest.approx(sample.advantages[2:], abs=0)
    transfer_queue.kv_clear(keys=batch.keys, partition_id="train")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_failed_episodes_and_uneven_groups_are_padded_and_count_nothing(
    queue: Any, ranks: int
) -> None:
    drawn = samples()
    made = trainer(queue, ranks)
    batch = made._balance_batch(put(rows(drawn, ["a", "b", "c"], 1)), metrics={})
    real = [not tag.get("is_padding", False) for tag in batch.tags]
    assert sum(real) == len(drawn) == 6
    assert len(real) == -(-len(drawn) // ranks) * ranks  # at most one row more per rank
    assert made._micro == -(-len(drawn) // ranks)
    got = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train")
    for own, mask, worth in zip(
        real, got["loss_mask"].unbind(), got["rm_scores"].unbind(), strict=True
    ):
        assert bool(mask.any()) == own
        assert own or not worth.any()
    transfer_queue.kv_clear(keys=batch.keys, partition_id="train")


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_micro_batches_are_equal_and_no_larger_than_allowed(queue: Any, limit: int) -> None:
    made = trainer(queue, 2)
    made.config = copy.deepcopy(queue)
    made.config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = limit
    batch = made._balance_batch(put(rows(samples(), ["a", "b", "c"], 1)), metrics={})
    size = made._micro
    assert size <= limit
    assert len(batch.keys) % (2 * size) == 0
    assert len(batch.keys) - 6 <= 2
    transfer_queue.kv_clear(keys=batch.keys, partition_id="train")


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 64))
def test_few_rows_are_empty(number: int, workers: int, limit: int) -> None:
    size = micro_batch(number, workers, limit)
    assert 1 <= size <= limit
    multiple = workers * size
    whole = -(-number // multiple) * multiple
    share = math.ceil(number / workers)
    parts = math.ceil(share / limit)  # the fewest micro-batches that a worker can have
    assert whole // multiple <= parts
    assert whole - number < workers * (parts + 1)


def test_the_loss_is_a_mean_over_the_rows_that_were_played(queue: Any, folder: Path) -> None:
    whole = samples()
    norms = {}
    for ranks in (1, 4):
        made = trainer(queue, ranks)
        torch.manual_seed(0)
        model = world.AutoModelForCausalLM.from_pretrained(folder)
        made.actor_rollout_wg = workers = world.Workers(queue, model, ranks)
        actor = omega_conf_to_dataclass(queue.actor_rollout_ref.actor)
        workers.set_loss_fn(partial(losses.reinforced, config=actor))
        batch = made._balance_batch(put(rows(whole, ["a", "b", "c"], 1)), metrics={})
        got = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train")
        got["old_log_probs"], got["advantages"] = got["rollout_log_probs"], got["rm_scores"]
        transfer_queue.kv_batch_put(
            keys=batch.keys,
            partition_id="train",
            fields=got.select("old_log_probs", "advantages"),
        )
        batch.extra_info["temperature"] = 1.0
        metrics: dict[str, Any] = {}
        made._update_actor(batch, metrics)
        assert workers.seen[0]["global_batch_size"] == 6
        assert workers.seen[0]["rows"] == (6 if ranks == 1 else 8)
        norms[ranks] = (
            metrics["actor/loss"],
            metrics["actor/grad_norm"],
            metrics["actor/clip_ratio"],
        )
        transfer_queue.kv_clear(keys=batch.keys, partition_id="train")
    assert norms[1] == pytest.approx(norms[4], rel=1e-5)
    assert norms[1][1] > 0 < norms[1][2]


def test_the_entropy_before_an_update_is_a_mean_over_the_tokens(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's own one is averaged as the loss is: by default first within each sequence."""

    def theirs(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        got = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train")
        got["entropy"] = got["rm_scores"]
        transfer_queue.kv_batch_put(
            keys=batch.keys, partition_id="train", fields=got.select("entropy")
        )
        metrics["actor/entropy"] = 7.0
        return batch

    monkeypatch.setattr(PPOTrainer, "_compute_old_log_prob", theirs)
    drawn = samples()
    made = trainer(queue, ranks=4)
    batch = made._balance_batch(put(rows(drawn, ["a", "b", "c"], 1)), metrics={})
    metrics: dict[str, Any] = {}
    made._compute_old_log_prob(batch, metrics)
    transfer_queue.kv_clear(keys=batch.keys, partition_id="train")
    values = [a for one in drawn for a, own in zip(one.advantages, one.mask, strict=True) if own]
    assert metrics["actor/entropy"] == pytest.approx(sum(values) / len(values))


# --- the policy on a client that behaves like verl's ---


class Server:
    """Answers in an order of its own; what it is asked comes to `asked`."""

    def __init__(self, **reply: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.reply, self.ended = reply, 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        room = sampling_params.pop("max_tokens")  # as verl's server does
        self.asked.append({"id": request_id, "prompt": prompt_ids, "room": room} | sampling_params)
        try:
            await asyncio.sleep(0.02 / len(prompt_ids))  # the longer prompt is answered first
        finally:
            self.ended += 1
        given = {
            "token_ids": prompt_ids[-1:] * min(3, room),
            "stop_reason": "completed",
            "extra_fields": {"min_global_steps": 4, "max_global_steps": 4},
            **self.reply,
        }
        given.setdefault("log_probs", [-1.0] * len(given["token_ids"]))
        if isinstance(given["stop_reason"], Exception):
            raise given["stop_reason"]
        return TokenOutput(**given)


def policy(folder: Path, server: Server, patience: float = 60) -> VerlPolicy:
    known = KnownModel.of(str(folder))
    return VerlPolicy(known, How(context=64), lambda: server, lambda: 4, patience)


def sampled(folder: Path, server: Server, patience: float = 60) -> Any:
    made = policy(folder, server, patience)
    return asyncio.run(made.sample((5, 6, 7), Sampling(("stop",), 3, 0.5, key=11)))


def test_answers_that_come_in_another_order_reach_whom_they_are_for(folder: Path) -> None:
    server = Server()
    made = policy(folder, server)

    async def all_of_them() -> list[Any]:
        prompts = [(3,) * length + (20 + length,) for length in range(1, 9)]
        return await asyncio.gather(*(made.sample(p, Sampling(max_tokens=3)) for p in prompts))

    for length, said in enumerate(asyncio.run(all_of_them()), start=1):
        assert said.tokens == (20 + length,) * 3


def test_what_the_server_is_asked(folder: Path) -> None:
    server = Server()
    said = sampled(folder, server)
    assert said.truncated  # three tokens, none of which ends a turn: verl only says "completed"
    assert said.logprobs == (-1.0,) * 3
    first = server.asked[0]
    assert first["prompt"] == [5, 6, 7]
    assert (first["room"], first["temperature"], first["stop"]) == (3, 0.5, ["stop"])
    assert first["logprobs"] is True
    assert first["stop_token_ids"]
    sampled(folder, server)
    assert server.asked[1]["seed"] == first["seed"]
    longer = policy(folder, server)
    asyncio.run(longer.sample((5, 6, 7, 8), Sampling(("stop",), 3, 0.5, key=11)))
    assert server.asked[2]["seed"] != first["seed"]  # new noise at another position
    assert server.asked[2]["id"] == first["id"]  # and the same server, which has the beginning


def test_a_completion_that_ends_itself_is_not_truncated(folder: Path) -> None:
    eos = next(iter(KnownModel.of(str(folder)).eos))
    assert not sampled(folder, Server(token_ids=[9, 9, eos])).truncated
    assert not sampled(folder, Server(token_ids=[9, 9])).truncated  # a stop string before the limit


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ({"stop_reason": "aborted"}, RolloutError, "broke the completion off"),
        ({"stop_reason": ActorDiedError()}, RolloutError, "is gone"),
        ({"token_ids": [9] * 4}, RolloutError, "more tokens than allowed"),
        ({"token_ids": []}, WorkupError, "0 tokens"),
        ({"log_probs": None}, WorkupError, "no log-probabilities"),
        ({"log_probs": [float("nan")] * 3}, WorkupError, "not numbers"),
        (
            {"extra_fields": {"min_global_steps": 3, "max_global_steps": 4}},
            WorkupError,
            "after update 3 and 4, not 4",
        ),
    ],
)
def test_what_goes_wrong_there_is_said(
    folder: Path, reply: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(WorkupError, match=said) as error:
        sampled(folder, Server(**reply))
    assert type(error.value) is kind
    assert "\n" not in str(error.value)


def test_a_server_that_is_silent_fails_the_episode_and_is_let_go(folder: Path) -> None:
    server = Server()
    with pytest.raises(RolloutError, match="gave no answer in"):
        sampled(folder, server, patience=0.001)
    assert server.ended == 1


def test_a_cancelled_episode_lets_go_of_the_server(folder: Path) -> None:
    server = Server()
    made = policy(folder, server)

    async def cancelled() -> None:
        task = asyncio.create_task(made.sample((5,), Sampling(max_tokens=3)))
        while not server.asked:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert server.ended == 1


# --- scorers ---


OPENING = (Message("user", "A man has"),)
REQUEST = ScoreRequest(
    "case", "fever", OPENING, (("cough. ",), ("cough. ", "chills. "), (), ("pain. ",)), "It is "
)


@pytest.fixture(scope="module")
def network(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


def scored(scorer: Any, request: ScoreRequest = REQUEST) -> Any:
    return asyncio.run(scorer.score(request))


def live(folder: Path, network: Any) -> tuple[world.Client, ServerScorer]:
    known = KnownModel.of(str(folder))
    client = world.Client(LocalPolicy(network, known.tokenizer))
    client.version = 4
    made = VerlPolicy(known, How(), lambda: client, lambda: 4)
    return client, ServerScorer(made, at_once=2)


def test_servers_score_an_answer_as_the_model_itself_does(folder: Path, network: Any) -> None:
    client, scorer = live(folder, network)
    local = LocalScorer(LocalPolicy(network, KnownModel.of(str(folder)).tokenizer))
    expected = scored(local)
    assert len(set(expected.totals)) == 4
    found = scored(scorer)
    assert found.tokens == expected.tokens
    assert found.totals == pytest.approx(expected.totals, abs=1e-4)
    assert client.asked == 4
    scored(scorer)
    assert client.asked == 4  # they are remembered
    scorer.refresh()
    scored(scorer)
    assert client.asked == 8
    client.version = 3
    scorer.refresh()
    with pytest.raises(WorkupError, match="after update 3, not 4"):
        scored(scorer)


def test_log_probabilities_of_other_tokens_are_not_taken(folder: Path, network: Any) -> None:
    client, scorer = live(folder, network)
    told = client.told
    client.told = lambda ids: told([*ids[:-1], 3])  # type: ignore[method-assign]
    with pytest.raises(WorkupError, match="of other tokens"):
        scored(scorer)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("ranks", [1, 4])
def test_the_frozen_reference_scores_through_transferqueue(
    queue: Any, folder: Path, network: Any, ranks: int, adapters: bool
) -> None:
    known = KnownModel.of(str(folder))
    expected = scored(LocalScorer(LocalPolicy(network, known.tokenizer)))
    held, reference = copy.deepcopy(network), network
    if adapters:  # the actor without them is what the stage began with
        held, reference = get_peft_model(held, LoraConfig(target_modules="all-linear")), None
        with torch.no_grad():
            for name, weight in held.named_parameters():
                weight.add_(0.3 if "lora" in name else 0.0)
    made = trainer(queue, ranks)
    made.actor_rollout_wg = world.Workers(queue, held, ranks, reference)
    made.ref_policy_wg, made.ref_in_actor = made.actor_rollout_wg, adapters
    own = VerlPolicy(known, How(), lambda: None, lambda: 0)
    found = scored(ReferenceScorer(own, made.reference))
    assert found.totals == pytest.approx(expected.totals, abs=1e-4)
    assert not (transfer_queue.kv_list("scored") or {}).get("scored")  # nothing is left there


# --- adapters ---


def test_what_verl_writes_of_adapters_becomes_the_policy_that_peft_merges(
    folder: Path, tmp_path: Path
) -> None:
    program = Path(__file__).with_name("verl_adapters.py")
    checkpoint, expected = tmp_path / "global_step_1", tmp_path / "expected.pt"
    words = [sys.executable, program, folder, checkpoint, expected]
    subprocess.run(list(map(str, words)), check=True, timeout=HANG)
    lora = {"r": 4, "alpha": 8, "targets": "all-linear"}
    made = whole_policy(checkpoint, lora)
    found = AutoModelForCausalLM.from_pretrained(made).state_dict()
    wanted = torch.load(expected)
    assert found.keys() == wanted.keys()
    for name, weight in found.items():
        assert torch.equal(weight, wanted[name]), name
    before = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert any(not torch.equal(weight, before[name]) for name, weight in found.items())
    assert KnownModel.of(str(made)).tokenizer("fever") == KnownModel.of(str(folder)).tokenizer(
        "fever"
    )
    assert whole_policy(checkpoint, None) == checkpoints.policy(checkpoint)
    stamp = (made / "config.json").stat().st_mtime_ns
    assert (whole_policy(checkpoint, lora) / "config.json").stat().st_mtime_ns == stamp
    shutil.rmtree(made)
    with pytest.raises(UserError, match="its adapters are not those of the run's lora settings"):
        whole_policy(checkpoint, {**lora, "targets": ["q_proj"]})


# --- faults ---


@pytest.mark.parametrize(
    ("resources", "fits"),
    [
        ([{"GPU": 8.0}, {"GPU": 8.0}], True),
        ([{"GPU": 8.0}, {"GPU": 4.0}, {"CPU": 64.0}], False),
        ([], False),
    ],
)
def test_more_nodes_than_ray_has_are_refused(resources: list[dict[str, float]], fits: bool) -> None:
    if fits:
        cluster.check(2, 8, resources)
        return
    with pytest.raises(UserError, match="=2 are asked for"):
        cluster.check(2, 8, resources)


def test_gpus_that_another_stage_gives_back_are_waited_for() -> None:
    free = iter([0.0, 2.0, 4.0])
    cluster.wait_for_gpus(4, lambda: next(free), pause=0)
    assert next(free, None) is None
    with pytest.raises(UserError, match="2 of the cluster's GPUs are free, and this run takes 4"):
        cluster.wait_for_gpus(4, lambda: 2.0, patience=0, pause=0)


@pytest.mark.parametrize("kind", ["sft", "tuning", "dpo"])
def test_verl_itself_checks_the_configuration_of_a_stage_without_sampling(
    folder: Path, kind: str
) -> None:
    given = {**world.SMALL, "method": "outcome", "policy": str(folder), "batch": 3}
    values = build(Settings, {**given, "verl": {"nodes": 2, "gpus_per_node": 3}}).model_dump()
    config = composed(learning(values, kind, 5, str(folder), folder / "kept"))
    assert need_reference_policy(config) == (kind == "dpo")


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.sampled_from([1, 2, 4]))
def test_pairs_stay_together_and_every_worker_has_as_many(lengths: list[int], workers: int) -> None:
    rows = [(f"u_{k}_0", {"seq_len": n}) for k, n in enumerate(x for n in lengths for x in (n, 1))]
    while len(rows) % (2 * workers):
        rows.append((f"pad_{len(rows)}_0", {"seq_len": 1, "is_padding": True}))
    rows.reverse()  # TransferQueue promises no order
    order = paired([key for key, _ in rows], [tag for _, tag in rows], workers)
    assert sorted(order) == list(range(len(rows)))
    found = [rows[k] for k in order]
    for (first, tag), (second, other) in zip(found[0::2], found[1::2], strict=True):
        assert tag.get("is_padding") == other.get("is_padding")
        if not tag.get("is_padding"):
            assert (place(first) % 2, place(second)) == (0, place(first) + 1)


def test_verl_itself_checks_the_configuration(folder: Path) -> None:
    config = configured(folder, verl={"nodes": 1, "gpus_per_node": 4}, beta=0.1)
    assert config.actor_rollout_ref.actor.use_kl_loss
    assert config.algorithm.adv_estimator == "workup"
    with pytest.raises(UserError, match="this verl has no setting"):
        composed({"trainer.nowhere.x": 1})
