"""Coroutines run to their end, with and without a loop; items that a thread makes ahead."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import closing
from contextvars import ContextVar
from typing import Any

import pytest

from workup.rl.running import ahead, one_loop, run_to_end

HERE: ContextVar[str] = ContextVar("HERE", default="nowhere")


def plainly(call: Callable[[], Any]) -> Any:
    return call()


def in_a_loop(call: Callable[[], Any]) -> Any:
    """`call` as a notebook's cell makes it: a running loop has called it.

    Like a kernel's and unlike that of `asyncio.run`, the loop leaves Ctrl-C to the cell.
    """

    async def cell() -> Any:
        return call()

    with closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(cell())


both = pytest.mark.parametrize("way", [plainly, in_a_loop])


async def after_a_while(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@both
def test_the_result_comes(way: Callable[[Callable[[], Any]], Any]) -> None:
    assert way(lambda: run_to_end(after_a_while(7))) == 7


def test_without_a_loop_no_thread_is_made() -> None:
    async def where() -> threading.Thread:
        return threading.current_thread()

    assert run_to_end(where()) is threading.current_thread()
    assert in_a_loop(lambda: run_to_end(where())) is not threading.current_thread()


async def loop_here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_calls_share_one_loop_which_is_closed_behind_them() -> None:
    with one_loop():
        first, second = run_to_end(loop_here()), run_to_end(loop_here())
        with one_loop():
            within = run_to_end(loop_here())
        assert within.is_closed()
        assert run_to_end(loop_here()) is first
    assert first is second is not within
    assert first.is_closed()
    assert run_to_end(loop_here()) is not first


def test_another_thread_or_a_running_loop_has_a_loop_of_its_own() -> None:
    found: list[asyncio.AbstractEventLoop] = []

    def call() -> None:
        found.append(run_to_end(loop_here()))

    with one_loop():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        call()

    def cell() -> None:
        with one_loop():  # nothing is made: there is a loop
            call()

    in_a_loop(cell)
    assert len(set(found)) == 3


def test_in_one_loop_errors_and_context_variables_are_as_without() -> None:
    async def moves() -> str:
        found = HERE.get()
        HERE.set("within")
        return found

    async def fails() -> None:
        raise ValueError("why")

    with one_loop():
        for place in ("here", "there"):
            HERE.set(place)
            assert run_to_end(moves()) == place == HERE.get()
            with pytest.raises(ValueError, match="why"):
                run_to_end(fails())


@both
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_is_raised_is_raised_to_the_caller(
    way: Callable[[Callable[[], Any]], Any], kind: type[BaseException]
) -> None:
    error = kind("why")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise error

    def caught() -> BaseException:
        # Within the call: a loop passes these on in ways of its own.
        try:
            run_to_end(fails())
        except BaseException as raised:
            return raised
        raise AssertionError("nothing was raised")

    assert way(caught) is error


@both
def test_calls_may_be_nested(way: Callable[[Callable[[], Any]], Any]) -> None:
    async def deep(level: int) -> list[int]:
        await asyncio.sleep(0)
        below = run_to_end(deep(level - 1)) if level else []
        await asyncio.sleep(0)
        return [level, *below]

    assert way(lambda: run_to_end(deep(3))) == [3, 2, 1, 0]


@both
def test_context_variables_are_the_callers_and_stay_so(
    way: Callable[[Callable[[], Any]], Any],
) -> None:
    async def moves() -> str:
        found = HERE.get()
        HERE.set("within")
        return found

    def call() -> tuple[str, str]:
        HERE.set("outside")
        return run_to_end(moves()), HERE.get()

    assert way(call) == ("outside", "outside")


@both
def test_what_is_left_running_ends_with_it(way: Callable[[Callable[[], Any]], Any]) -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("task")

    async def gives() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            seen.append("generator")

    async def leaves() -> Any:
        given = gives()
        await anext(given)
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        return task, given

    way(lambda: run_to_end(leaves()))
    assert seen == ["task", "generator"]


@both
def test_it_goes_on_after_a_failure(way: Callable[[Callable[[], Any]], Any]) -> None:
    async def fails() -> None:
        raise ValueError

    def twice() -> int:
        with pytest.raises(ValueError):
            run_to_end(fails())
        return run_to_end(after_a_while(7))

    assert way(twice) == 7
    for each in threading.enumerate():
        if each.name == "workup":
            each.join()  # it has given its result, so it ends


# --- Ctrl-C ---


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C is heard here, also where the tests run in the background and were to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    """Ctrl-C, as the terminal or a notebook's stop button sends it: to the main thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def interrupted(way: Callable[[Callable[[], Any]], Any], work: Coroutine[Any, Any, Any]) -> bool:
    def call() -> bool:
        try:
            run_to_end(work)
        except KeyboardInterrupt:
            return True
        return False

    return bool(way(call))


