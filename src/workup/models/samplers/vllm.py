"""The sampler vLLM, in processes of its own beside this one; on CPU, or on this process's GPU.

vLLM's engine (`AsyncLLM`) starts with the first sample. It lives on an event loop in a thread of
its own, so that callers may come from any loop.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workup.core.errors import RolloutError, UserError, WorkupError, reason
from workup.core.extras import wanted
from workup.models import lora
from workup.models.chat_tokens import endings
from workup.models.remote import Drawn, KnownModel, OwnLoop, RemotePolicy
from workup.models.remote_model import RemoteModel
from workup.models.samplers import How
from workup.models.transfer import opened
from workup.models.whole import write_whole

# vLLM's own messages stay out of the run's view, and it reports to nobody.
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
BLOCK = 32  # tokens of a block of the prefix cache; on CPU a multiple of 32
PASS = 8_192  # tokens of a forward pass on CPU, unless the context is longer


class VllmEngine(OwnLoop):
    """vLLM's engine on an event loop of its own."""

    def __init__(self) -> None:
        super().__init__("vllm")
        self._ids = count()
        self.llm: Any = None

    async def start(self, arguments: Mapping[str, Any], threads: int) -> None:
        """Loads the weights. Raises WorkupError where vLLM cannot."""
        # vLLM has one busy-waiting thread besides those that compute. Bound to cores, two of them
        # would share one.
        places = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        with _environment({**QUIET, **places}):
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            try:
                self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
            except Exception as error:
                raise WorkupError(f"vLLM did not start: {_line(error)}") from error

    async def reload(self, folder: str) -> None:
        """Takes the weights of another folder; on CPU the only way that works."""
        await self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})

    async def renewed(self, version: str) -> None:
        """Forgets what was computed with the old weights, and calls the new ones `version`.

        Raises WorkupError where vLLM keeps its prefix cache.
        """
        if not await self.llm.reset_prefix_cache(reset_running_requests=True):
            raise WorkupError("vLLM kept its prefix cache, which is of the old weights")
        await self.llm.update_weight_version(version)

    async def draw(
        self, prompt: Sequence[int], parameters: Mapping[str, Any], version: str
    ) -> Drawn:
        """One completion, by the weights of this version, as ids and log-probabilities.

        Raises RolloutError where vLLM refuses the request, WorkupError where its engine has died or
        other weights have sampled.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        asked = SamplingParams(**parameters, output_kind=RequestOutputKind.FINAL_ONLY)
        drawing = self.llm.generate({"prompt_token_ids": list(prompt)}, asked, f"{next(self._ids)}")
        try:
            (found,) = [each async for each in drawing]
        except EngineDeadError as error:
            raise WorkupError(f"vLLM's engine has died: {_line(error)}") from error
        except Exception as error:
            raise RolloutError(f"vLLM refused a request: {_line(error)}") from error
        said = found.outputs[0]
        versions = {span.version for span in said.weight_versions or ()}
        if versions != {version}:
            raise WorkupError(f"vLLM sampled with weights {sorted(versions)}, not {version}")
        tokens = list(said.token_ids)
        # The caller compares the two lengths.
        rows = zip(said.logprobs or (), tokens, strict=False)
        return tokens, [row[token].logprob for row, token in rows]

    async def end(self) -> None:
        if self.llm is not None:
            self.llm.shutdown()
        await super().end()


class VllmPolicy(RemotePolicy):
    """A policy on the weights of a model folder or a hub id, which stay as they are.

    `kept` is a temporary folder that holds them, if one does.
    """

    def __init__(
        self, known: KnownModel, how: How, kept: TemporaryDirectory[str] | None = None
    ) -> None:
        super().__init__(known, how)
        self._kept = kept
        self.place, self.how, self.version = known.folder, how, "default"
        text = known.config.get_text_config()
        self.space = _space(text, self.context, how) if _on_cpu() else 0
        self.engine = VllmEngine()
        self._ready: asyncio.Task[None] | None = None
        self._preparing = asyncio.Lock()
        self.close = weakref.finalize(self, self.engine.close)

    async def draw(self, prompt: Sequence[int], parameters: Mapping[str, Any]) -> Drawn:
        return await asyncio.wrap_future(self.engine.submit(self._draw(prompt, parameters)))

    async def _draw(self, prompt: Sequence[int], parameters: Mapping[str, Any]) -> Drawn:
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_task(self._next())
        # All wait for the same preparation, which a caller that is cancelled must not cancel.
        await asyncio.shield(self._ready)
        return await self.engine.draw(prompt, parameters, self.version)

    async def _next(self) -> None:
        """Prepares the engine, after a preparation that a `refresh` overtook has ended."""
        async with self._preparing:
            await self._prepare()

    async def _prepare(self) -> None:
        await self.engine.start(self.arguments(), self.how.threads)

    def arguments(self) -> dict[str, Any]:
        """The engine's arguments."""
        common = {
            "model": self.place,
            "dtype": self.how.dtype,
            "max_model_len": self.context,
            "max_num_seqs": self.how.concurrency,
            # Of the distribution that was drawn from; by default they are from before the
            # temperature.
            "logprobs_mode": "processed_logprobs",
            "trust_remote_code": False,
            "generation_config": "vllm",  # no top-p of the model's own
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "seed": 0,
        }
        if not _on_cpu():
            return common | {"gpu_memory_utilization": self.how.memory}
        return common | {
            "block_size": BLOCK,
            "kv_cache_memory_bytes": self.space,
            "enforce_eager": True,
            # A seeded request whose prompt is computed in parts kills the engine on CPU.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(self.context, PASS),
        }


