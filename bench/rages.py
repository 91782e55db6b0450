"""Look-ups per second in a base of examinations of the paper's size, and how fast it is opened.

24,000 statistics of 465 examinations in 1,629 diseases (ES-9), in a folder on disk. A look-up goes
from the diagnosis as a case names it, and the order as a doctor writes it, to the statistic.
"""

from __future__ import annotations

import csv
import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bench.figures import Figure
from workup.retrieval.exam_base import ExamBase
from workup.retrieval.exam_sources import build
from workup.retrieval.exam_terms import key

DISEASES, TESTS, STATISTICS, LOOKUPS = 1_629, 465, 24_000, 20_000
T = TypeVar("T")
WANTED, OPENED = 10_000, 0.1


def measure() -> list[Figure]:
    """By the processor's time: a machine that others use too makes no difference."""
    draw = random.Random(0)
    with TemporaryDirectory() as folder:
        pairs = _table(Path(folder) / "table.csv", draw)
        build([str(Path(folder) / "table.csv")], Path(folder) / "base")
        opening, base = _timed(lambda: ExamBase.open(str(Path(folder) / "base")))
        orders = [draw.choice(pairs) for _ in range(LOOKUPS)]
        seconds, found = _timed(lambda: sum(_look_up(base, *order) for order in orders))
    assert found == LOOKUPS
    rate = LOOKUPS / seconds
    name = "examination look-ups per processor second"
    return [
        Figure(name, rate, WANTED, "/s", rate / WANTED, 1.0, True),
        Figure("opening the base", opening, OPENED, "s", opening / OPENED, 1.0, False),
    ]


def _table(path: Path, draw: random.Random) -> list[tuple[str, str]]:
    """Writes the statistics; returns disease and examination of each, by a further name."""
    every = [(d, t) for d in range(DISEASES) for t in range(TESTS)]
    chosen = sorted(draw.sample(every, STATISTICS))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("disease", "test", "positive", "n", "disease_names", "test_names"))
        for d, t in chosen:
            hits = draw.randint(0, 50)
            writer.writerow((f"tumour {d}", f"CD{t}x", hits, 50, f"neoplasm {d}", f"antigen {t}"))
    return [(f"Neoplasm {d}", f"antigen {t} immunostain") for d, t in chosen]


def _look_up(base: ExamBase, disease: str, order: str) -> bool:
    exam = base.test(key(order))
    return exam is not None and base.share(base.disease([disease]), exam) is not None


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    done = work()
    return time.process_time() - began, done
