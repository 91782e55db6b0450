"""The audit of what natural requests are taken for, through the command line."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from serving import serving
from studying import done, here, refused

from workup.core.case import Item
from workup.studies.audits.interpreter import COLUMNS, reworded

__all__ = ["here"]
ROWS = (
    ("held out", "named", "fever", "Since Monday, has there been any fever?"),
    ("held out", "lay", "nausea", "Might the breakfast return?"),
    ("held out", "lay", "cough", "Might you bark?"),
    ("held out", "foreign", "", "Might you own a boat?"),
    ("held out", "foreign", "", "Might you own a car?"),
    ("tuned", "named", "cough", "Is there a cough?"),
)
MEANT = {"breakfast": "nausea", "bark": "fever", "boat": "", "car": "cough"}


def asked(file: Path) -> Path:
    with file.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows([COLUMNS, *ROWS])
    return file


def interprets(body: dict[str, Any]) -> str:
    prompt = body["messages"][1]["content"]
    things = {name: number for number, name in re.findall(r"(?m)^(\d+)\. ([^:]*):", prompt)}
    (item,) = (item for word, item in MEANT.items() if word in prompt)
    return json.dumps({"numbers": [int(things[item])] if item else []})


def test_the_audit_tells_right_from_wrong_and_says_by_which_step(tmp_path: Path) -> None:
    asked(tmp_path / "own.csv")
    line = "audit interpreter cases=clinic:xs requests=own.csv --out audit"
    with serving(interprets) as server:
        endpoints = {"m": {"base_url": server.url, "model": "m"}}
        (tmp_path / "workup.yaml").write_text(json.dumps({"endpoints": endpoints}))
        plain = done(line)
        assert not server.asked
        printed = done(f"{line}2 model=endpoint:m")
        assert len(server.asked) == 4
    words, model = (
        json.loads((tmp_path / folder / "interpreter.json").read_text())
        for folder in ("audit", "audit2")
    )
    found = [[each["found"] for each in told["read"]] for told in (words, model)]
    assert found == [["fever", "", "", "", ""], ["fever", "nausea", "fever", "", "cough"]]
    outcomes = [each["outcome"] for each in model["read"]]
    assert outcomes == ["right", "right", "other", "right", "other"]
    assert words["rates"]["lay"]["not understood"]["mean"] == 1
    assert (
        model["rates"]["lay"]["right"]["mean"] == model["rates"]["foreign"]["other"]["mean"] == 0.5
    )
    assert model["steps"]["all"] == {"contained name": 1, "model": 3}
    assert "'Might you bark?' was taken for fever (model)" in " ".join(printed.split())
    assert "was taken for" not in plain


def test_a_file_of_requests_is_checked(tmp_path: Path) -> None:
    file = asked(tmp_path / "own.csv")
    line = "audit interpreter cases=clinic:xs requests=own.csv"
    file.write_text(file.read_text().replace("tuned", "other"))
    assert "own.csv, line 7: half is neither 'held out' nor 'tuned'" in refused(line)
    file.write_text(file.read_text().replace("other,", "tuned,").replace(",fever,", ",fevre,"))
    assert "own.csv: 'fevre' is no item of clinic:xs" in refused(line)
    file.write_text("request,item\n")
    assert "own.csv, line 1: its columns are not half, kind, item, request" in refused(line)
    file.write_text("half,kind,item,request\n")
    assert "own.csv: it has no request of the half 'held out'" in refused(line)
    file.write_bytes(b"half,kind,item,request\nheld out,lay,fever,Fi\xe8vre?\n")
    assert "own.csv, line 2: " in refused(line)
    assert "is a folder" in refused("audit interpreter cases=clinic:xs requests=.")
    (tmp_path / "free.jsonl").write_text(
        json.dumps(
            {"id": "a", "presentation": "A man.", "question": "?", "truth": {"diagnosis": "x"}}
        )
    )
    assert "lists no items" in refused("audit interpreter cases=jsonl:free.jsonl#all")


@pytest.mark.parametrize("seed", range(4))
def test_a_question_in_other_words_keeps_its_content(seed: int) -> None:
    items = [Item("a", "Do you have a red nose?", ""), Item("b", "Where is the pain?", "")]
    for item, made in zip(items * 9, reworded(items * 9, seed), strict=True):
        assert made.item == item.name
        kept = "red nose" if item.name == "a" else item.question
        assert kept in made.request
        assert made.request != item.question
