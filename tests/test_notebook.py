"""A notebook: the Python calls in a real Jupyter kernel, whose event loop never stops running."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from preparing import configured
from serving import completion, serving
from test_docs import SMALL
from waiting import HANG

import workup
from workup.interop.adapters.bench import Bench
from workup.rl.running import run_to_end
from workup.runs import Record, Run

manager = pytest.importorskip("jupyter_client.manager", reason="it comes with `dev`")
pytest.importorskip("ipykernel", reason="it comes with `dev`")

# Everyone plays the same in a process of its own.
TINY = {**SMALL, "threads": 1}


class Notebook:
    """Cells, run one after the other in one kernel."""

    def __init__(self, folder: Path) -> None:
        tests = str(Path(__file__).parent)
        path = os.pathsep.join([tests, *sys.path])
        self.kernel, self.client = manager.start_new_kernel(
            cwd=str(folder), env={**os.environ, "PYTHONPATH": path}, startup_timeout=HANG
        )

    def run(self, cell: str, typed: Sequence[str] = ()) -> str:
        """What a cell prints, then the error that it ends with; `typed` answers its `input`."""
        said: list[str] = []
        lines = iter(typed)

        def shown(message: Any) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                said.append(content["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                said.append(content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                said.append(f"{content['ename']}: {content['evalue']}")

        self.client.execute_interactive(
            cell,
            allow_stdin=bool(typed),
            output_hook=shown,
            stdin_hook=lambda message: self.client.input(next(lines)),
            timeout=HANG,
        )
        return "".join(said)

    def stop(self) -> None:
        """The button "interrupt"."""
        self.kernel.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.kernel.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    opened = Notebook(tmp_path_factory.mktemp("notebook"))
    try:
        assert opened.run("import asyncio; asyncio.get_running_loop()").startswith("<_UnixSel")
        opened.run("import workup")
        yield opened
    finally:
        opened.close()


def tokens(run: Run, **where: Any) -> list[tuple[Any, ...]]:
    """What was said in a run, id by id, and what it was worth."""

    def one(record: Record) -> tuple[Any, ...]:
        said = [(*t.prompt_tokens, *t.completion.tokens) for t in record.episode.turns]
        return record.episode.case.id, said, record.correct, record.score and record.score.turns

    return [one(record) for record in run.episodes(**where)]


@pytest.mark.long
def test_a_run_in_a_notebook_is_the_run_that_it_is_elsewhere(
    notebook: Notebook, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    said = notebook.run(
        "AGAIN = {'evaluation': {'cases': 2, 'anchors': False}, 'quiet': True}\n"
        f"run = workup.train('craft', cases='clinic:xs', out={str(there)!r}, **{TINY!r})\n"
        f"again = workup.evaluate({str(there)!r}, out={str(tmp_path / 'again')!r}, **AGAIN)\n"
        "again.doctors() == ['there']"
    )
    assert said.endswith("True"), said
    ours = workup.train("craft", cases="clinic:xs", out=here, **TINY)
    theirs = workup.open_run(there)
    for phase in ("train", "eval"):
        assert tokens(ours, phase=phase) == tokens(theirs, phase=phase) != []
    again = tokens(workup.open_run(tmp_path / "again"))
    assert [each[:3] for each in again] == [each[:3] for each in tokens(theirs, doctor="trained")]


@pytest.mark.long
def test_a_bench_opens_beside_cells_that_await(notebook: Notebook) -> None:
    said = notebook.run(
        "from workup.interop.adapters.bench import Bench\n"
        "bench = Bench.of('craft', cases='clinic:xs', most=2)\n"
        "encounter = bench.open(0)\n"
        "reply = await encounter.say('<ask>fever</ask>')\n"
        "reply.messages[0].content"
    )
    made = Bench.of("craft", cases="clinic:xs", most=2)
    reply = run_to_end(made.open(0).say("<ask>fever</ask>"))
    assert said == repr(reply.messages[0].content)


def test_a_person_plays_in_a_notebook(notebook: Notebook) -> None:
    cell = (
        "from workup.cli.play import play\n"
        "source = workup.open_source('clinic:xs')\n"
        "records = play(source, index=0)\n"
        "[turn.action.kind for turn in records[0].episode.turns]"
    )
    said = notebook.run(cell, ["fever", "dx 1"])
    assert said.endswith("['ask', 'diagnose']")


@pytest.mark.long
def test_the_stop_button_ends_a_cell_and_the_next_goes_on(
    notebook: Notebook, tmp_path: Path
) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def answer(body: dict[str, Any]) -> Any:
        asked.set()
        let_go.wait(HANG)
        return completion("<diagnose>influenza</diagnose>")

    def press() -> None:
        asked.wait(HANG)
        notebook.stop()

    with serving(answer) as server:
        configured(tmp_path, server)
        where = f"cases='clinic:xs', out={str(tmp_path / 'run')!r}, quiet=True, "
        where += "evaluation={'cases': 2, 'anchors': False}"
        cell = f"import os; os.chdir({str(tmp_path)!r})\nworkup.evaluate('endpoint:it', {where})"
        presser = threading.Thread(target=press)
        presser.start()
        said = notebook.run(cell)
        asked.set()  # also where nothing was asked
        presser.join()
        let_go.set()
        assert "KeyboardInterrupt" in said
        said = notebook.run(f"workup.resume({str(tmp_path / 'run')!r}).doctors()")
        assert said.endswith("['it']")
    assert len(workup.open_run(tmp_path / "run").episodes()) == 2
