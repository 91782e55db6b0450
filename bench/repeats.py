"""How much less likely a policy thinks a question is once it has been asked.

Type `python -m bench.repeats POLICY… [--cases clinic:s] [--patients 100] [--asked 6]`, a POLICY as
`workup evaluate` takes it, or a warm start (RUN/checkpoints/warm-start).

The random and the greedy doctor ask `--asked` questions of each patient; then the policy says how
probable each question is. `again` is the probability that its next question repeats one of them,
`chance` what a policy would have that has forgotten them and prefers none. `remembered` is by how
many nats a question is less likely in transcripts that have it than in those that do not, averaged
over the questions by how probable they are.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from workup.cases import open_source
from workup.core.case import Case, Source
from workup.core.episode import Turn
from workup.core.ports import Demonstration, Doctor, Environment, LanguageModel, ScoreRequest
from workup.environments.base.teacher import exchanges, played
from workup.models.samplers import How
from workup.models.samplers.local import open as open_local
from workup.rl.samples import token_tree
from workup.runs.policies import resolve
from workup.runs.settings import world

DOCTORS = ("random doctor", "greedy information")


def transcripts(
    source: Source, environment: Environment, doctor: Doctor, patients: int, asked: int
) -> Iterator[tuple[Case, tuple[Turn, ...]]]:
    """Patients, each with the first `asked` questions that the doctor asked."""
    for case in source.test[:patients]:
        yield case, played(case, environment, doctor)[:asked]


async def chances(
    model: LanguageModel,
    source: Source,
    environment: Environment,
    doctor: Doctor,
    sizes: Sequence[int],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """log P(question | transcript) and whether it was asked: transcripts × items."""
    scorer, logs, before = model.scorer(), [], []
    for case, past in transcripts(source, environment, doctor, *sizes):
        shown = Demonstration(environment.open(case), exchanges(past))
        context = (token_tree(shown, model.policy).trunk,)  # up to the policy's own turn
        told = [
            await scorer.score(
                ScoreRequest(
                    case.id, environment.write(item.kind.value, item.name), contexts=(context,)
                )
            )
            for item in source.items
        ]
        logs.append([each.totals[0] for each in told])
        names = {turn.observation.item for turn in past}
        before.append([item.name in names for item in source.items])
    return np.array(logs), np.array(before)


def row(logs: NDArray[np.float64], asked: NDArray[np.bool_]) -> list[str]:
    """again, chance and remembered, as text."""
    P = np.exp(logs)
    again = ((P * asked).sum(1) / P.sum(1)).mean()
    # Only a question that some transcripts have and others have not says what having it does.
    both = [k for k in range(P.shape[1]) if 0 < asked[:, k].sum() < len(asked)]
    less = [logs[~asked[:, k], k].mean() - logs[asked[:, k], k].mean() for k in both]
    remembered = np.average(less, weights=P.mean(0)[both])
    return [f"{again:.3f}", f"{asked.mean():.3f}", f"{remembered:+.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.repeats", description=__doc__)
    parser.add_argument("policies", nargs="+", metavar="POLICY")
    parser.add_argument("--cases", default="clinic:s")
    parser.add_argument("--patients", type=int, default=100)
    parser.add_argument("--asked", type=int, default=6)
    given = parser.parse_args()
    source = open_source(given.cases)
    environment = world({"name": "consultation"}, {}).open(source)
    doctors = environment.about.anchors(source, 0)
    shown = Table("policy", "after questions of")
    for heading in ("again", "chance", "remembered (nats)"):
        shown.add_column(heading, justify="right")
    for name in given.policies:
        model = open_local(resolve(name).weights(), How())
        for doctor in DOCTORS:
            sizes = (given.patients, given.asked)
            found = asyncio.run(chances(model, source, environment, doctors[doctor], sizes))
            shown.add_row(name, doctor, *row(*found))
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
