"""What an update of a warm start costs where demonstrations search, in processor time.

The demonstrations are those of `cmig` in the linked clinic: a patient, up to three searches with
what they find, and the diagnosis, which is taught after earlier searches too. First the update
alone, beside one that knows no trees: every taught diagnosis is a sequence of its own, and all
sequences of the batch are padded to the longest. The losses agree to 1e-5. Then the update with the
making of its demonstrations, beside `craft`'s in the same clinic.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch

from bench.figures import Figure
from workup.core.episode import Sample
from workup.core.ports import Demonstration
from workup.core.stages import SftStage
from workup.engines.settings import EngineSettings
from workup.engines.trl import batches
from workup.engines.trl.engine import TrlEngine
from workup.engines.verl.rows import sequences
from workup.loops.training.plan import Plan
from workup.models.local import LocalPolicy
from workup.rl.running import one_loop
from workup.runs.settings import Settings

UPDATES, ROUNDS, BATCH = 20, 3, 32
WHOLE = 1 << 30  # more than there are sequences in a batch, or tokens of padding
LINKED = {
    "cases": "clinic:s#renamed,linked",
    "environment": {
        "refined": "findings",
        "max_turns": 4,
        "told": "record",
        "passages": 1,
        "queried": 3,
        "open_books": 0.2,
    },
}

Batch = Sequence[Demonstration | Sample]


class WarmStart:
    """Updates of one method's warm start from an untrained policy, each in processor seconds."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.ends, self.losses = plan, list[float](), list[float]()
        self.policy = LocalPolicy(*plan.weights())
        settings = EngineSettings(micro_batch=WHOLE, sft=plan.settings.sft)
        self.engine = TrlEngine(self.policy, settings, folder, on_step=self._end)

    def _end(self, step: int, update: Mapping[str, float]) -> None:
        self.ends.append(time.process_time())
        self.losses.append(update["loss"])

    def demonstrations(self) -> Iterator[list[Demonstration]]:
        stage = next(each for each in self.plan.stages if isinstance(each, SftStage))
        for start in range(0, UPDATES * BATCH, BATCH):
            with one_loop():
                made = [self.plan.demonstration(stage, start + k) for k in range(BATCH)]
            yield made

    def seconds(self, shown: Iterable[Batch], padding: int = batches.PADDING) -> float:
        """The mean of all updates but the first, before which the trainer is made."""
        self.ends.clear()
        with patch.object(batches, "PADDING", padding):
            self.engine.sft(shown, UPDATES)
        return fmean(end - start for start, end in pairwise(self.ends))


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    names = ("trees", "plain", "cmig", "craft")
    plans = {
        "cmig": Plan.of(Settings(method="cmig", **LINKED), "bench"),
        "craft": Plan.of(Settings(method="craft", cases="clinic:s"), "bench"),
    }
    took: dict[str, list[float]] = {name: [] for name in names}
    with TemporaryDirectory() as folder:
        starts = {
            name: WarmStart(plans.get(name, plans["cmig"]), Path(folder) / name) for name in names
        }
        trees = list(starts["trees"].demonstrations())
        plain = [sequences(batch, starts["plain"].policy) for batch in trees]
        for _ in range(ROUNDS):
            took["trees"].append(starts["trees"].seconds(trees))
            took["plain"].append(starts["plain"].seconds(plain, WHOLE))
            for name in ("cmig", "craft"):
                took[name].append(starts[name].seconds(starts[name].demonstrations()))
    first, other = starts["trees"].losses[0], starts["plain"].losses[0]
    if abs(first - other) > 1e-5 * other:
        raise SystemExit(f"warming: losses of {first} and {other} instead of the same")
    ours, separate, searching, asking = (fmean(took[name]) for name in names)
    update = "update of a warm start that searches"
    return [
        Figure(
            f"{update}, beside padded sequences",
            ours,
            separate,
            "s",
            ours / separate,
            0.5,
            False,
        ),
        Figure(
            f"{update}, demonstrations included, beside craft's",
            searching,
            asking,
            "s",
            searching / asking,
            3.0,
            False,
        ),
    ]
