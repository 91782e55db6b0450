"""What a training, an evaluation and a run over folds share: how they begin, play and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workup.core.case import Source
from workup.core.ports import Doctor, Environment
from workup.loops.evaluation.examination import Examination, Player, examine
from workup.loops.supporting import SupportingRoles
from workup.report.live import Live
from workup.runs import Run, policies, versions
from workup.runs.policies import Resolved


@dataclass(frozen=True)
class Frame:
    """Whose policy plays which cases, with which models in the supporting roles."""

    policy: Resolved
    source: Source
    supporting: SupportingRoles
    seed: int

    @property
    def environment(self) -> Environment:
        return self.supporting.environment

    @property
    def weighed(self) -> Mapping[str, str]:
        """The names of policies and models whose weights a run records, by role."""
        return {"policy": self.policy.name, **self.supporting.roles}

    @property
    def anchors(self) -> Mapping[str, Doctor]:
        """The doctors that bound what is measured, by label, from the lowest to the highest."""
        return self.environment.about.anchors(self.source, self.seed)


def create(out: Path, config: Mapping[str, Any], frame: Frame, *, several: bool = False) -> None:
    """Makes the run folder `out`, with what the policy and the roles' models were at the time.

    A run over `several` policies has none of its own.
    """
    named = {role: name for role, name in frame.weighed.items() if not several or role != "policy"}
    made = versions({"run": frame.seed}, weights=policies.identities(named))
    Run.create(out, config, made, restricted=frame.source.restricted).close()


def evaluate(
    run: Run,
    examination: Examination,
    player: Player,
    label: str,
    live: Live,
    supporting: SupportingRoles,
) -> int:
    """`examine`, shown in the live view with what the run has cost so far."""
    live.stage(f"evaluate {label}", examination.total, unit="episode")
    return examine(
        run, examination, player, label, lambda so_far: live.step({**so_far, **supporting.spent})
    )


def finish(run: Run, summary: Mapping[str, Any], notes: Iterable[str], live: Live) -> None:
    """Writes the report of a run whose summary is written, and shows both."""
    from workup.report import build as build_report  # matplotlib takes a second to load

    build_report(run)
    live.table(summary)
    for note in (*notes, f"report  {run.report}"):
        live.note(note)
