"""Ordinary code beside other work: coroutines without a loop of their own, items made ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread, local
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()
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
    the second one does this.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if _own.runner is None:
            return asyncio.run(work)
        return _own.runner.run(work, context=copy_context())
    return _beside(work)


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


def _beside(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, from a thread that lives as long as `work`."""
    begun: Future[_Begun] = Future()
    done: Future[T] = Future()

    async def whole() -> T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs has a task"
        begun.set_result((asyncio.get_running_loop(), task))
        return await work

    def run() -> None:
        try:
            done.set_result(asyncio.run(whole()))
        except BaseException as error:
            done.set_exception(error)

    # A daemon, so that a second Ctrl-C also ends a program whose `work` does not stop.
    thread = Thread(target=copy_context().run, args=(run,), name="workup", daemon=True)
    try:
        thread.start()  # within, since Ctrl-C may come before it returns
        wait([done])
    except RuntimeError:  # the system has no thread left
        work.close()
        raise
    except BaseException:  # Ctrl-C, or what another signal's handler raises
        either: tuple[Future[Any], ...] = (begun, done)
        wait(either, return_when=FIRST_COMPLETED)
        if begun.done():
            loop, task = begun.result()
            with suppress(RuntimeError):  # the loop has closed: `work` is over
                loop.call_soon_threadsafe(task.cancel)
        wait([done])
        raise
    return done.result()
