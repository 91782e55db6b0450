"""How the package is built: which file imports which, and how long functions are."""

import ast
import re
from collections import Counter
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

Imports = Mapping[str, Set[str]]

ROOT = Path(__file__).parents[1]
LONGEST = 60  # lines of a function, its decorators aside
STOPS = 20  # places that see a policy's name as text, on its way from the command to its weights
MEMBERS = 10  # of a protocol, with those that it inherits
ARROWS = 120  # pairs of rooms of which one imports the other
ROOMS = 19  # at the top of the package, modules and folders together
HELPERS = 60  # private functions of few statements that one line uses; can only fall


@pytest.fixture(scope="module")
def files() -> Imports:
    """Each file of the package and those that it imports anywhere: in functions, for types."""
    graph = grimp.build_graph("workup", cache_dir=None)
    return {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}


@pytest.fixture(scope="module")
def rooms(files: Imports) -> Imports:
    """The same for the modules and folders at the top of the package."""
    found: dict[str, set[str]] = {}
    for file, imported in files.items():
        others = {room(each) for each in imported} - {room(file)}
        found.setdefault(room(file), set()).update(others)
    return found


def room(file: str) -> str:
    """Example: "workup.runs.folder" stands in "workup.runs"."""
    return ".".join(file.split(".")[:2])


