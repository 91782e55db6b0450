"""What a reader must know before they trust a doctor's accuracy: one line for each warning.

The lines stand wherever accuracy does: under the table of a run, in reports, in comparisons. A
metric declares its own (`workup.metrics.metric.Caveat`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workup import environments
from workup.core.episode import Ending
from workup.metrics.known import metric
from workup.metrics.metric import Caveat


def lines(
    doctors: Mapping[str, Mapping[str, Any]], encounters: Mapping[str, str] | None = None
) -> list[str]:
    """The warnings about these doctors, doctor by doctor; first of episodes that failed.

    `doctors` are entries as in summary.json. A metric that was not measured, or in too few
    episodes, warns of nothing. A line ends with the number of the episodes that have the metric.
    `encounters` has the environment of a doctor, whose settings against it are named.
    """
    found = []
    for doctor, entry in doctors.items():
        endings = entry.get("endings") or {}
        if failed := endings.get(Ending.FAILED, 0):
            found.append(
                f"{doctor}: {failed:,} of {sum(endings.values()):,} episodes failed for reasons of "
                "the machinery and are in no figure"
            )
        for name in sorted(entry, key=lambda name: metric(name).rank):
            caveat, figure = metric(name).caveat, entry[name]
            if caveat is None or not isinstance(figure, Mapping):
                continue
            mean, count = figure["mean"], figure["n"]
            if mean is not None and mean > caveat.above and count >= caveat.fewest:
                text = caveat.text.format(share=f"{100 * mean:.0f} %")
                text += _ways(caveat, (encounters or {}).get(doctor, ""))
                found.append(f"{doctor}: {text}; {count:,} episodes")
    return found


def _ways(caveat: Caveat, encounter: str) -> str:
    """In brackets, what can be set in this environment against what `caveat` warns of."""
    offered = environments.offered(encounter) if caveat.ways and encounter else set()
    told = [f"{name} {does}" for name, does in caveat.ways if name in offered]
    return f" ({', '.join(told)})" if told else ""
