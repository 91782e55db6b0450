"""What became of the cases: how many were kept, dropped and failed, why, and which for example."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from workup.prepare.steps import Drop

EXAMPLES = 3  # cases named for each reason
_HEAD = 120  # characters of a failure that tell it from others
_DETAIL = 300  # characters of a case's own reason


@dataclass
class Reason:
    """One reason, how often it held, and the first cases it held for."""

    count: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)

    def add(self, id: str, detail: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append({"id": id} | ({"detail": detail[:_DETAIL]} if detail else {}))


@dataclass
class Report:
    """Filled in the order of the input, so that the same result has the same report.

    `private` leaves out what a model said about restricted cases. `cases` is how many there are to
    prepare.
    """

    step: str
    model: str
    version: str
    settings: dict[str, Any]
    started: str
    input: str
    cases: int
    private: bool
    kept: int = 0
    dropped: dict[str, Reason] = field(default_factory=dict)
    failed: dict[str, Reason] = field(default_factory=dict)

    @classmethod
    def of(cls, header: Mapping[str, Any], input: str, cases: int, *, private: bool) -> Report:
        made = {key: header[key] for key in ("step", "model", "version", "settings", "started")}
        return cls(**made, input=input, cases=cases, private=private)

    def add(self, id: str, result: str | Drop) -> None:
        """Counts a finished case: kept if `result` is its line."""
        if isinstance(result, Drop):
            self.dropped.setdefault(result.reason, Reason()).add(
                id, "" if self.private else result.detail
            )
        else:
            self.kept += 1

    def fail(self, id: str, reason: str) -> None:
        """Counts a case that failed."""
        head, rest = ("the model failed", "") if self.private else _parted(reason)
        self.failed.setdefault(head, Reason()).add(id, rest)

    @property
    def complete(self) -> bool:
        """Whether every case is kept or dropped."""
        return self.kept + sum(reason.count for reason in self.dropped.values()) == self.cases

    def json(self) -> str:
        """The report as a JSON document."""
        plain = asdict(self)
        del plain["private"]
        return json.dumps({**plain, "complete": self.complete}, ensure_ascii=False, indent=1)

    def rows(self) -> list[tuple[str, int, str]]:
        """(what, how many, an example) for a table.

        Kept, the reasons to drop by frequency, failures.
        """
        reasons = [("dropped", *pair) for pair in self.dropped.items()] + [
            ("failed", *pair) for pair in self.failed.items()
        ]
        reasons.sort(key=lambda row: (row[0], -row[2].count))
        rows = [("kept", self.kept, "")]
        for what, name, reason in reasons:
            examples = (
                example["id"] + (f": {example['detail']}" if "detail" in example else "")
                for example in reason.examples
            )
            rows.append((f"{what}: {name}", reason.count, "; ".join(examples)))
        return rows


def _parted(reason: str) -> tuple[str, str]:
    """What tells a failure from others, and the rest of its words; cut between two words."""
    if len(reason) <= _HEAD:
        return reason, ""
    cut = reason.rfind(" ", _HEAD // 2, _HEAD)
    cut = _HEAD if cut < 0 else cut
    return f"{reason[:cut]} …", f"… {reason[cut:].lstrip()}"
