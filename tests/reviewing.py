"""Made-up runs and reviews of them, with names that reviewers must not see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import example_run

from workup.runs import Run
from workup.studies.review import folder, form
from workup.studies.review.folder import Review, ReviewPlan

SECRET = "zzsecretzz"  # in every name that reviewers must not see
WORDS = {"warm start": f"{SECRET} doctor one", "trained": f"{SECRET} doctor two"}


def played(path: Path, *, cases: int = 12, restricted: bool = False) -> Path:
    """A run whose doctors have the names of WORDS in place of the made-up ones."""
    config = {"method": SECRET, "cases": "clinic:s", "policy": SECRET}
    with Run.create(path, config, {}, restricted=restricted) as run:
        for old, new in WORDS.items():
            run.write(
                replace(example_run.record(index, old, sample, 0), doctor=new, stage=SECRET)
                for index in range(cases)
                for sample in range(2)
            )
    return path


def made(run: Path, out: Path, *, pairs: bool = True, cases: int = 6, **more: Any) -> Review:
    """A review of both doctors with all of our questions."""
    asked = form.chosen(form.DEFAULT, (), pairs=pairs)
    plan = ReviewPlan(asked, cases, pairs, **{"seed": 0, "doctors": tuple(WORDS.values()), **more})
    return folder.make([run], plan, out)
