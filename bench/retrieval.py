"""Building, opening and searching an index by words, beside bm25s.

The passages' words follow Zipf's law.

`python -m bench.retrieval --passages 1000000 --folder FOLDER` measures a larger one and keeps its
files and figures; several sizes are not raced but fitted, and the fit is carried on to PubMed's.
Each measurement is a process of its own, so that peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.figures import Figure, table
from bench.memory import peak

PASSAGES = 50_000  # of `make bench`
VOCABULARY, EXPONENT, WORDS = 300_000, 1.05, 120
COMMON = 60  # the most frequent words, which stand for the stop words: no query holds them
QUERIES, QUERY_WORDS, K = 500, 6, 5
CHUNK = 10_000
SEED = 0
MEBI = 2**20
PUBMED = 24_000_000
FITTED = (
    ("build", "cpu", "s"),
    ("build", "memory", "MiB"),
    ("build", "disk", "MiB"),
    ("ours", "open", "ms"),
    ("ours", "cpu ms", "ms"),
    ("ours", "memory", "MiB"),
)


def words() -> list[str]:
    """A made-up word per rank, of letters alone; frequent ones are shorter."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]

    def spelled(rank: int) -> str:
        return syllables[rank % 70] + (spelled(rank // 70 - 1) if rank >= 70 else "")

    return [spelled(rank) for rank in range(VOCABULARY)]


def chunks(passages: int) -> Iterator[list[np.ndarray]]:
    """Ranks of words, passage by passage, `CHUNK` passages at a time.

    The first n passages are the same for every size.
    """
    mass = 1 / np.arange(1, VOCABULARY + 1) ** EXPONENT
    cumulated = np.cumsum(mass / mass.sum())
    for start in range(0, passages, CHUNK):
        rng = np.random.default_rng([SEED, start])
        lengths = rng.normal(WORDS, WORDS / 4, CHUNK).clip(20, 240).astype(int)
        ranks = np.minimum(
            np.searchsorted(cumulated, rng.random(lengths.sum())), VOCABULARY - 1
        ).astype(np.int32)
        yield np.split(ranks, np.cumsum(lengths)[:-1])[: passages - start]


def texts(passages: int) -> Iterator[str]:
    spelled = np.asarray(words(), object)
    for chunk in chunks(passages):
        yield from (" ".join(spelled[ranks]) for ranks in chunk)


def write(file: Path, passages: Iterable[str]) -> None:
    with file.open("w") as lines:
        for row, text in enumerate(passages):
            lines.write(json.dumps({"id": str(row), "title": "", "text": text}) + "\n")


def queries() -> list[str]:
    """Words of a passage each, without the most common ones; the same for every size."""
    spelled, rng = words(), np.random.default_rng(SEED)
    chunk = next(chunks(CHUNK))
    chosen = []
    for place in rng.choice(len(chunk), QUERIES, replace=False):
        telling = np.unique(chunk[place][chunk[place] >= COMMON])
        chosen.append(
            " ".join(
                spelled[rank]
                for rank in rng.choice(telling, min(QUERY_WORDS, len(telling)), replace=False)
            )
        )
    return chosen


def build(folder: Path, passages: int) -> dict[str, Any]:
    from workup.retrieval.index import IndexSettings
    from workup.retrieval.index import build as build_index

    begun, used = time.perf_counter(), time.process_time()
    build_index(
        [folder / "corpus.jsonl"], folder / "index", IndexSettings(tokens=1000, language="none")
    )
    disk = sum(path.stat().st_size for path in (folder / "index").rglob("*") if path.is_file())
    spent = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - used}
    return {**spent, "memory": peak(), "disk": disk / MEBI}


def ours(folder: Path, passages: int) -> dict[str, Any]:
    from workup.retrieval import bm25  # noqa: F401 (imports are no part of opening)
    from workup.retrieval.index import Index

    asked = queries()
    begun = time.perf_counter()
    index = Index.open(folder / "index")
    index.find(["bado"], 1)
    opened = time.perf_counter() - begun
    return {"open": 1e3 * opened, **_asked(lambda: index.find(asked, K))}


def backend() -> str:
    """bm25s' faster one where numba is installed."""
    return "numba" if find_spec("numba") else "numpy"


def bm25s(folder: Path, passages: int) -> dict[str, Any]:
    import bm25s as library

    model = library.BM25(k1=1.2, b=0.75, method="lucene", backend=backend())
    begun = time.perf_counter()
    ids = [ranks.tolist() for chunk in chunks(passages) for ranks in chunk]
    vocabulary = {word: rank for rank, word in enumerate(words())}
    model.index(library.tokenization.Tokenized(ids, vocabulary), show_progress=False)
    del ids
    built = {"seconds": time.perf_counter() - begun, "build memory": peak()}
    asked = [query.split() for query in queries()]
    return {**built, **_asked(lambda: model.retrieve(asked, k=K, show_progress=False, n_threads=0))}


def _asked(find: Any) -> dict[str, float]:
    """The better of three rounds, after one that warms up."""
    seconds = []
    for _ in range(4):
        begun, used = time.perf_counter(), time.process_time()
        find()
        seconds.append((time.perf_counter() - begun, time.process_time() - used))
    best = min(seconds[1:])
    return {"ms": 1e3 * best[0] / QUERIES, "cpu ms": 1e3 * best[1] / QUERIES, "memory": peak()}


def alone(what: str, folder: Path, passages: int) -> dict[str, Any]:
    """A measurement in a fresh process; one that the folder holds from before is not made again."""
    kept = folder / f"{what}.json"
    if not kept.exists():
        words = [
            sys.executable,
            "-m",
            "bench.retrieval",
            "--part",
            what,
            "--folder",
            str(folder),
            "--passages",
            str(passages),
        ]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        kept.write_text(done.stdout.splitlines()[-1])
    value: dict[str, Any] = json.loads(kept.read_text())
    return value


def all_of(
    folder: Path, passages: int, parts: Sequence[str] = ("build", "ours", "bm25s")
) -> dict[str, dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "corpus.jsonl").exists():
        write(folder / "corpus.jsonl", texts(passages))
    return {part: alone(part, folder, passages) for part in parts}


def fit(found: Mapping[int, Mapping[str, Mapping[str, float]]]) -> Table:
    """value = a · passages^b by least squares on logarithms, and what that makes of PubMed."""
    shown = Table("", *(f"{size:,}" for size in found), "fit", "largest miss", f"{PUBMED:,}")
    for part, name, unit in FITTED:
        values = [found[size][part][name] for size in found]
        b, log_a = np.polyfit(np.log(list(found)), np.log(values), 1)
        fitted = np.exp(log_a + b * np.log([*found, PUBMED]))
        miss = max(abs(fitted[:-1] / values - 1))
        cells = [f"{value:,.3g} {unit}" for value in (*values, fitted[-1])]
        shown.add_row(f"{part}: {name}", *cells[:-1], f"n^{b:.2f}", f"{miss:.0%}", cells[-1])
    return shown


def figures(found: dict[str, dict[str, Any]], passages: int) -> list[Figure]:
    built, searched, theirs = found["build"], found["ours"], found["bm25s"]
    of, memory = f"{passages:,} passages", max(searched["memory"], built["memory"])
    speed = theirs["ms"] / searched["ms"]
    return [
        Figure(
            f"index {of}: peak memory",
            built["memory"],
            600 / 1.048576,
            "MiB",
            built["memory"] * 1.048576 / 600,
            1.0,
            False,
        ),
        Figure(
            f"index {of}: opened", searched["open"], 200, "ms", searched["open"] / 200, 1.0, False
        ),
        Figure(
            f"top {K} of {of}: throughput",
            1e3 / searched["ms"],
            1e3 / theirs["ms"],
            "/s",
            speed,
            0.8,
            True,
        ),
        Figure(
            f"index {of}: memory beside bm25s'",
            memory,
            theirs["memory"],
            "MiB",
            memory / theirs["memory"],
            0.2,
            False,
        ),
    ]


def measure() -> list[Figure]:
    with TemporaryDirectory() as folder:
        return figures(all_of(Path(folder), PASSAGES), PASSAGES)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval", description=__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=[PASSAGES])
    parser.add_argument(
        "--folder", type=Path, required=True, help="where corpus and index are kept"
    )
    parser.add_argument(
        "--part", choices=("build", "ours", "bm25s"), help="measure this alone, as JSON"
    )
    arguments = parser.parse_args()
    if arguments.part:
        part = {"build": build, "ours": ours, "bm25s": bm25s}[arguments.part]
        print(json.dumps(part(arguments.folder, arguments.passages[0])))
        return
    if len(arguments.passages) > 1:
        sizes = {
            n: all_of(arguments.folder / str(n), n, ("build", "ours")) for n in arguments.passages
        }
        Console(width=130).print(fit(sizes))
        return
    found = all_of(arguments.folder, arguments.passages[0])
    Console().print(table(figures(found, arguments.passages[0])))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
