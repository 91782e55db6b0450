"""What requests cost: the items' own costs, or a table of prices."""

from __future__ import annotations

import math
from pathlib import Path

from workup.cases.files import cells, existing, scan
from workup.core.case import Source
from workup.core.errors import CaseError, unknown

OTHER = "*"  # in a table: every other request


def costs(source: Source, prices: str | None) -> dict[str, float]:
    """Item → cost of asking for it; "" has that of a request that reaches no item, if it has one.

    A row of the table `prices` is `item,price`; "*" prices every other request, which is free
    without it. A heading and lines that begin with "#" are left out. Raises UserError for a file
    that is not there, and CaseError (file, line, field) for a row that cannot be read and for a
    file without a row.
    """
    if prices is None:
        return {item.name: item.cost for item in source.items}
    path, names = existing(prices), {item.name for item in source.items}
    found: dict[str, float] = {}
    for line in scan(path):
        row = [cell.strip() for cell in cells(line, path, tabs=False)]
        if not any(row) or row[0].startswith("#") or row == ["item", "price"]:
            continue
        found |= dict([_row(path, line.number, row, names)])
    if not found:
        raise CaseError("it has no row item,price", file=path)
    other = found.pop(OTHER, 0.0)
    return {**dict.fromkeys((*names, ""), other), **found}


def _row(path: Path, line: int, row: list[str], names: set[str]) -> tuple[str, float]:
    if len(row) != 2:
        raise CaseError(f"it has {len(row)} columns; a row is item,price", file=path, line=line)
    if row[0] not in (*names, OTHER):
        said = str(unknown("item", row[0], names))
        raise CaseError(said, file=path, line=line, field="item")
    try:
        price = float(row[1])
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise CaseError(f"'{row[1]}' is no price", file=path, line=line, field="price")
    return row[0], price