def circle(imports: Imports) -> list[str]:
    """A circle of imports, the first file once more at its end; empty without one."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert sorted(set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}))) == ["b", "c"]


def test_no_files_import_each_other_in_a_circle(files: Imports) -> None:
    assert "workup.runs.record" in files["workup.runs.store"]
    assert circle(files) == []


def test_no_rooms_import_each_other_in_a_circle(rooms: Imports) -> None:
    assert circle(rooms) == []


def test_the_house_has_few_rooms(rooms: Imports) -> None:
    assert len(rooms.keys() - {"workup"}) <= ROOMS


def test_rooms_import_few_others(rooms: Imports) -> None:
    assert sum(len(others - {"workup"}) for others in rooms.values()) <= ARROWS


STARTS = ("asyncio.run", "asyncio.Runner", "anyio.run", "run_until_complete")


def started(text: str) -> list[int]:
    """The lines of a file that start an event loop in this thread; it may have a running one."""
    names = {
        f"{node.module}.{alias.name}": alias.asname or alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    calls = {*STARTS, *(own for whole, own in names.items() if whole in STARTS)}
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Attribute) and {ast.unparse(node), node.attr} & calls)
        or (isinstance(node, ast.Name) and node.id in calls)
    ]


def test_a_started_loop_is_seen() -> None:
    assert started("import asyncio\nasyncio.run(f())") == [2]
    assert started("from asyncio import run as go\ngo(f())") == [2]
    assert started("loop.run_until_complete(f())\npool.submit(asyncio.run, f())") == [1, 2]
    assert started("from workup.x import run\nrun(f())\nself.run()\nasyncio.gather()") == []


def test_event_loops_are_started_in_one_place() -> None:
    """Elsewhere `run_to_end` is called: a notebook and many frameworks have a loop running."""
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if started(path.read_text(encoding="utf-8"))
    }
    assert found == {"src/workup/rl/running.py"}


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines"
        for folder in ("src", "bench", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST
    ]
    assert long == []


CLINIC, CASES = "workup.cases.clinic", "workup.cases"
KNOW_THE_CLINIC = 3  # modules outside of `cases` that may import the built-in clinic
READ_CASES = {  # environments are given cases; these read names, or files of statistics
    "workup.environments.base.disease_names",
    "workup.environments.exams.exam_base",
    "workup.environments.exams.exam_sources",
    "workup.environments.exams.rages",
}


def importing(files: Imports, package: str) -> set[str]:
    """The files outside of `package` that import one of it."""
    return {
        file
        for file, imported in files.items()
        if not f"{file}.".startswith(f"{package}.")
        and any(f"{each}.".startswith(f"{package}.") for each in imported)
    }


def test_few_modules_know_the_built_in_clinic(files: Imports) -> None:
    found = {file for file in importing(files, CLINIC) if room(file) != CASES}
    assert found, "the exact judge of statements reads the clinic's sentences"
    assert len(found) <= KNOW_THE_CLINIC, sorted(found)


def test_environments_do_not_know_where_cases_come_from(files: Imports) -> None:
    found = {file for file in importing(files, CASES) if room(file) == "workup.environments"}
    assert found == READ_CASES


def protocols(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Every protocol in these files (path → text), and its members, inherited ones among them."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [ast.unparse(base).partition("[")[0].split(".")[-1] for base in node.bases]
            if "Protocol" in bases:
                own = {
                    each.name
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                own |= {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
                found[f"{path}:{node.name}"] = own, bases

    def every(name: str) -> set[str]:
        own, bases = found[name]
        above = [each for each in found if each.rpartition(":")[2] in bases]
        return own.union(*map(every, above))

    return {name: every(name) for name in found}


def test_members_of_a_protocol_are_counted_with_those_it_inherits() -> None:
    one = "class A(Protocol):\n    x: int\n    def y(self): ...\n"
    two = "class B(a.A, Protocol[T]):\n    @property\n    def z(self): ...\nclass C(A): ...\n"
    assert protocols({"a": one, "b": two}) == {"a:A": {"x", "y"}, "b:B": {"x", "y", "z"}}


def test_ports_are_small() -> None:
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in (ROOT / "src").rglob("*.py")
    }
    found = protocols(texts)
    assert "src/workup/core/ports.py:Environment" in found
    assert {name: len(own) for name, own in found.items() if len(own) > MEMBERS} == {}


def stops(path: str, text: str) -> list[int]:
    """The lines of a file where a policy's name is read from settings, or is a text that is parsed.

    Everyone else has `workup.runs.policies.Resolved`, which is made of the name once.
    """
    named = {"policy", "policies", "name", "names", "run"}
    tree = [*ast.walk(ast.parse(text))]
    read = [
        node.lineno
        for node in tree
        if isinstance(node, ast.Attribute)
        and node.attr in ("policy", "conclude")
        and ast.unparse(node.value).rpartition(".")[2] in ("settings", "s", "asked", "given")
    ]
    parsed = [
        node.lineno
        for node in tree
        if "runs/policies/" in path
        and isinstance(node, ast.arg)
        and node.arg in named
        and node.annotation is not None
        and "str" in ast.unparse(node.annotation)
    ]
    return sorted(read + parsed)


def test_a_stop_of_a_policys_name_is_seen() -> None:
    text = "def f(policy: str, to: str): ...\nself.settings.policy\nplan.policy\ns.conclude\n"
    assert stops("loops/x.py", text) == [2, 4]
    assert stops("runs/policies/x.py", text) == [1, 2, 4]


def test_a_policys_name_is_resolved_once() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ("cli", "loops", "models", "runs/policies", "studies")
        for path in sorted((ROOT / "src/workup" / room).rglob("*.py"))
        for line in stops(str(path), path.read_text(encoding="utf-8"))
    ]
    assert 0 < len(found) <= STOPS, found


def modules() -> dict[str, ast.Module]:
    """The package's files, relative to it, as syntax trees."""
    package = ROOT / "src" / "workup"
    return {
        str(path.relative_to(package)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }


def helpers(module: ast.Module) -> list[str]:
    """Private functions and methods of at most two statements that the module uses once.

    Docstrings do not count as statements; statements within others do. Decorated functions are left
    out: a library calls them.
    """
    names = (
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    used = Counter(names)
    return [
        node.name
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and re.match("_[^_]", node.name)
        and not node.decorator_list
        and used[node.name] == 1
        and sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1 - described(node) <= 2
    ]


def described(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node) is not None


def test_a_helper_is_seen() -> None:
    text = """
class A:
    def _once(self):
        "What it does."
        x = 1
        return x
    def _twice(self): return 2
    def _long(self):
        for x in (1, 2):
            if x:
                return x
    def __len__(self): return self._once() + self._twice() + self._twice() + self._long()
    def public(self): return 1
    @cached
    def _called_by_a_library(self): return 2
def _unused(): return 3
"""
    assert helpers(ast.parse(text)) == ["_once"]


def test_helpers_say_more_than_their_line() -> None:
    found = {name: helpers(module) for name, module in modules().items()}
    assert sum(map(len, found.values())) <= HELPERS, {k: v for k, v in found.items() if v}


def namesakes(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """The names that several classes bear, with where they are; a module's `Settings` may repeat.

    Example: two modules with a class `Row` give {"Row": ["a.py:1", "b.py:1"]}.
    """
    found: dict[str, list[str]] = {}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name != "Settings":
                found.setdefault(node.name, []).append(f"{name}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_namesake_is_seen() -> None:
    one, other = ast.parse("class Row: ..."), ast.parse("class Settings: ...\nclass Row: ...")
    assert namesakes({"a": one, "b": other, "c": ast.parse("class Settings: ...")}) == {
        "Row": ["a:1", "b:2"]
    }


def test_a_class_has_a_name_of_its_own() -> None:
    assert namesakes(modules()) == {}