class LiveVllmPolicy(VllmPolicy):
    """A policy with the weights of a model in training.

    The engine loads the first weights from a folder. Later ones pass through a folder on CPU, and
    through the device's memory on a GPU.
    """

    def __init__(self, model: Any, tokenizer: Any, how: How) -> None:
        folder = TemporaryDirectory(prefix="workup-vllm-")
        precise = str(model.dtype).removeprefix("torch.")
        eos = endings(model.generation_config, tokenizer)
        known = KnownModel(folder.name, model.config, tokenizer, eos)
        super().__init__(known, replace(how, dtype=precise), folder)
        self.model = model
        self._syncs = 0
        self._transfer: Any = None

    def refresh(self) -> None:
        self._ready = None

    async def _prepare(self) -> None:
        if self.engine.llm is None:
            write_whole(self.model, self.tokenizer, Path(self.place))
            await super()._prepare()
        elif _on_cpu():
            write_whole(self.model, self.tokenizer, Path(self.place))
            await self.engine.reload(self.place)
        else:
            await asyncio.to_thread(self._send)
        self._syncs += 1
        self.version = str(self._syncs)
        await self.engine.renewed(self.version)

    def arguments(self) -> dict[str, Any]:
        more = {} if _on_cpu() else {"weight_transfer_config": {"backend": "ipc"}}
        return super().arguments() | more

    def _send(self) -> None:
        """Sends the weights within the GPU's memory; on a thread that is not the engine's."""
        if self._transfer is None:
            self._transfer = opened(self.engine.llm, self.engine.loop, self.model)
        self._transfer.send_weights()


def open(place: str, how: How) -> RemoteModel[VllmPolicy]:
    """The weights of a model folder or a hub id. Raises UserError where there are none."""
    from workup.models.weights import load

    _installed()
    known, kept = KnownModel.of(place), None
    if lora.base_of(known.folder) is not None:  # vLLM takes whole weights
        kept = TemporaryDirectory(prefix="workup-vllm-")
        write_whole(*load(place, dtype=how.dtype, device="cpu"), Path(kept.name))
        known = replace(known, folder=kept.name)
    return RemoteModel(place, how, VllmPolicy(known, how, kept), known.config)


def follow(model: Any, tokenizer: Any, how: How) -> LiveVllmPolicy:
    """A policy with the weights of `model`.

    The first draw after a `refresh` copies them: the model must not change between the two. Raises
    UserError where vLLM is missing, and for several processes on GPUs.
    """
    _installed()
    if not _on_cpu() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("sampler=vllm trains on one GPU: start one process, or use sampler=local")
    return LiveVllmPolicy(model, tokenizer, how)


def _installed() -> None:
    """Raises UserError with the command that installs vLLM where it is missing."""
    with _environment(QUIET):
        wanted("vllm")


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _space(config: Any, context: int, how: How) -> int:
    """Bytes of the prefix cache on CPU: enough for all transcripts, within the share `how.memory`.

    Raises UserError if not even one transcript fits, or the attention's heads are of a size that
    vLLM does not compute.
    """
    import torch
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise UserError(
            f"the model's attention heads are {size} wide, and vLLM takes {sizes} "
            "on CPU (a tiny policy's are tiny.width / tiny.heads): use sampler=local"
        )
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = torch.finfo(getattr(torch, how.dtype)).bits // 8
    block: int = BLOCK * 2 * config.num_hidden_layers * heads * size * width
    blocks: int = -(-context // BLOCK) + 1
    limit = int(how.memory * memory())
    if limit < blocks * block:
        raise UserError(
            f"a transcript of {context} tokens takes {blocks * block / 2**30:.1f} GiB of cache: "
            "set sampler_context=… to fewer tokens, or sampler_memory=… to a larger share"
        )
    return min(limit, blocks * block * how.concurrency)


def memory(group: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes that this process may use: the machine's memory, or its container's limit if lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(group.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return machine


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """A context with these environment variables, which processes started in it keep.

    What the user has set stays.
    """
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def _line(error: BaseException) -> str:
    return " ".join(reason(error).split())[:300]
