"""Peak memory of a process that opens a source and looks at every one of its cases.

The source has 1,000 or 100,000 cases.

Each measurement is a fresh process without torch, which would make any growth look small. Files are
written here in the layout that the loaders document; the clinic makes its cases as they are read.
"""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.figures import Figure

FEW, MANY = 1_000, 100_000
SEED = 0


def measure() -> list[Figure]:
    figures = []
    with TemporaryDirectory() as folder:
        for name, write in SOURCES.items():
            few, many = (
                peak_of(write(Path(folder) / f"{name}-{count}", count), count)
                for count in (FEW, MANY)
            )
            measure = f"memory, {MANY:,} cases of {name} beside {FEW:,}"
            figures.append(Figure(measure, many, few, "MiB", many / few, 1.1, False))
    return figures


def peak_of(spec: str, count: int) -> float:
    """Peak memory in MiB of a fresh process that looks at `count` cases of `spec`."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.memory", spec, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def look(spec: str, count: int) -> None:
    """Opens `spec`, reads every case once in the order of training, and prints the peak memory."""
    from workup.cases import open_source
    from workup.cases.order import Order

    source = open_source(spec)
    order = Order(len(source.train), SEED)
    for place in range(min(count, len(source.train))):
        assert source.train[order[place]].presentation
    for index in range(min(count, len(source.test))):
        assert source.test[index].presentation
    print(peak())


def peak() -> float:
    """This process's peak resident memory in MiB.

    Not from `getrusage` where it can be helped: Linux counts there what the parent held when it
    started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1 << 20 if sys.platform == "darwin" else 1 << 10
    )


def clinic(path: Path, count: int) -> str:
    return "clinic:s"


def jsonl(path: Path, count: int) -> str:
    """The clinic's cases in Workup's own format."""
    from workup.cases.clinic import open_clinic
    from workup.cases.jsonl import write

    source = open_clinic("s")
    write(
        (source.train[i] for i in range(count)),
        path.with_suffix(".jsonl"),
        items=source.items,
        diagnoses=source.diagnoses,
    )
    return f"jsonl:{path.with_suffix('.jsonl')}"


def ddxplus(path: Path, count: int) -> str:
    """A release of 40 conditions and 200 yes-or-no evidences.

    It has the layout of the released CSV files.
    """
    path.mkdir()
    codes = [f"E_{i}" for i in range(200)]
    evidence = {
        "question_fr": "…",
        "is_antecedent": False,
        "default_value": 0,
        "value_meaning": {},
        "possible-values": [],
    }
    evidences = {
        code: evidence
        | {
            "name": code,
            "code_question": code,
            "question_en": f"Do you have sign {code}?",
            "data_type": "B",
        }
        for code in codes
    }
    rng = np.random.default_rng(SEED)
    has = [sorted(rng.choice(codes, 20, replace=False).tolist()) for _ in range(40)]
    conditions = {
        f"Condition {i}": {
            "condition_name": f"Condition {i}",
            "cond-name-fr": f"Affection {i}",
            "cond-name-eng": f"Condition {i}",
            "icd10-id": f"A{i:02}",
            "symptoms": {key: {} for key in mine},
            "antecedents": {},
            "severity": 3,
        }
        for i, mine in enumerate(has)
    }
    (path / "release_evidences.json").write_text(json.dumps(evidences))
    (path / "release_conditions.json").write_text(json.dumps(conditions))
    with (path / "patients.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ["AGE", "DIFFERENTIAL_DIAGNOSIS", "SEX", "PATHOLOGY", "EVIDENCES", "INITIAL_EVIDENCE"]
        )
        for i in range(count):
            mine = [code for code in has[i % 40] if rng.random() < 0.5] or has[i % 40][:1]
            name, other = f"Condition {i % 40}", f"Condition {(i + 1) % 40}"
            ranked = [[name, 0.7], [other, 0.3]]
            rows.writerow([int(rng.integers(1, 90)), ranked, "FM"[i % 2], name, mine, mine[0]])
    return f"ddxplus:{path}"


SOURCES: dict[str, Callable[[Path, int], str]] = {
    "jsonl": jsonl,
    "ddxplus": ddxplus,
    "clinic": clinic,
}

if __name__ == "__main__":
    look(sys.argv[1], int(sys.argv[2]))
