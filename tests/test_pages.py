"""The pages around a report.

They are all transcripts, runs side by side, tables on a narrow terminal, figures on a narrow
screen.
"""

from __future__ import annotations

import logging
import re
import stat
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import example_run
import matplotlib as mpl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from workup.core.case import Case, Truth
from workup.core.episode import Ending, Episode
from workup.core.statistics import Estimate
from workup.report import build, compare, curves, dynamics, outcomes, plotting
from workup.report.curves import Curve
from workup.report.sheets import Sheet
from workup.report.tables import Ends
from workup.report.transcripts import CASES, CHARACTERS, Meeting, Player, everything, in_pages
from workup.runs import Record, Run
from workup.runs.summary import summarise
from workup.studies.base import plots

pytestmark = pytest.mark.drawn


def evaluated(run: Run) -> list[Record]:
    return [record for doctor in run.doctors() for record in run.evaluated(doctor)]


def linked(page: Path) -> list[Path]:
    """The transcript pages that `page` links to, in order."""
    found = re.findall(r'<a href="([^"#]+/\d+\.html)"', page.read_text())
    return [page.parent / name for name in found]


def cases_on(page: Path) -> list[str]:
    return re.findall(r'<span class="path">[^<]* · ([^<]*)</span>', page.read_text())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = example_run.make(tmp_path_factory.mktemp("runs") / "demo", cases=45, steps=30)
    build(made)
    return made


# ---- all transcripts


@pytest.mark.long
def test_every_evaluated_episode_is_reachable_from_the_report(run: Run) -> None:
    pages = linked(run.report)
    assert pages == sorted(run.transcripts.iterdir(), key=lambda path: int(path.stem))
    cases = [cases_on(page) for page in pages]
    assert [len(each) for each in cases] == [CASES, CASES, 45 - 2 * CASES]
    assert [case for page in cases for case in page] == sorted(
        {each.episode.case.id for each in evaluated(run)}
    )
    sides = Counter(
        name for page in pages for name in re.findall(r"<h4>([^:]*):", page.read_text())
    )
    expected = Counter(
        each.doctor
        if each.doctor == "full information"
        else f"{each.doctor}, episode {each.sample + 1}"
        for each in evaluated(run)
    )
    assert sides == expected


@pytest.mark.long
def test_pages_lead_to_each_other_and_back(run: Run) -> None:
    pages = linked(run.report)
    for number, page in enumerate(pages):
        text = page.read_text()
        assert text.count('href="../report.html"') == 2, "at the top and at the end"
        assert set(re.findall(r'rel="prev"|rel="next"', text)) == {
            *(['rel="prev"'] if number else []),
            *(['rel="next"'] if page != pages[-1] else []),
        }
        assert all(
            (page.parent / name).is_file() for name in re.findall(r'<a href="(\d+\.html)"', text)
        )


@pytest.mark.long
def test_a_later_report_leaves_no_page_of_an_earlier_one(tmp_path: Path) -> None:
    run = example_run.make(tmp_path / "run", cases=45, steps=3, anchors=False)
    build(run)
    (run.transcripts / "mine.html").write_text("kept")
    assert len(linked(run.report)) == 3
    # A later evaluation of fewer cases replaces the earlier one.
    for doctor in run.doctors():
        run.write([replace(example_run.record(0, doctor, 0, 0), stage="later")])
    build(run)
    assert {path.name for path in run.transcripts.iterdir()} == {"1.html", "mine.html"}
    assert linked(run.report) == [run.transcripts / "1.html"]


@pytest.mark.long
def test_restricted_transcripts_are_shown_on_request_to_the_owner_and_removed_again(
    tmp_path: Path,
) -> None:
    config = {"cases": "jsonl:secret.jsonl", "method": "craft", "seed": 0}
    runs = [Run.create(tmp_path / name, config, {}, restricted=True) for name in ("one", "two")]
    for run in runs:
        for doctor in ("warm start", "trained"):
            run.write(example_run.record(index, doctor, 0, 0) for index in range(3))
    secret = evaluated(runs[0])[0].episode.case.presentation
    page, beside = tmp_path / "c.html", tmp_path / "c-transcripts"
    for asked in (False, True, False):
        build(runs[0], transcripts=asked)
        compare(runs, page, Console(file=StringIO()), transcripts=asked)
        for report, folder in ((runs[0].report, runs[0].transcripts), (page, beside)):
            assert folder.exists() is asked
            assert (secret in report.read_text()) is asked
            assert ("cases are restricted" in report.read_text()) is not asked
            assert mode(report) == 0o600
            if asked:
                assert (mode(folder), mode(folder / "1.html")) == (0o700, 0o600)
                assert secret in (folder / "1.html").read_text()


