"""A policy that stops with a guarantee, as a further row of its evaluation.

The cases are divided at random. On some the policy plays as always, and the threshold is
calibrated; on the others it is tested. None is used for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workup.cases.files import evenly_spaced
from workup.core.draws import seed_key
from workup.core.episode import Ending, Episode
from workup.core.errors import UserError
from workup.core.lazy import Lazy
from workup.core.ports import Doctor
from workup.core.statistics import Floats
from workup.doctors.beliefs import Belief, place
from workup.doctors.stopping import (
    SCORE,
    EncounterScore,
    NamedSet,
    StoppingDoctor,
    StoppingRule,
    along,
)
from workup.loops.evaluation.examination import Examination, playing
from workup.loops.frame import evaluate
from workup.loops.supporting import SupportingRoles
from workup.metrics.conformal import need, threshold
from workup.report.live import Live
from workup.runs import Run
from workup.runs.estimates import value
from workup.runs.settings import StoppingSettings

PHASE = "calibration"


def divided(whole: Examination, settings: StoppingSettings) -> tuple[Examination, Examination]:
    """(the evaluation on the cases to test on, one on others to calibrate on).

    Both are taken together, evenly spaced; which of them calibrate is drawn by the seed, so that
    the two sides are exchangeable. Raises UserError where these are too few for the promise, or
    none is left to test on.
    """
    number = settings.calibration
    need(number, settings.alpha or 1)
    count = min(len(whole.cases), whole.settings.cases + number)
    if count <= number:
        raise UserError(
            f"stopping.calibration={number} leaves none of {len(whole.cases)} cases to test on; "
            "calibrate on fewer"
        )
    pool = evenly_spaced(whole.cases, count)
    order = np.random.default_rng(seed_key("calibration", whole.seed)).permutation(count)
    held, tested = (sorted(map(int, side)) for side in (order[:number], order[number:]))
    alone = whole.settings.model_copy(update={"cases": number, "samples": 1})
    calibrating = replace(
        whole,
        cases=Lazy(len(held), lambda index: pool[held[index]]),
        settings=alone,
        measures=(),
        own={},
        reward=None,
        phase=PHASE,
    )
    return replace(whole, cases=Lazy(len(tested), lambda i: pool[tested[i]])), calibrating


@dataclass(frozen=True)
class Stopping:
    """What a stopping row is played with; `label` is the policy's own."""

    settings: StoppingSettings
    label: str
    doctor: Doctor
    belief: Belief
    calibrating: Examination

    @property
    def row(self) -> str:
        """The label of the row."""
        return f"{self.label}, stopping"

    async def spread(self, episode: Episode) -> tuple[list[Floats], int | None]:
        """(a_t after 0, 1, … and all questions of an episode, the place of the truth).

        Raises RolloutError where the belief gives up.
        """
        return await along(self.belief, episode), place(self.belief, episode.case)

    def play(
        self, run: Run, examination: Examination, live: Live, supporting: SupportingRoles
    ) -> Mapping[str, Any]:
        """Calibrates, plays the row, and returns its entry in summary.json.

        What an earlier session played is kept. Once an episode of the row has been played,
        the threshold stays, so failed calibration episodes are not played again. Raises UserError
        where too many of them failed for `alpha`.
        """
        alpha, most = self.settings.alpha, self.settings.most
        assert alpha is not None  # else there is no such row
        scored = replace(self.calibrating, own={self.label: (EncounterScore(self.belief, most),)})
        if all(each.ending == Ending.FAILED for each in run.outcomes(self.row)):
            evaluate(run, scored, playing(self.doctor), self.label, live, supporting)
        outcomes = run.outcomes(self.label, PHASE)
        scores = [score for each in outcomes if (score := value(each, SCORE)) is not None]
        rule = StoppingRule(threshold(scores, alpha), most)
        doctor = StoppingDoctor(self.doctor, self.belief, rule, examination.environment)
        named = replace(examination, own={self.row: (NamedSet(self.belief, rule),)})
        evaluate(run, named, playing(doctor), self.row, live, supporting)
        return {
            "doctor": self.row,
            "alpha": alpha,
            "most": most,
            "calibrated_on": len(scores),
            "failed": len(outcomes) - len(scores),
            "threshold": rule.threshold,
            "coverage_sd": math.sqrt(alpha * (1 - alpha) / (len(scores) + 2)),
        }


def told(found: Mapping[str, Any]) -> str:
    """A line for the reader of a run with this entry."""
    if found["threshold"] > 1:
        return (
            f"stop    {found['doctor']}: nothing is promised, since of {found['calibrated_on']:,} "
            f"cases more than {found['alpha']:g} have a diagnosis that is not listed"
        )
    return (
        f"stop    {found['doctor']}: λ = {found['threshold']:.3f}, calibrated on "
        f"{found['calibrated_on']:,} cases that are not tested on; the truth is in the named set "
        f"with probability ≥ {1 - found['alpha']:g} (± {found['coverage_sd']:.3f} SD for one "
        "calibration)"
    )
