"""YAML is read as it is written: nothing is filled in, and no file becomes more than it says."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from command_line import told
from hypothesis import given
from hypothesis import strategies as st

from workup.core.errors import UserError
from workup.core.mapping import LARGEST, load
from workup.runs import Run
from workup.runs.settings import read

SECRET = "the secret itself"
FILLED = [
    "${oc.env:SECRET_OF_MINE}",
    "x-${oc.env:SECRET_OF_MINE,default}-y",
    "${oc.decode:${oc.env:SECRET_OF_MINE}}",
    "${oc.dict.values:a}",
    "${steps}",
    "${",
    "${nothing}",
    "\\${steps}",
]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", SECRET)


def test_a_folder_is_no_file_of_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name a YAML file in it"):
        load(tmp_path)


def said(error: BaseException) -> str:
    text = str(error)
    assert SECRET not in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("text", FILLED)
def test_nothing_is_filled_in_from_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"steps": 3, "reward": {"names": ["a", {"who": text}]}}))
    for reading in (lambda: load(file), lambda: read([], file), lambda: read(["steps=4"], file)):
        with pytest.raises(UserError) as caught:
            reading()
        assert said(caught.value).startswith(
            f"{file}, field 'reward.names.1.who': ${{…}} is not filled in here; write"
        )


@pytest.mark.parametrize("text", FILLED)
def test_nothing_is_filled_in_from_the_command_line(text: str) -> None:
    with pytest.raises(
        UserError, match=r"^settings, field 'reward\.who': \$\{…\} is not filled in here; write"
    ):
        read(["steps=3", f"reward.who={text}"])


def test_nothing_is_looked_up_where_a_word_meets_a_file(tmp_path: Path) -> None:
    """OmegaConf follows `${…}` when a mapping is put in its place, before anybody asks it to."""
    (tmp_path / "mine.yaml").write_text("sft: ${oc.env:SECRET_OF_MINE}\n")
    with pytest.raises(UserError, match="field 'sft'") as caught:
        read(["sft.steps=3"], tmp_path / "mine.yaml")
    said(caught.value)


@pytest.mark.parametrize("text", FILLED)
def test_nothing_is_filled_in_from_a_run_that_came_from_elsewhere(
    text: str, tmp_path: Path
) -> None:
    run = Run.create(tmp_path / "run", {"cases": "clinic:xs", "seed": 0}, {})
    assert run.config["seed"] == 0
    (tmp_path / "run" / "config.yaml").write_text(json.dumps({"cases": text, "seed": 0}))
    with pytest.raises(UserError, match=r"config\.yaml, field 'cases'") as caught:
        Run.open(tmp_path / "run")
    said(caught.value)


@pytest.mark.parametrize("text", FILLED)
def test_no_run_begins_that_could_not_be_read(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"field 'reward\.who'"):
        Run.create(tmp_path / "run", {"reward": {"who": text}}, {})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("x" * LARGEST, "larger than"),
        (reduce(lambda inner, _: {"a": inner}, range(40), {}), "nested deeper than 32 levels"),
    ],
)
def test_no_run_begins_or_goes_on_with_settings_that_could_not_be_read(
    value: Any, wrong: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^settings: {wrong}"):
        Run.create(tmp_path / "run", {"mine": value}, {})
    assert not (tmp_path / "run").exists()
    run = Run.create(tmp_path / "run", {"mine": 1}, {})
    with pytest.raises(UserError, match=f"^settings: {wrong}"):
        run.revise({"mine": value}, {})
    assert run.config == Run.open(tmp_path / "run").config == {"mine": 1}


def test_the_commands_show_no_variable_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("policy: ${oc.env:SECRET_OF_MINE}\n")
    Run.create(tmp_path / "run", {"cases": "clinic:xs"}, {})
    (tmp_path / "run" / "config.yaml").write_text("cases: ${oc.env:SECRET_OF_MINE}\n")
    for words in (
        ("train", "outcome", "--config", "mine.yaml", "--out", "new"),
        ("train", "outcome", "policy=${oc.env:SECRET_OF_MINE}", "--out", "new"),
        ("report", "run"),
        ("resume", "run"),
        ("compare", "run", "run"),
    ):
        line = told(*words, cwd=tmp_path)
        assert "is not filled in here" in line
        assert SECRET not in line
    assert not (tmp_path / "new").exists()


ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (ALIASES, "more than 4,999 values; its aliases"),
        ("a: &a [*a, 1]", "nested deeper than 32 levels"),
        ("[" * 100_000, "not readable as YAML"),
        ("a: " + "{b: " * 5_000 + "1" + "}" * 5_000, "not readable as YAML"),
        ("# " + "x" * LARGEST, "larger than"),
        ("a: [1, 2\nb: 3", "not readable as YAML (ParserError in line 2)"),
        ("a: 1\nb: 2\na: 3", "not readable as YAML (a name stands twice in line 3)"),
        ("a:\n\tb: 2", "(a tab stands before a name; indent with blanks in line 2)"),
        ("a: 1\n[b]: 2", "(a list or a mapping stands in place of a name in line 2)"),
        ("a: {~: 1}", "null (~) stands in place of a name; put it in quotes"),
        ("a: !!python/object/apply:os.system ['echo']", "not readable as YAML"),
        *((f"a: !!{tag} {SECRET}", "untagged") for tag in ("int", "float", "bool", "timestamp")),
        ('a: !!int ""', "not readable as YAML (a value is not what its tag says"),
        (f"!!bool {SECRET}: 1", "untagged"),
        (f"a: {'1' * 5_000}", "or a number too long"),
        ("- 1\n- 2", "holds no mapping"),
        ("just words", "no mapping"),
        ("a: 1\n---\nb: 2", "not readable as YAML"),
        ("\x00", "not readable as YAML"),
    ],
)
def test_a_file_that_is_no_plain_mapping_is_one_line(text: str, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load(file)
    assert said(caught.value).startswith(f"{file}: ")
    assert wrong in str(caught.value)


def test_aliases_that_repeat_a_few_values_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "base: &b {model: m, price: {input: 1}}\nother: {<<: *b, model: n}\n"
    )
    assert load(tmp_path / "mine.yaml")["other"] == {"model": "n", "price": {"input": 1}}


def test_an_empty_file_holds_no_setting(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# nothing yet\n")
    assert load(tmp_path / "mine.yaml") == {}


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


# No setting's name ends with a dot, so no value is checked as the value of a setting ("kind").
NAMES = st.text(max_size=5).map("{}.".format)


@given(st.dictionaries(NAMES, NESTED, max_size=4))
def test_a_mapping_is_read_as_it_is_written(values: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        if "${" in repr(values):
            return
        assert Run.create(Path(folder) / "run", values, {}).config == values
