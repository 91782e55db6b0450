"""A sampler whose weights are in another process: it is sent the new ones before it goes on."""

from __future__ import annotations

import asyncio
import copy
import threading
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from workup.core.episode import Completion
from workup.core.ports import Sampling
from workup.models.local import LocalPolicy
from workup.models.samplers import How


def serve(pipe: Connection, model: Any, tokenizer: Any, how: How) -> None:
    """The other process: takes (number, prompt, sampling) and ("weights", state), in order."""
    policy = LocalPolicy(model, tokenizer, max_batch=how.concurrency)

    async def answer(number: int, prompt: tuple[int, ...], sampling: Sampling) -> None:
        pipe.send((number, await policy.sample(prompt, sampling)))

    async def listen() -> None:
        tasks: set[asyncio.Task[None]] = set()
        while True:
            # All that was sent together is sampled together.
            message = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            if message is None:
                return
            kind, *rest = message
            if kind == "weights":
                await asyncio.gather(*tasks)
                model.load_state_dict(rest[0])
                policy.refresh()
            else:
                tasks = {task for task in tasks if not task.done()}
                tasks.add(asyncio.create_task(answer(kind, *rest)))

    asyncio.run(listen())


class FarPolicy:
    """Implements `LivePolicy`: text is turned into ids here, ids are sampled there."""

    def __init__(self, model: Any, tokenizer: Any, how: How) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._text = LocalPolicy(model, tokenizer)
        self.encode, self.render = self._text.encode, self._text.render
        self.sent = 0  # how often the weights were sent
        self.stale = False
        self._numbers, self._waiting = count(), dict[int, asyncio.Future[Completion]]()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        theirs_model = copy.deepcopy(model)
        self.process = context.Process(
            target=serve, args=(theirs, theirs_model, tokenizer, how), daemon=True
        )
        self.process.start()
        threading.Thread(target=self._listen, daemon=True).start()
        POLICIES.append(self)

    def refresh(self) -> None:
        self.stale = True

    async def sample(self, prompt: tuple[int, ...], sampling: Sampling) -> Completion:
        if self.stale:
            self.stale = False
            self._pipe.send(("weights", self.model.state_dict()))
            self.sent += 1
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._pipe.send((number, prompt, sampling))
        return await future

    def close(self) -> None:
        self._pipe.send(None)
        self.process.join()

    def _listen(self) -> None:
        while True:
            try:
                number, completion = self._pipe.recv()
            except (EOFError, OSError):
                return
            future = self._waiting.pop(number)
            future.get_loop().call_soon_threadsafe(future.set_result, completion)


POLICIES: list[FarPolicy] = []


class sampler:  # what `sampler=far_sampler:sampler` names
    follow = FarPolicy

    @staticmethod
    def open(place: str, how: How) -> Any:
        raise NotImplementedError(place)
