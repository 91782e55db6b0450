"""What a reader must know before they trust a doctor's accuracy: one line for each warning.

The lines stand wherever accuracy does: under the table of a run, in reports, in comparisons. A
metric declares its own (`workup.metrics.metric.Caveat`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workup.metrics.known import metric


def lines(doctors: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The warnings about these doctors, doctor by doctor.

    `doctors` are entries as in summary.json. A metric that was not measured warns of nothing.
    """
    return [
        f"{doctor}: {caveat.text.format(share=f'{100 * share:.0f} %')}"
        for doctor, entry in doctors.items()
        for name in sorted(entry, key=lambda name: metric(name).rank)
        if (caveat := metric(name).caveat) and (share := _mean(entry, name)) is not None
        if share > caveat.above
    ]


def _mean(entry: Mapping[str, Any], metric: str) -> float | None:
    found = entry[metric]
    return found["mean"] if isinstance(found, Mapping) else None
