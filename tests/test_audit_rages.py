"""The audit of RAGES: its figures against what the pathology wing's tables say."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from preparing import endpoint, sections
from rich.console import Console
from serving import Answer, fault, serving

from workup.cases import open_source
from workup.cases.clinic.pathology import markers, rates, tumours
from workup.core.errors import UserError
from workup.environments.exams.exam_base import ExamBase, Statistic
from workup.environments.exams.rages import RagesSettings
from workup.runs.words import DASH
from workup.studies.audits.rages import (
    ALL,
    BUILT_IN,
    MODELLED,
    TELLING,
    Orders,
    RagesAudit,
    audit,
    compare,
    probes,
)

WING = open_source("clinic:pathology")


@pytest.fixture(scope="module")
def exact() -> RagesAudit:
    return asyncio.run(audit(WING, Orders(RagesSettings(), 600, recorded=0.4), None))


def modelled(answer: Answer, n: int = 30) -> RagesAudit:
    with serving(answer) as server:
        orders = Orders(RagesSettings(), n, recorded=0.4)
        return asyncio.run(audit(WING, orders, endpoint(server)))


def test_orders_are_known_exactly() -> None:
    place = {marker.name: column for column, marker in enumerate(markers())}
    row = {tumour.name: number for number, tumour in enumerate(tumours())}
    for case, probe in probes(WING, 60, seed=1):
        (marker,) = [m for m in markers() if m.name == probe.marker]
        assert probe.rate == rates()[row[case.truth.diagnosis], place[probe.marker]]
        assert probe.positive == (marker.negative not in case.truth.record)
        others = [rates()[row[name], place[probe.marker]] for name in case.truth.differentials]
        assert probe.telling == (max([*others, probe.rate]) - min([*others, probe.rate]) >= 0.5)


def test_recorded_results_are_right_and_draws_as_often_as_expected(exact: RagesAudit) -> None:
    known = exact.some("record", "record")
    assert 0.3 < len(known) / 600 < 0.5
    assert exact.rate("right", known).mean == 1
    drawn = exact.some("base")
    assert len(drawn) == 600
    assert all(each.share == each.probe.rate for each in drawn)
    right = exact.rate("right", drawn)
    chance = [each.probe.rate**2 + (1 - each.probe.rate) ** 2 for each in drawn]
    assert right.low < sum(chance) / 600 < right.high
    both = exact.some("record, base")
    assert [each.source for each in both].count("record") == len(known)
    assert all(each.likelihood is not None for each in both)


def test_markers_that_tell_nothing_are_left_out_of_the_telling_ones(exact: RagesAudit) -> None:
    telling = exact.some("base", None, TELLING)
    assert 300 <= len(telling) < 600
    assert all(each.probe.telling for each in telling)
    assert len(exact.some("base", None, ALL)) == 600


def test_a_model_that_says_no_is_right_where_the_patient_is_negative() -> None:
    def no(body: dict[str, Any]) -> str:
        return json.dumps(
            {"exists": True, "test": sections(body)["the order"], "result": "negative"}
        )

    found = modelled(no)
    assert found.configurations == tuple(MODELLED)
    alone = found.some("generation")
    assert {each.source for each in alone} == {"generated"}
    assert [each.right for each in alone] == [not each.probe.positive for each in alone]
    everything = found.some("record, base, generation")
    assert {each.source for each in everything} == {"record", "base"}
    assert found.rate("right", found.some("record, generation", "record")).mean == 1


def test_what_says_neither_is_not_scored() -> None:
    found = modelled(
        lambda body: json.dumps({"exists": True, "test": "x", "result": "see comment"}), 6
    )
    assert found.rate("right", found.some("generation")).n == 0
    said = f"{found.some('generation')[0].probe.marker}: see comment"
    assert any(
        f"neither positive nor negative by their words, such as '{said}'" in note
        for note in found.remarks()
    )
    assert {each["text"] for each in found.as_json()["results"]} >= {said}


def test_no_figure_is_cut_off_on_a_terminal(exact: RagesAudit) -> None:
    right = modelled(lambda body: json.dumps({"exists": True, "test": "x", "result": "no"}), 6)
    for found in (exact, right):
        console = Console(width=80, file=StringIO())
        found.show(console)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert "…" not in shown


def test_a_model_that_fails_is_counted() -> None:
    found = modelled(lambda body: fault(500), 5)
    assert found.failures().total() >= 5
    assert not found.some("generation")
    assert "failed" in found.remarks()[-1]


def test_two_tables_are_compared_by_hand(tmp_path: Path) -> None:
    rows = [
        Statistic("GIST", "CD117", 0.9, disease_names=("stromal tumor",)),
        Statistic("GIST", "DOG1", 0.4),
    ]
    path = tmp_path / "t.csv"
    path.write_text(
        "disease,test,share\nstromal tumor,c-KIT,0.7\ngist,DOG-1,0.6\n"
        "gist,CD20,0.1\nsarcoma,CD117,0.2\ngist,CD34,7\n"
    )
    found = compare(ExamBase.of("it", rows), path)
    assert [(pair.test, pair.here, pair.there) for pair in found.pairs] == [
        ("CD117", 0.9, 0.7),
        ("DOG1", 0.4, 0.6),
    ]
    assert (found.diseases, found.tests) == (("sarcoma",), ("CD20",))
    assert "line 6" in found.left_out[0]
    shown = dict(found.rows())
    assert (shown["mean difference"], shown["on the same side of ½"]) == ("0.20", "50%")
    assert found.furthest[0].test in ("CD117", "DOG1")
    path.write_text("disease,test,share\nstromal tumor,c-KIT,0.7\ngist,DOG-1,0.7\n")
    alike = compare(ExamBase.of("it", rows), path)
    assert dict(alike.rows())["correlation"] == DASH
    path.write_text("disease,test,share\ngist,CD34,7\n")
    with pytest.raises(UserError, match=r"no row of statistics can be read; the first: .*line 2"):
        compare(ExamBase.of("it", rows), path)


def test_the_command(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("disease,test,share\nGIST,c-KIT,0.7\nunheard of,CD117,0.2\nGIST,CD34,7\n")
    status, shown, _ = call(*f"audit rages n=20 tables={path} --out a".split())
    assert status == 0
    assert "record, base" in shown
    assert "unheard of" in shown
    assert "1 rows of the other table are left out; the first: " in " ".join(shown.split())
    made = json.loads((tmp_path / "a/rages.json").read_text())
    assert len(made["results"]) == 20 * len(BUILT_IN)
    assert len(made["compared"]["pairs"]) == 1
    shown = call("audit", "rages", "tables=nothere.csv")
    assert shown[0] == 2
    assert "nothere.csv" in shown[2]
    assert "order" not in shown[1], "nothing is played before"
    status, _, told = call("audit", "rages", f"base={tmp_path}")
    assert status == 2
    assert "is no base of examinations" in told