def test_a_sigterm_that_is_an_interruption_waits_for_every_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It comes while one task runs and another waits, as `workup evaluate` plays its episodes."""
    seen: list[str] = []

    async def one(name: str) -> None:
        try:
            await asyncio.sleep(0)
            if name == "last":
                signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # cleaning up may wait in turn
            seen.append(name)

    async def works() -> None:
        try:
            await asyncio.gather(one("first"), one("last"))
        except asyncio.CancelledError:
            seen.append("kept")
            raise

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `workup` does
    try:
        assert interrupted(plainly, works())
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    gc.collect()  # asyncio tells of what nobody has retrieved once it is gone
    assert seen == ["first", "last", "kept"]
    assert caplog.text == ""


@both
def test_ctrl_c_waits_for_what_has_to_be_cleaned_up(
    way: Callable[[Callable[[], Any]], Any],
) -> None:
    seen: list[str] = []

    async def works() -> None:
        try:
            press()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # cleaning up may wait in turn
            seen.append("cleaned")

    assert interrupted(way, works())
    assert seen == ["cleaned"]
    assert run_to_end(after_a_while(7)) == 7


def test_a_second_ctrl_c_leaves_what_does_not_stop() -> None:
    stuck, let_go = threading.Event(), threading.Event()

    async def works() -> None:
        try:
            press()
            await asyncio.Event().wait()
        finally:
            press()
            stuck.set()
            let_go.wait()

    assert interrupted(in_a_loop, works())
    assert stuck.is_set()
    (left,) = [each for each in threading.enumerate() if each.name == "workup"]
    assert left.daemon, "it must not hold up the end of the program"
    let_go.set()
    left.join()


def test_a_handler_of_ones_own_hears_ctrl_c_and_the_work_goes_on() -> None:
    """Training asks its engine to stop after the step, and does not break the step off."""
    heard: list[int] = []

    async def works() -> int:
        press()
        while not heard:
            await asyncio.sleep(0)
        return 7

    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        assert in_a_loop(lambda: run_to_end(works())) == 7
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_below_asyncio_run_the_second_ctrl_c_ends_the_work() -> None:
    """`asyncio.run` keeps the first one for itself, whatever it calls."""

    async def works(outer: asyncio.Task[Any] | None) -> None:
        assert outer is not None
        press()
        while not outer.cancelling():
            await asyncio.sleep(0)
        press()
        await asyncio.Event().wait()

    async def main() -> None:
        assert interrupted(plainly, works(asyncio.current_task()))
        await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


def test_items_are_made_one_ahead_and_come_in_their_order() -> None:
    made: list[int] = []
    second = threading.Event()

    def items() -> Iterator[int]:
        for number in range(4):
            made.append(number)
            if number == 1:
                second.set()
            yield number

    used = ahead(items())
    assert next(used) == 0
    assert second.wait(60)  # the next one is made although nobody has asked for it
    assert set(made) == {0, 1}
    assert [*used] == [1, 2, 3]
    assert made == [0, 1, 2, 3]


def test_what_making_an_item_raises_comes_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second one")

    used = ahead(items())
    assert next(used) == 1
    with pytest.raises(ValueError, match="the second one"):
        next(used)


def test_items_that_nobody_wants_any_more_are_not_made() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    used = ahead(items())
    next(used)
    used.close()
    assert len(made) <= 2
    assert not any(thread.name.startswith("workup ahead") for thread in threading.enumerate())
