"""Reports: one page per run, and several runs compared. They read run folders and nothing else."""

from workup.report.compare import compare, figures
from workup.report.page import build
from workup.report.sides import Compared

__all__ = ["Compared", "build", "compare", "figures"]
