"""`workup view` on 100,000 episodes: seconds until a page has come, over real HTTP.

The episodes have eight turns and 250 tokens each: 242 MB in all. Server and client share one
process, so that the client's work is in the figures. What is allowed stands as the baseline.
Reading the columns, and searching all transcripts for a text that is nowhere, stand beside SQLite's
own scan of the same columns.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.parse import urlencode

import httpx2

from bench.figures import Figure
from workup.cases import open_source
from workup.core.case import Case, Source
from workup.core.episode import (
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Score,
    Turn,
)
from workup.retrieval.connections import listening
from workup.runs import Record, Run
from workup.runs.packed import PER_BLOCK
from workup.runs.store import EpisodeStore
from workup.viewer import app, opened
from workup.viewer.asking import ListQuery
from workup.viewer.columns import FIXED
from workup.viewer.guard import Gate
from workup.viewer.listing import listed
from workup.viewer.shown import ShownRun

T = TypeVar("T")
BASE, STEPS, TURNS, TOKENS = 2_000, 50, 8, 250
ROUNDS = 5
NOWHERE = "quokka"
FIRST, FILTER = 0.3, 0.5  # seconds allowed: the first page of a run, a filtered or sorted one
FILTERS = {
    "newest episodes": {},
    "a verdict and an ending": {"verdict": "wrong", "ending": "out of turns"},
    "a category, sorted by a measure": {"category": "respiratory", "sort": "noise"},
    "a part of a case's id": {"case": ":77"},
    "sorted by return": {"sort": "return", "order": "down"},
    "a common text": {"text": "fever"},
    "a text that is nowhere (0.3 s of searching)": {"text": NOWHERE},
}


def measure() -> list[Figure]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        _fill(path)
        own = _scans(path)
        first = statistics.median(_first(path) for _ in range(ROUNDS))
        shown = opened([path], restricted=False)
        shown["run"].columns.catch_up(600)
        pages = _pages(shown)
        figures = [_figure("first page of a run that nobody looked at", first, FIRST)]
        figures += [_figure(name, seconds, FILTER) for name, seconds in pages.items()]
    return [*figures, *own]


def _figure(name: str, seconds: float, allowed: float) -> Figure:
    return Figure(f"viewer: {name}", seconds, allowed, "s", seconds / allowed, 1.0, False)


def _fill(path: Path) -> None:
    """`BASE` episodes through the run folder's own writer, then copied to further steps."""
    source, draw = open_source("clinic:m"), random.Random(0)
    with Run.create(path, {"method": "craft", "cases": "clinic:m", "split": 0}, {}) as run:
        run.write([_record(source, k, draw) for k in range(BASE)])
        with run.store.transaction() as connection:
            blocks = [id for (id,) in connection.execute("SELECT id FROM blocks")]
            for step in range(1, STEPS):
                for block in blocks:
                    _copy(connection, block, step)


def _copy(connection: sqlite3.Connection, block: int, step: int) -> None:
    """The same block `step` steps later."""
    names = [row[1] for row in connection.execute("PRAGMA table_info(blocks)")][1:]
    taken = ", ".join(f"{step} + step" if name == "step" else name for name in names)
    new = connection.execute(
        f"INSERT INTO blocks ({', '.join(names)}) SELECT {taken} FROM blocks WHERE id = ?", (block,)
    ).lastrowid
    rest = [row[1] for row in connection.execute("PRAGMA table_info(kept)")][1:]
    connection.execute(
        f"INSERT INTO kept SELECT ? * {PER_BLOCK} + id % {PER_BLOCK}, {', '.join(rest)} FROM kept "
        f"WHERE id / {PER_BLOCK} = ?",
        (new, block),
    )


def _record(source: Source, k: int, draw: random.Random) -> Record:
    case = source.train[k]
    ended = draw.random() < 0.9
    measures = {name: draw.random() for name in ("critical", "coverage", "recall", "repeats")}
    noise = draw.random() if draw.random() < 0.9 else None
    episode = Episode(
        case,
        (Message("system", "You are the doctor. " * 20), Message("user", case.presentation)),
        tuple(_turn(source, case, draw, k == TURNS - 1) for k in range(TURNS)),
        Ending.DIAGNOSED if ended else Ending.OUT_OF_TURNS,
    )
    return Record(
        "policy",
        episode,
        phase="train",
        stage="grpo",
        step=1,
        correct=draw.random() < 0.5,
        score=Score.at_end(episode, draw.random(), accuracy=1.0),
        measures={**measures, "noise": noise},
        advantages=[draw.gauss(0, 1) for _ in range(TURNS * (TOKENS // TURNS))],
    )


def _turn(source: Source, case: Case, draw: random.Random, last: bool) -> Turn:
    item = draw.choice(source.items)
    count = TOKENS // TURNS
    said = "diagnose" if last else "ask"
    content = case.truth.diagnosis if last else item.name
    thought = f"I consider what {content} would tell me about this patient, and then decide. " * 2
    ids = tuple(draw.randrange(50_000) for _ in range(count))
    own = count // 2
    completion = Completion(
        f"{thought}<{said}>{content}</{said}>",
        ids[own:],
        tuple(-draw.expovariate(1.0) for _ in ids[own:]),
    )
    reply = Observation((Message("user", item.normal),), (), item.name, done=last)
    return Turn(ids[:own], completion, Action(said, (content,)), reply)


def _scans(path: Path) -> list[Figure]:
    shown = opened([path], restricted=False)["run"]
    columns, nowhere = shown.columns, ListQuery.read({"text": NOWHERE})
    plain = f"SELECT {', '.join(FIXED)}, measures FROM episodes JOIN cases ON cases.id = case_id"
    like = f"SELECT COUNT(*) FROM episodes WHERE turns LIKE '%{NOWHERE}%'"
    scans = [
        ("reading the columns, once", lambda: columns.catch_up(600), plain, 4.0),
        ("a whole search", lambda: listed(columns, nowhere, seconds=600), like, 4.0),
    ]
    figures = []
    for name, work, query, target in scans:
        own = _seconds(partial(_counted, columns.store, query))
        ours = _seconds(work)
        figures.append(Figure(f"viewer: {name}", ours, own, "s", ours / own, target, False))
    return figures


def _counted(store: EpisodeStore, query: str) -> int:
    """How many rows the query has, each of them read."""
    return sum(1 for _ in store.query(query))


def _first(path: Path) -> float:
    """Of the page of the run's episodes, before any column was read."""
    shown = opened([path], restricted=False)
    return _served(shown, lambda client: _seconds(lambda: client.get("/run/run/episodes")))


def _pages(shown: dict[str, ShownRun]) -> dict[str, float]:
    def timed(client: httpx2.Client) -> dict[str, float]:
        return {
            name: statistics.median(_seconds(partial(_got, client, query)) for _ in range(ROUNDS))
            for name, query in FILTERS.items()
        }

    return _served(shown, timed)


def _got(client: httpx2.Client, query: dict[str, str]) -> None:
    answer = client.get(f"/run/run/episodes?{urlencode(query)}")
    answer.raise_for_status()


def _served(shown: dict[str, ShownRun], work: Callable[[httpx2.Client], T]) -> T:
    with listening("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        gate = Gate({"token": ""}, port, {"localhost"})
        server = app.server(gate.guarded(app.application(shown)))
        thread = threading.Thread(target=lambda: server.run(sockets=[sock]))
        thread.start()
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                client.get("/?token=token")
                return work(client)
        finally:
            server.should_exit = True
            thread.join()


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
