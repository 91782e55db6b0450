"""New weights for vLLM within the memory of one GPU (CUDA IPC).

It is written against the interface of vLLM 0.32 and checked against its types. It has not been run
on a GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from workup.models.whole import whole_weights


def opened(llm: Any, loop: asyncio.AbstractEventLoop, model: Any) -> Any:
    """vLLM's sender of the weights of `model`, whose `send_weights()` blocks.

    `llm` is its `AsyncLLM`, which lives on `loop`; the sender is called on another thread.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    return WeightTransferTrainerFactory.trainer_init(
        agreed(), client=Receiver(llm, loop), source=source(model)
    )


def agreed() -> Any:
    """What both sides have to know: one trainer, and weights in buffers of bounded size."""
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(packed=True, rank=0)


class Receiver:
    """The engine's side, as vLLM's sender calls it (`VLLMWeightSyncClient`)."""

    def __init__(self, llm: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.llm, self.loop = llm, loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._wait(self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info)))

    def shutdown_weight_transfer_engine(self) -> None:
        self._wait(self.llm.shutdown_weight_transfer_engine())

    def start_weight_update(self) -> None:
        self._wait(self.llm.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self._wait(self.llm.update_weights(WeightTransferUpdateRequest(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._wait(self.llm.finish_weight_update(weight_version))

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result()


def source(model: Any) -> Any:
    """The weights of `model` as vLLM's sender reads them (`WeightSource`), anew for each update."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class WholeWeights(WeightSource):  # type: ignore[misc]  # vLLM need not be installed
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in whole_weights(model)]

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            return ((name, tensor.detach()) for name, tensor in whole_weights(model))

    return WholeWeights()
