"""The pages of docs/papers: every item that is cited has a section, and what is named there exists.

The same holds of the names in docs/architecture.md and docs/extending.md.

Nothing is imported or run: names are looked up in the syntax trees of the files that define them,
so that no optional library is needed and no import counts as a definition.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "papers"
PAGES = {
    "CR": "craft.md",
    "PM": "promed.md",
    "CM": "cmig.md",
    "ES": "evidence_seeking.md",
    "MR": "medr3.md",
}
CITED_IN = ("src", "tests", "bench", "docs")
TEXTS = (".py", ".md", ".csv", ".json", ".html")

CODE = re.compile(rf"\b(?:{'|'.join(PAGES)})-\d+\b")
ERRATUM = re.compile(rf"\b(?:{'|'.join(PAGES)})-E\d+\b")
NO_ERRATUM = re.compile(r"(?i:\berrat|_errat)(?:a|um)[ _,:]*\d+|\(errata\)")
HEADING = re.compile(r"## ([A-Z]{2})-(\d+) (\S.*)")
PART = re.compile(r"- \*\*(\w+)\*\*:(.*)")
PLACE = re.compile(r"\((?:Secs?|Eqs?|Apps?|Tables?|Figs?|Algorithms?|Prop|Cor)\b")
NAME = re.compile(r"`(workup(?:\.\w+)+)`")
TEST = re.compile(r"`(tests/\w+\.py)::(\w+)`")
BUILT = {"Paper", "Code", "Tests", "Departs"}
STATES = ("not built yet", "partly built: ")


@dataclass
class Item:
    """One section of a page: its heading and its parts, by name; continued lines are joined."""

    page: str
    prefix: str
    number: int
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return f"{self.prefix}-{self.number}"


@cache
def items(page: str) -> list[Item]:
    """The sections of a page, read line by line.

    Raises AssertionError for a line below a heading that is neither a part nor the rest of one.
    """
    found: list[Item] = []
    part = ""
    lines = (FOLDER / page).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        place = f"{page}:{number}"
        if line.startswith("## "):
            heading = HEADING.fullmatch(line)
            assert heading, f"{place}: no heading of an item: {line}"
            found.append(Item(page, heading[1], int(heading[2])))
            part = ""
        elif found and line.strip():
            if (begins := PART.fullmatch(line)) is not None:
                part = begins[1]
                assert part not in found[-1].parts, f"{place}: a second part '{part}'"
                found[-1].parts[part] = begins[2].strip()
            else:
                assert part, f"{place}: no part of {found[-1].code}"
                assert line.startswith("  "), f"{place}: not the rest of the part '{part}'"
                found[-1].parts[part] = f"{found[-1].parts[part]} {line.strip()}".strip()
    return found


def faults(item: Item) -> Iterator[str]:
    """What a section lacks."""
    given = item.parts.keys() - {"Status"}
    status = item.parts.get("Status", "")
    if status and not status.startswith(STATES):
        yield f"the status is neither '{STATES[0]}' nor '{STATES[1]}…': {status}"
    expected = {"Paper"} if status.startswith(STATES[0]) else BUILT
    if given != expected:
        yield f"has the parts {sorted(given)}, not {sorted(expected)}"
    if not item.parts.get("Departs", "nothing"):
        yield "does not say what departs"
    if not PLACE.search(item.parts.get("Paper", "")):
        yield "does not say where in the paper, as in '(Sec. 3.3)'"
    if "Code" in item.parts and not NAME.search(item.parts["Code"]):
        yield "names no code"
    if "Tests" in item.parts and not TEST.search(item.parts["Tests"]):
        yield "names no test"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What these statements define, by name; an import defines nothing."""
    found: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            assigned = isinstance(statement, ast.Assign)
            targets = statement.targets if assigned else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found.update(dict.fromkeys(names, statement))
    return found


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or is defined in one.

    What is defined is a function, a class, a constant, or a member of a class.
    """
    here, parts = ROOT / "src", name.split(".")
    while parts and (here / parts[0]).is_dir():
        here /= parts.pop(0)
    file = here / "__init__.py"
    if parts and (here / f"{parts[0]}.py").is_file():
        file = here / f"{parts.pop(0)}.py"
    if not file.is_file():
        return False
    body = tree(file).body
    for part in parts:
        statement = defined(body).get(part)
        if statement is None:
            return False
        body = statement.body if isinstance(statement, ast.ClassDef) else []
    return True


@pytest.mark.parametrize("page", PAGES.values())
def test_every_item_has_all_its_parts(page: str) -> None:
    assert not [f"{item.code}: {fault}" for item in items(page) for fault in faults(item)]


@pytest.mark.parametrize(("prefix", "page"), PAGES.items())
def test_items_are_numbered_from_one_without_a_gap(prefix: str, page: str) -> None:
    for number, item in enumerate(items(page), start=1):
        assert item.code == f"{prefix}-{number}", f"{page}: {item.code} stands in place {number}"
    assert items(page)


@pytest.mark.long
@pytest.mark.parametrize("page", [*PAGES.values(), "README.md"])
def test_every_name_and_every_test_on_a_page_exists(page: str) -> None:
    text = (FOLDER / page).read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    for section in sections:
        place = f"{page}, {section.split(maxsplit=1)[0]}"
        assert not [f"{place}: {name}" for name in NAME.findall(section) if not exists(name)]
        for file, test in TEST.findall(section):
            assert (ROOT / file).is_file(), f"{place}: no file {file}"
            tests = [name for name in defined(tree(ROOT / file).body) if name.startswith("test_")]
            assert test in tests, f"{place}: no test {file}::{test}"


@pytest.mark.parametrize("page", ["architecture.md", "extending.md"])
def test_every_name_on_a_page_about_the_code_exists(page: str) -> None:
    names = set(NAME.findall((FOLDER.parent / page).read_text(encoding="utf-8")))
    assert names
    assert not [name for name in sorted(names) if not exists(name)]


def test_every_room_has_its_floor_and_its_row() -> None:
    page = (FOLDER.parent / "architecture.md").read_text(encoding="utf-8")
    drawn = re.search(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    layers = re.search(
        r"^layers =\n((?: .*\n)+)", (ROOT / ".importlinter").read_text(), re.MULTILINE
    )
    assert drawn
    assert layers
    floors = [re.findall(r"workup\.(\w+)", line) for line in layers[1].splitlines()]
    assert [line.strip().split(" · ") for line in drawn[1].splitlines()] == floors
    rows = set(re.findall(r"`workup\.(\w+)`", page))
    assert {room for floor in floors for room in floor} <= rows


def test_every_item_that_is_cited_has_a_section() -> None:
    known = {item.code for page in PAGES.values() for item in items(page)}
    cited: dict[str, str] = {}
    for folder in CITED_IN:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXTS:
                codes = CODE.findall(path.read_text(encoding="utf-8"))
                cited.update(dict.fromkeys(codes, str(path.relative_to(ROOT))))
    assert len(cited) > 50
    assert not {code: path for code, path in cited.items() if code not in known}


def test_every_erratum_that_is_cited_has_a_row() -> None:
    """Codes as in PM-E1; a bare number would lead nowhere, since the rows have none."""
    page = FOLDER / "errata.md"
    rows = re.findall(rf"^\| ({ERRATUM.pattern}), ", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    cited: dict[str, str] = {}
    for folder in CITED_IN:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXTS and path not in (page, Path(__file__)):
                text, place = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
                cited.update(dict.fromkeys(ERRATUM.findall(text), place))
                cited.update(dict.fromkeys(NO_ERRATUM.findall(text), place))
    assert not {code: path for code, path in cited.items() if code not in rows}
    assert set(rows) == cited.keys()


def test_an_erratum_without_a_code_is_seen() -> None:
    for text in (
        "(errata 21)",
        "errata, 13",
        "test_errata_11_harm",
        "pays 1 (errata).",
        "Erratum 4",
    ):
        assert NO_ERRATUM.search(text)
    for text in ("[ES-E3](errata.md)", "the errata of ProMed", "(see the errata)", "errata.md#2"):
        assert not NO_ERRATUM.search(text)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("workup.rl.credit.zscore", True),
        ("workup.rl.credit", True),
        ("workup.methods.craft", True),
        ("workup.methods.craft.R", True),
        ("workup.environments.base.recorded.RecordedConsultation.reply", True),
        ("workup.methods.craft.Episode", False),  # imported there
        ("workup.rl.credit.zscores", False),
        ("workup.rl.credit.zscore.credit", False),
        ("workup.nowhere.zscore", False),
    ],
)
def test_a_name_exists_where_it_is_defined(name: str, found: bool) -> None:
    assert exists(name) is found
