"""Evaluations that belong together, each a run folder of its own below one folder.

So each can be resumed and has a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workup.report.live import Live
from workup.runs.policies import resolve


def labels(policies: Sequence[str]) -> dict[str, str]:
    """A short name for each policy; its whole name if two short ones are equal."""
    short = {policy: resolve(policy).label for policy in policies}
    names = list(short.values())
    return {policy: name if names.count(name) == 1 else policy for policy, name in short.items()}


@dataclass
class Steps(Live):
    """A `Live` that passes on the progress, and each note once.

    It shows no table and no report: what the evaluations belong to has its own.
    """

    live: Live
    now: str = ""  # the policy and the condition that the next stage is shown under
    several: bool = False  # one evaluation has several stages: each is shown by its own name too
    seen: set[str] = field(default_factory=set)

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        own = f": {name.removeprefix('evaluate ')}" if self.several else ""
        self.live.stage(f"{self.now}{own}", total, done=done, unit=unit)

    def step(self, metrics: Mapping[str, Any]) -> None:
        self.live.step(metrics)

    def note(self, text: str) -> None:
        if text not in self.seen and not text.startswith(("report ", "look ")):
            self.seen.add(text)
            self.live.note(text)