def test_one_case_is_in_memory_at_a_time_whatever_the_run_has(run: Run) -> None:
    """Reading the first page's cases reads no more episodes than these have."""
    read = []

    class Counting(Run):
        def evaluated(self, doctor: str, **where: Any) -> Any:
            for record in super().evaluated(doctor, **where):
                read.append(record.key)
                yield record

    counting = Counting(run.path, run.config, run.versions)
    meetings = everything([Player(doctor, counting, doctor) for doctor in run.doctors()])
    for _ in range(5):
        next(meetings)
    assert len(read) <= 5 * 9 + len(run.doctors()), (
        "nine episodes of each case, and the next one of each doctor"
    )


@given(st.lists(st.integers(0, CHARACTERS * 3 // 2), max_size=60))
@settings(deadline=None)
def test_pages_are_bounded_and_lose_nothing(sizes: list[int]) -> None:
    pulled: list[Meeting] = []

    def meetings() -> Iterator[Meeting]:
        for number, size in enumerate(sizes):
            pulled.append(Meeting(Case(str(number), "x" * size, Truth("gout")), [], ""))
            yield pulled[-1]

    pages = []
    for page in in_pages(meetings()):
        pages.append(page)
        assert len(pulled) <= sum(map(len, pages)) + 1, "no more than one case ahead"
    assert [each for page in pages for each in page] == pulled
    for page in pages:
        assert 1 <= len(page) <= CASES
        assert len(page) == 1 or sum(each.size for each in page) <= CHARACTERS
    for page, following in pairwise(pages):
        assert (
            len(page) == CASES or sum(each.size for each in (*page, following[0])) > CHARACTERS
        ), "no page is split early"


def test_two_patients_of_one_name_stand_apart(tmp_path: Path) -> None:
    players = []
    for name in ("one", "two"):
        run = Run.create(tmp_path / name, {"cases": "clinic:s"}, {})
        for case in (
            Case("c1", f"Patient of {name}.", Truth("gout")),
            Case("c2", "The same patient.", Truth("gout")),
        ):
            run.write(
                [Record("trained", Episode(case, (), (), Ending.OUT_OF_TURNS), correct=False)]
            )
        players.append(Player(name, run, "trained"))
    found = [
        (each.case.presentation, [side.doctor for side in each.sides])
        for each in everything(players)
    ]
    assert found == [
        ("Patient of one.", ["one"]),
        ("Patient of two.", ["two"]),
        ("The same patient.", ["one", "two"]),
    ]


# ---- runs side by side


@pytest.mark.long
def test_any_runs_stand_side_by_side(tmp_path: Path) -> None:
    runs = [
        example_run.make(tmp_path / f"run{k}", cases=24, samples=1, steps=6, seed=k)
        for k in range(3)
    ]
    page = tmp_path / "c.html"
    compare(runs, page, Console(file=StringIO()), apart=True)
    text = page.read_text()
    verdicts = [{each.case_id: each.correct for each in run.outcomes("trained")} for run in runs]
    ways = Counter(tuple(side[case] for side in verdicts) for case in verdicts[0])
    for way, count in ways.items():
        name = " · ".join("right" if right else "wrong" for right in way)
        assert f"<li>{name}: <b>{count}</b>" in text
    dozen = text[text.index('id="transcripts"') :]
    assert dozen.count('class="presentation"') == 12
    assert [dozen.count(f"<h4>run{k}:") for k in range(3)] == [12, 12, 12]
    (first, second) = linked(page)
    assert len(cases_on(first)) + len(cases_on(second)) == 24
    keys = re.findall(r'<p class="keys">(.*?)</p>', text)
    for run in runs:
        assert all(f"</b>{run.name}</span>" in key for key in keys), (
            "in the scatter, the categories and the curves"
        )
    scatter = text[text.index("<h2>Accuracy against") :]
    assert "</b>run0: warm start</span>" in scatter
    for way in ("coverage", "noise", "critical"):
        assert (
            f"Accuracy against coverage, noise and critical share: Accuracy against {way}"
            in scatter
        )


def test_categories_of_compared_runs_are_their_episodes(tmp_path: Path) -> None:
    runs = [
        example_run.make(tmp_path / f"run{k}", cases=20, samples=1, steps=3, seed=k)
        for k in range(2)
    ]
    compare(runs, tmp_path / "c.html", Console(file=StringIO()), apart=True)
    text = (tmp_path / "c.html").read_text()
    for category in ("digestive", "respiratory", "joints", "blood"):
        sides = [
            [o.correct for o in run.outcomes("trained") if o.category == category] for run in runs
        ]
        row = re.search(
            rf"<td>{category}</td><td>(\d+)</td><td>([.\d]+)[^<]*</td><td>([.\d]+)", text
        )
        assert row is not None
        shares = [f"{sum(map(bool, side)) / len(side):.2f}".removeprefix("0") for side in sides]
        assert row.groups() == (str(len(sides[0])), *shares)


# ---- the terminal


WORDS = st.text("abcdefghij", min_size=1, max_size=9)
HEADINGS = st.lists(
    st.lists(WORDS, min_size=1, max_size=3).map(" ".join), min_size=2, max_size=9, unique=True
)


@given(HEADINGS, st.integers(1, 4), st.integers(46, 130), st.data())
@settings(deadline=None)
def test_headings_and_figures_are_whole_at_any_width(
    headings: list[str], count: int, width: int, data: st.DataObject
) -> None:
    names = data.draw(
        st.lists(st.text("klmn-", min_size=1, max_size=40), min_size=count, max_size=count)
    )
    figures = [
        [f"{1000 * row + column}.{row}" for column in range(1, len(headings))]
        for row in range(count)
    ]
    sheet = Sheet(headings, [[name, *row] for name, row in zip(names, figures, strict=True)])
    console = Console(file=StringIO(), width=width)
    sheet.show(console)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    printed = Counter(" ".join(lines).split())
    for heading in headings[1:]:
        assert all(printed[word] for word in heading.split()), heading
    assert all(printed[cell] == 1 for row in figures for cell in row), "once each, in one piece"


def test_columns_that_belong_together_stay_together() -> None:
    """A verdict stands beside its interval; only where not even that fits are they parted."""
    heads = ["", "figure", "its interval", "verdict", "other", "other interval", "its verdict"]
    cells = ["row", "0.5", "0.4 to 0.6", "higher", "0.75", "0.7 to 0.8", "undecided"]
    sheet = Sheet(heads, [cells], joined=frozenset({2, 3, 5, 6}))

    def tables(width: int) -> list[list[str]]:
        console = Console(file=StringIO(), width=width)
        sheet.show(console)
        assert isinstance(console.file, StringIO)
        lines = console.file.getvalue().splitlines()
        rows = [re.split(r"\s{2,}", line.strip()) for line in lines if line.startswith("  row")]
        return [row[1:] for row in rows]

    assert tables(100) == [cells[1:]]
    for width in range(42, 60):
        assert tables(width) == [cells[1:4], cells[4:]], width
    assert [cell for row in tables(20) for cell in row] == cells[1:]


def test_of_the_columns_that_name_a_row_words_are_broken_last() -> None:
    rows = [["above-r1-searcher", "undecided, about 6 more seeds", "+.47 [−.61, +1.00]", "1.35"]]
    sheet = Sheet(["claim", "verdict", "difference", "detectable"], rows, words=2)
    console = Console(file=StringIO(), width=70)
    sheet.show(console)
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue().split()
    assert {"above-r1-searcher", "undecided,", "seeds"} <= {*printed}
    sheet = Sheet(["claim", "verdict", "n"], [["x" * 40, "y" * 40, "1"]], words=2)
    narrow = Console(file=StringIO(), width=50)
    sheet.show(narrow)
    assert isinstance(narrow.file, StringIO)
    assert max(map(cell_len, narrow.file.getvalue().splitlines())) <= 50


@pytest.mark.parametrize("name", ['x id="a" #010101 url(#b) <y>', "font: 8px 'DejaVu Sans'"])
def test_a_name_in_a_figure_stays_as_it_is(name: str) -> None:
    @plotting.figure
    def drawn() -> plotting.Drawing:
        ax = plotting.panel("", 2)
        plotting.rowed(ax, [name])
        return plotting.Drawing("names", [ax], [])

    figure = str(drawn())
    told = [unescape(text) for text in re.findall(r"<text [^>]*>([^<]*)</text>", figure)]
    assert name in told
    assert "DejaVu" not in re.sub(r">[^<]*<", "><", figure)


def test_a_table_without_rows_has_its_headings() -> None:
    console = Console(file=StringIO(), width=40)
    Sheet(["", "names"], []).show(console)
    assert isinstance(console.file, StringIO)
    assert "names" in console.file.getvalue()


def test_compare_fits_eighty_columns(tmp_path: Path) -> None:
    names = ("craft-on-clinic-s-with-a-long-name", "outcome-on-clinic-s-with-another")
    runs = [
        example_run.make(tmp_path / name, cases=30, steps=12, seed=k)
        for k, name in enumerate(names)
    ]
    for run in runs:
        for step in range(13, 33):
            more = {
                "grad_norm": 1.0 / step,
                "doc_hit": 0.1 * step,
                "tokens": 50.0 * step,
                "episodes": 8,
            }
            run.log(
                {
                    "stage": "craft",
                    "step": step,
                    "reward": 0.5,
                    "accuracy": 0.1 * step,
                    "entropy": 0.1 * step,
                    **more,
                }
            )
    console = Console(file=StringIO(), width=80)
    compare(runs, None, console, apart=True)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= 80
    words = set(text.split())
    for heading in (
        *dynamics.COMPARED,
        "accuracy",
        "macro",
        "questions",
        "critical",
        "noise",
        "coefficient (error)",
    ):
        assert set(heading.split()) <= words, heading


# ---- figures


def crowded(ax: Any) -> list[tuple[str, str]]:
    """Neighbouring tick labels that are too close.

    On the horizontal axis there is no room for a digit between them; on the vertical one they
    touch.
    """
    ax.get_figure(root=True).draw_without_rendering()
    found = []
    for axis, digit in ((ax.xaxis, 0.6), (ax.yaxis, 0.0)):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = [(tick.label1.get_text(), tick.label1.get_window_extent()) for tick in ticks]
        shown = [(text, box.padded(digit * box.height / 2)) for text, box in boxes if text]
        found += [(a, b) for (a, one), (b, other) in pairwise(shown) if one.overlaps(other)]
    return found


@pytest.mark.long
@pytest.mark.parametrize("steps", [2, 7, 40, 333, 12_345, 1_000_000])
@pytest.mark.parametrize("scale", [1e-5, 1.0, 54_321.0])
def test_ticks_do_not_run_together(steps: int, scale: float) -> None:
    count = min(steps, 400)
    line = {"stage": "grpo", "parts": {"a": scale}}
    lines = [
        {
            **line,
            "reward": scale * k,
            "accuracy": k / count,
            "entropy": scale * (1 + k),
            "grad_norm": k,
        }
        for k in range(count)
    ]
    curve = Curve("run", lines)
    with mpl.rc_context({**mpl.rcParamsDefault, **plotting.STYLE}):
        for draw, given in (
            (curves.learning, (curve, {}, Ends(None, None))),
            (dynamics.drawn, (curve,)),
            (curves.parts, (curve, True)),
        ):
            for ax in draw.__wrapped__(*given).panels:  # type: ignore[attr-defined]
                ax.set_xlim(0, steps)
                assert crowded(ax) == [], ax.get_title(loc="left")


@pytest.mark.long
@given(st.tuples(st.floats(0, 1), st.floats(0, 1)), st.tuples(st.floats(0, 1), st.floats(0, 1)))
@settings(deadline=None, max_examples=12)
def test_ticks_of_the_scatter_do_not_run_together(
    one: tuple[float, float], other: tuple[float, float]
) -> None:
    def levels(at: tuple[float, float]) -> dict[str, Estimate]:
        x, y = (Estimate(mean, mean, mean, 9) for mean in at)
        return {"accuracy": y, "coverage": x, "noise": x, "critical": x}

    doctors = {"one": levels(one), "other": levels(other)}
    with mpl.rc_context({**mpl.rcParamsDefault, **plotting.STYLE}):
        looks = outcomes.looks(list(doctors), Ends(None, None))
        made = outcomes.against_accuracy.__wrapped__(doctors, looks, Curve("", []))  # type: ignore[attr-defined]
        assert len(made.panels) == 3
        for ax in made.panels:
            assert crowded(ax) == []


@pytest.mark.long
@given(
    st.lists(st.floats(0.001, 1e9), min_size=1, max_size=12, unique=True).map(sorted),
    st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_places_of_a_study_do_not_run_together(places: list[float], log: bool) -> None:
    points = [(place, Estimate(0.5, 0.4, 0.6, 3)) for place in places]
    with mpl.rc_context({**mpl.rcParamsDefault, **plotting.STYLE}):
        made = plots.curves.__wrapped__("label", {"Accuracy": {"a": points}}, "x", log=log)  # type: ignore[attr-defined]
        (ax,) = made.panels
        assert crowded(ax) == []
        assert ax.get_xticklabels()[-1].get_text(), "the last place is told"


@pytest.mark.parametrize("least", [0.09, 0.03, 0.004, 0.003, 1e-4, 2e-8, 1e-20])
def test_heights_of_a_logarithmic_study_do_not_run_together(least: float) -> None:
    points = [(k, Estimate.exact(height)) for k, height in enumerate((least, 1.0))]
    with mpl.rc_context({**mpl.rcParamsDefault, **plotting.STYLE}):
        made = plots.curves.__wrapped__("label", {"Reward": {"a": points}}, "x")  # type: ignore[attr-defined]
        (ax,) = made.panels
        assert ax.get_yscale() == "log"
        assert crowded(ax) == []
        low, high = ax.get_ylim()
        told = {
            tick.label1.get_text()
            for tick in ax.yaxis.get_major_ticks()
            if low <= tick.get_loc() <= high
        }
    assert len(told) >= 3
    assert "1" in told or least == 1e-20
    assert not any("e" in text for text in told)


@pytest.mark.parametrize(
    "fonts", [None, ["DejaVu Sans"]], ids=["fonts of this machine", "no Chinese font"]
)
def test_chinese_names_are_text_and_no_warnings(
    fonts: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if fonts:
        monkeypatch.setattr(plotting, "families", lambda: fonts)
    run = Run.create(
        tmp_path / "run", {"method": "craft", "cases": "jsonl:病例.jsonl", "seed": 0}, {}
    )
    for doctor in ("warm start", "trained"):
        for index in range(6):
            record = example_run.record(index, doctor, 0, 0)
            case = replace(
                record.episode.case, category="消化系统疾病（急性胰腺炎）" * (1 + 2 * (index % 2))
            )
            run.write([replace(record, episode=replace(record.episode, case=case))])
    for step in (1, 2, 3):
        run.log({"stage": "强化学习", "step": step, "reward": 1.0, "parts": {"奖励": 1.0}})
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        text = build(run).read_text()
    assert not caplog.records
    svg = " ".join(re.findall(r"<text.*?</text>", text, re.DOTALL))
    assert "消化系统疾病（急性胰腺炎） (3)" in svg
    assert re.search(r"系统疾病（急性胰腺炎）消化系… \(3\)", svg), (
        "what is too long is cut, and says so"
    )
    assert "DejaVu" not in svg, "the letters are those of the reader's fonts"
    assert svg.count("var(--sans)") == svg.count("<text")


# ---- costs


@pytest.mark.long
def test_the_report_tells_what_the_models_cost(tmp_path: Path) -> None:
    run = example_run.make(tmp_path / "run", cases=4, steps=3)
    calls = [
        {
            "role": "judge",
            "model": "m <v1>",
            "calls": 1_200,
            "hits": 34,
            "prompt_tokens": 56_789,
            "completion_tokens": 987,
            "cost": 1.5,
        },
        {
            "role": "patient",
            "model": "n",
            "calls": 3,
            "hits": 0,
            "prompt_tokens": 11,
            "completion_tokens": 13,
            "cost": 0.25,
        },
    ]
    summarise(run, steps=3, seconds=1.0, calls=calls)
    text = build(run).read_text()
    section = text[text.index("<h2>What the models cost") : text.index("<h2>Run facts")]
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", row)
        for row in re.findall(r"<tr.*?</tr>", section, re.DOTALL)[1:]
    ]
    assert rows == [
        ["judge", "m &lt;v1&gt;", "1,200", "34", "56,789", "987", "1.5000"],
        ["patient", "n", "3", "0", "11", "13", "0.2500"],
        ["all", "", "1,203", "34", "56,800", "1,000", "1.7500"],
    ]
    summarise(run, steps=3, seconds=1.0)
    assert "What the models cost" not in build(run).read_text()
