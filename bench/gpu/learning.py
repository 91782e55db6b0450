"""Learning curves of a pretrained model (smollm2) by each method, over several seeds.

Type `python -m bench.gpu.learning --out FOLDER --ddxplus FOLDER [--index FOLDER] [--mediq FILE]`.

Each seed has a supervised start for each grammar, and every method of that grammar goes on from it:
`outcome` and `craft` in a consultation, `grpo` and `promed` in questions to a patient, `cmig` in a
library (`--index`, as `workup index build` makes one). On mediQ `grpo` and `promed` alone are
trained: nothing can demonstrate searches there, and its facts have no criticality.

The runs lie in `FOLDER/SET/METHOD-SEED`, and `FOLDER/SET.html` compares them, pooled over the seeds
by `workup compare`. The same command goes on where it was interrupted. With `--quick` the tiny
policy plays in the built-in clinic, to see on a processor that it works.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.learning import Call, Job, typed

CONSULTATION, QUESTIONS, LIBRARY = "consultation", "questions", "library"
METHODS = {
    CONSULTATION: ("outcome", "craft"),
    QUESTIONS: ("grpo", "promed"),
    LIBRARY: ("cmig",),
}
START = {CONSULTATION: "craft", QUESTIONS: "dialogt", LIBRARY: "cmig"}
# Settings that a supervised start and every method trained from it share.
SHARED = {
    CONSULTATION: "max_tokens=48",
    QUESTIONS: "max_tokens=64",
    LIBRARY: "max_tokens=120 environment.subqueries=0 environment.max_turns=3",
}
IMITATING = "micro_batch=16 bf16=true concurrency=100"
# `dialogt` imitates dialogues of the training cases, the others demonstrations of their teacher.
LESSONS = {
    CONSULTATION: "warm_start=true steps=0 sft.steps=400 sft.lr=3e-4",
    QUESTIONS: "reward.cases=3200 tuning.epochs=4 tuning.batch=32 tuning.lr=3e-4",
    LIBRARY: "warm_start=true steps=0 sft.steps=400 sft.lr=3e-4",
}
REINFORCED = (
    "steps=200 batch=8 group=8 lr=2e-5 micro_batch=8 gradient_checkpointing=true concurrency=100"
)
SEARCHLESS = {"promed": "reward.search=false"}  # its supervised start stands in for its search
EVALUATED = "evaluation.cases=400"
QUICK_LESSONS = {
    CONSULTATION: "tiny.width=32 steps=0 sft.steps=20",
    QUESTIONS: "tiny.width=32 sft.steps=20 reward.cases=8 tuning.epochs=1",
    LIBRARY: "tiny.width=32 steps=0 sft.steps=20",
}
QUICK = "steps=2 batch=2 group=2"
BRIEF = "evaluation.cases=4 evaluation.anchors=false"


@dataclass(frozen=True)
class Asked:
    """What is trained: sets of cases by name, an index or none, seeds, where, and how large."""

    sets: dict[str, str]
    index: str | None
    seeds: int
    out: Path
    quick: bool = False

    def grammars(self, name: str) -> list[str]:
        """The grammars that can be started in a set of cases."""
        if name == "mediq":
            return [QUESTIONS]
        return [each for each in METHODS if each != LIBRARY or self.index is not None]


def chain(asked: Asked, name: str, grammar: str, seed: int) -> list[Job]:
    """The supervised start of one grammar and seed, then one run of each method from it."""
    cases, folder = asked.sets[name], asked.out / name
    shared = ["--cases", cases, f"seed={seed}", *SHARED[grammar].split()]
    if grammar == LIBRARY:
        shared.append(f"environment.index={asked.index}")
    start = folder / f"start-{grammar}-{seed}"
    if asked.quick:
        first = [START[grammar], *shared, *QUICK_LESSONS[grammar].split(), *BRIEF.split()]
        later = [*shared, *QUICK.split(), *BRIEF.split()]
    else:
        lessons = [*LESSONS[grammar].split(), *IMITATING.split(), EVALUATED]
        first = [START[grammar], "--policy", "smollm2", *shared, *lessons]
        later = [*shared, *REINFORCED.split(), EVALUATED]
    jobs = [Job(start, tuple(first))]
    for method in METHODS[grammar]:
        words = [method, "--policy", str(start), *later, *SEARCHLESS.get(method, "").split()]
        jobs.append(Job(folder / f"{method}-{seed}", tuple(words)))
    return jobs


def chains(asked: Asked) -> Iterator[list[Job]]:
    """All of them, seed by seed, so that an interrupted queue has whole seeds."""
    for seed in range(asked.seeds):
        for name in asked.sets:
            for grammar in asked.grammars(name):
                yield chain(asked, name, grammar, seed)


def followed(call: Call, jobs: Sequence[Job]) -> list[str]:
    """Runs a chain; the result names the job that failed, which ends the chain."""
    for job in jobs:
        if job.run(call):
            return [str(job.out)]
    return []


def queue(asked: Asked, call: Call, at_once: int) -> list[str]:
    """Runs all chains, `at_once` beside each other, and compares; the result names what failed."""
    with ThreadPoolExecutor(at_once) as pool:
        failed = [
            name for each in pool.map(partial(followed, call), chains(asked)) for name in each
        ]
    for name in asked.sets:
        ended = [
            str(job.out)
            for jobs in chains(asked)
            for job in jobs[1:]
            if job.out.parent.name == name and (job.out / "summary.json").exists()
        ]
        if len(ended) > 1:
            call(("compare", *ended, "--html", str(asked.out / f"{name}.html")))
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.learning", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--ddxplus", metavar="FOLDER", help="the released files")
    parser.add_argument("--mediq", metavar="FILE", help="the released file")
    parser.add_argument("--index", metavar="FOLDER", help="a library for cmig on DDXPlus")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4, help="runs that share the GPU")
    parser.add_argument("--quick", action="store_true", help="small, without a GPU")
    arguments = parser.parse_args()
    given = {"ddxplus": arguments.ddxplus, "mediq": arguments.mediq}
    sets = {name: f"{name}:{place}" for name, place in given.items() if place}
    if arguments.quick:
        sets, arguments.index = {"clinic": "clinic:xs"}, "clinic:xs"
    if not sets:
        parser.error("nothing to train on: say --ddxplus FOLDER, --mediq FILE or both")
    asked = Asked(sets, arguments.index, arguments.seeds, arguments.out, arguments.quick)
    if failed := queue(asked, typed, arguments.at_once):
        sys.exit(f"these runs did not end: {', '.join(failed)}; the same command goes on with them")


if __name__ == "__main__":
    main()
