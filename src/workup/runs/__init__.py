"""The run folder (see folder.py) and what is kept in it."""

from workup.runs.folder import Episodes, Run
from workup.runs.machine import versions
from workup.runs.record import Outcome, Record

__all__ = ["Episodes", "Outcome", "Record", "Run", "versions"]
