"""Peak memory of a process that opens a source and reads cases from all over it: 100,000 cases beside 1,000."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure

FEW, MANY, TARGET = 1_000, 100_000, 1.1
LOOKED_AT = 2_000

# A process of its own: peak memory never goes down again.
PROGRAM = """
import resource, sys
from workup.cases import open_source
source, count = open_source(sys.argv[1]), int(sys.argv[2])
for index in range(0, count, max(1, count // int(sys.argv[3]))):
    split = source.train if index % 5 else source.test
    split[index % len(split)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure() -> list[Figure]:
    with TemporaryDirectory() as folder:
        few, many = (written(Path(folder) / f"{count}.jsonl", count) for count in (FEW, MANY))
        return [
            beside("jsonl file", peak(f"jsonl:{many}", MANY), peak(f"jsonl:{few}", FEW)),
            beside("built-in clinic", peak("clinic:s", MANY), peak("clinic:s", FEW)),
        ]


def beside(name: str, many: float, few: float) -> Figure:
    return Figure(f"peak memory, {name}, {MANY:,} beside {FEW:,} cases", many, few, "MB", many / few, TARGET, False)


def peak(source: str, count: int) -> float:
    """Megabytes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, source, str(count), str(LOOKED_AT)], check=True, capture_output=True, text=True
    )
    return int(done.stdout) / 1024


def written(path: Path, count: int) -> Path:
    """A file of cases as large as real ones: twenty findings each."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            facts = [{"id": f"f{k}", "item": f"item {k}", "text": f"Finding {k} is {number % (k + 2)}."} for k in range(20)]
            truth = {"diagnosis": f"disease {number % 50}", "facts": facts}
            file.write(
                json.dumps({"id": f"case {number}", "presentation": f"Patient {number} is unwell.", "truth": truth}) + "\n"
            )
    return path
