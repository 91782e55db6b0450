"""What a reader must know before they trust a doctor's accuracy: one line for each warning.

The lines stand wherever accuracy does: under the table of a run, in reports, in comparisons. A
further warning is a further entry of `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """A warning about a doctor whose mean of `metric`, a share, is above `above`.

    `text` follows the doctor's name; {share} in it is the mean, as "97 %".
    """

    metric: str
    above: float
    text: str


CHECKS = (
    Check(
        "malformed",
        0.5,
        "{share} of its turns could not be read, so its accuracy says more about the format than "
        "about its diagnoses (a transcript shows what it wrote)",
    ),
    Check(
        "not_understood",
        0.1,
        "{share} of its questions were not understood, or the record has nothing on them: part of "
        "what it gets wrong is the exact patient's (roles.patient or roles.simulator puts a model "
        "in its place)",
    ),
)


def lines(doctors: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The warnings about these doctors, doctor by doctor.

    `doctors` are entries as in summary.json. A metric that was not measured warns of nothing.
    """
    return [
        f"{doctor}: {check.text.format(share=f'{100 * share:.0f} %')}"
        for doctor, entry in doctors.items()
        for check in CHECKS
        if (share := _mean(entry, check.metric)) is not None and share > check.above
    ]


def _mean(entry: Mapping[str, Any], metric: str) -> float | None:
    found = entry.get(metric)
    return found["mean"] if isinstance(found, Mapping) else None
