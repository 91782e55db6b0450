"""Ordinary code beside other work: coroutines in threads of their own, items made ahead."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread, current_thread, local, main_thread
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_END = object()
_LOOK = 1.0  # seconds
_Begun = tuple[asyncio.AbstractEventLoop, "asyncio.Task[Any]"]


class _Own(local):
    """The event loop that a thread keeps for several calls of `run_to_end`, if it keeps one."""

    runner: asyncio.Runner | None = None


_own = _Own()


@contextmanager
def one_loop() -> Iterator[None]:
    """A context in which this thread's calls of `run_to_end` share one event loop.

    To make a loop and to close it takes as long as a short encounter.
    """
    before, _own.runner = _own.runner, asyncio.Runner()
    try:
        yield
    finally:
        _own.runner.close()
        _own.runner = before


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, whether or not an event loop is running in this thread.

    Without one this is `asyncio.run`, in `one_loop` with a loop that stays. In a notebook, or below
    a framework's loop, `work` runs in a thread of its own with a loop of its own, and this thread
    waits; so calls may be nested. Context variables are those of the caller. Raises what `work`
    raises. Ctrl-C cancels `work`, waits until it has cleaned up, and raises KeyboardInterrupt. A
    loop that was started by `asyncio.run` keeps the first Ctrl-C until it gets control back; there
    the second one does this. A SIGTERM that raises KeyboardInterrupt does as Ctrl-C.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if _own.runner is None:
            return asyncio.run(_ended(work))
        return _own.runner.run(_ended(work), context=copy_context())
    return OwnThread(work).result()


async def _ended(work: Coroutine[Any, Any, T]) -> T:
    """`work`, which the first SIGTERM cancels; a second one raises KeyboardInterrupt at once.

    asyncio does so for Ctrl-C alone. Raised out of the task that happens to run, KeyboardInterrupt
    would leave the others without a chance to clean up, and a traceback of the one that waits.
    """
    here = current_thread() is main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.default_int_handler:
        return await work
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine that runs has a task"
    asked: list[int] = []

    def ask(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGTERM, ask)
    try:
        found = await work
    except asyncio.CancelledError:
        if not asked:
            raise
    finally:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt
    return found


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """`items` in their order, each of them made in a thread while the one before it is used.

    Raises what making an item raises, where that item would have come.
    """
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="workup ahead") as thread:
        coming: Future[Any] = thread.submit(next, source, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, source, _END)
            yield item


class OwnThread(Generic[T]):
    """`work` in a thread and an event loop of its own; both end when it ends.

    Context variables are those of the caller. Raises RuntimeError where the system cannot start a
    thread.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._begun: Future[_Begun] = Future()
        self._done: Future[T] = Future()
        # A daemon, so that a second Ctrl-C also ends a program whose `work` does not stop.
        thread = Thread(
            target=copy_context().run, args=(self._run, work), name="workup", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            work.close()
            raise
        except BaseException:  # Ctrl-C may come before `start` returns
            self.cancel()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> None:
        async def whole() -> T:
            task = asyncio.current_task()
            assert task is not None, "a coroutine that runs has a task"
            self._begun.set_result((asyncio.get_running_loop(), task))
            return await work

        try:
            self._done.set_result(asyncio.run(whole()))
        except BaseException as error:
            self._done.set_exception(error)

    def result(self) -> T:
        """Waits for the result; raises what `work` raises.

        What a signal's handler raises meanwhile, such as KeyboardInterrupt, cancels `work`.
        """
        try:
            _wait(self._done)
        except BaseException:
            self.cancel()
            raise
        return self._done.result()

    def cancel(self) -> None:
        """Cancels `work` and waits until it has cleaned up; without effect once it is over."""
        either: tuple[Future[Any], ...] = (self._begun, self._done)
        wait(either, return_when=FIRST_COMPLETED)
        if self._begun.done():
            loop, task = self._begun.result()
            with suppress(RuntimeError):  # the loop has closed: `work` is over
                loop.call_soon_threadsafe(task.cancel)
        _wait(self._done)


def _wait(done: Future[Any]) -> None:
    """Waits for the end, and looks up now and then.

    A signal that comes just before a lock is waited for is heard only when the waiting ends. So a
    Ctrl-C could be lost for as long as the work takes.
    """
    while not wait([done], timeout=_LOOK).done:
        pass
