"""`python -m bench [NAME …] [--json FILE]`: measures, and prints one table.

It exits 0 whatever the table says.
"""

from __future__ import annotations

import argparse
import json
import shlex
import warnings
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.console import Console

from bench.figures import HEADINGS, rows, table
from workup.runs.machine import origin, versions

NAMES = (
    "rollout",
    "step",
    "openings",
    "warming",
    "memory",
    "startup",
    "judging",
    "replies",
    "retrieval",
    "searching",
    "treesearch",
    "shapley",
    "gains",
    "graphs",
    "rages",
    "sampling",
    "fitting",
    "viewer",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"what to measure: {', '.join(NAMES)} (default: all)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="sampling: a mediQ file, not synthetic texts"
    )
    arguments = parser.parse_args()
    given = {"sampling": [arguments.texts]}
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"nothing called {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    warnings.simplefilter(
        "ignore", FutureWarning
    )  # transformers' own, about names that TRL still uses
    figures = [
        figure
        for name in arguments.names or NAMES
        for figure in import_module(f"bench.{name}").measure(*given.get(name, ()))
    ]
    console = Console()
    # A pipe has no width of its own, and 80 columns would fold every line.
    console.width = console.width if console.is_terminal else 120
    console.print(table(figures))
    if arguments.json:
        command = shlex.join(["python", "-m", "bench", *arguments.names])
        kept = {
            "command": command,
            "made": origin(versions({}, command)),
            "figures": [asdict(f) | {"met": f.met} for f in figures],
            "tables": [{"title": "", "headings": HEADINGS, "rows": rows(figures), "words": 1}],
        }
        arguments.json.write_text(json.dumps(kept, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
