"""The report: every figure is from the run folder, and nothing is hidden.

Nothing breaks out of its place.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import example_run
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import rc_context, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

from workup.core.case import Case, Fact, Truth
from workup.core.episode import (
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Score,
    Turn,
)
from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.metrics.measures import measure
from workup.report import build, compare, curves, outcomes
from workup.report.curves import Curve, apart, learning, updates_until
from workup.report.live import PlainLive
from workup.report.plotting import STYLE, smooth, thin
from workup.report.rendering import environment
from workup.report.tables import Ends, signed
from workup.report.transcripts import Meeting, groups, legend, side
from workup.runs import Outcome, Record, Run, warnings
from workup.runs.estimates import contrast
from workup.runs.summary import summarise

pytestmark = pytest.mark.drawn


class Page(HTMLParser):
    """What a browser would see: tags with attributes, text, ids."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip() and self.tags[-1][0] not in ("style", "script"):
            self.words.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.tags)

    def table(self, row: str, heading: str = "Result") -> list[str]:
        """The words after the first occurrence of `row` below the heading."""
        return self.words[self.words.index(row, self.words.index(heading)) :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = example_run.make(tmp_path_factory.mktemp("runs") / "demo", cases=40)
    summarise(run, steps=400, seconds=125.0)
    build(run)
    return run


@pytest.fixture(scope="module")
def page(whole: Run) -> Page:
    return Page(whole.report)


def empty(path: Path, **config: object) -> Run:
    return Run.create(path, {"cases": "jsonl:mine.jsonl", "split": 0, **config}, {})


# ---- one page, offline, whole


@pytest.mark.long
def test_it_is_one_page_that_needs_nothing_but_its_transcripts(whole: Run, page: Page) -> None:
    assert len(page.source) < 1_000_000
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "script"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), "no script"
            if name in ("src", "href", "xlink:href", "action", "data") and not (
                value or ""
            ).startswith("#"):
                assert re.fullmatch(r"transcripts/\d+\.html", value or ""), (tag, name, value)
                assert (whole.path / str(value)).is_file()
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", page.source)
    assert set(re.findall(r"https?://[^\s\"'<]+", page.source)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


@pytest.mark.long
def test_every_page_forbids_what_it_does_not_need(whole: Run, page: Page, tmp_path: Path) -> None:
    """No script is in a page, and none would run; nothing is fetched, sent or framed."""
    shutil.copytree(whole.path, tmp_path / "again")
    compare([whole, Run.open(tmp_path / "again")], tmp_path / "both.html")
    pages = [page.source, (tmp_path / "both.html").read_text(encoding="utf-8")]
    pages += [path.read_text(encoding="utf-8") for path in whole.path.rglob("transcripts/*.html")]
    assert len(pages) > 2
    for source in pages:
        (policy,) = re.findall(
            r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', source
        )
        assert policy.startswith("default-src 'none'; ")
        assert "script-src" not in policy
        assert source.index(policy) < source.index("<style")
        assert not re.search(r"<script|<form|<iframe|<object|<base\b|\son\w+=|javascript:", source)


def test_its_markup_is_sound(page: Page) -> None:
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert {name: count for name, count in ids.items() if count > 1} == {}
    used = set(re.findall(r"url\(#([^)]*)\)|xlink:href=\"#([^\"]*)\"", page.source))
    assert {one or other for one, other in used} <= set(ids)
    assert [
        a
        for tag, a in page.tags
        if tag == "svg" and not (a.get("role") == "img" and a.get("aria-label"))
    ] == []
    assert page.count("h1") == 1
    assert page.source.startswith("<!doctype html>")


def test_figures_take_their_colours_from_the_page(page: Page) -> None:
    svgs = re.findall(r"<svg.*?</svg>", page.source, re.DOTALL)
    # over questions, learning 6, health 2 of the warm start and 4 of craft, dynamics, parts,
    # categories, scatter 3
    assert len(svgs) == 19
    assert set(re.findall(r"#[0-9a-f]{6}\b", " ".join(svgs))) == set()
    names = set(re.findall(r"var\(--([\w-]+)", page.source))
    assert names <= set(re.findall(r"--([\w-]+)\s*:", page.source)), (
        "every colour that is used is defined"
    )


@pytest.mark.long
def test_the_same_folder_makes_the_same_page(whole: Run) -> None:
    first = whole.report.read_bytes()
    assert build(whole).read_bytes() == first


# ---- every figure comes from the folder


def test_the_table_is_what_the_episodes_say(whole: Run, page: Page) -> None:
    for doctor in whole.doctors():
        records = list(whole.episodes(phase="eval", doctor=doctor))
        by_truth: dict[str, list[bool]] = {}
        for record in records:
            by_truth.setdefault(record.episode.case.truth.diagnosis, []).append(
                bool(record.correct)
            )
        accuracy = fmean(bool(record.correct) for record in records)
        macro = fmean(fmean(verdicts) for verdicts in by_truth.values())
        questions = fmean(record.episode.questions for record in records)
        told = page.table(doctor)
        start = next(
            k for k, word in enumerate(told) if word.startswith(f"{len(records)} episodes")
        )
        cells = [word.split(" ")[0] for word in told[start + 1 : start + 4]]
        expected = [f"{accuracy:.2f}".lstrip("0"), f"{macro:.2f}".lstrip("0"), f"{questions:.1f}"]
        assert cells == ([*expected[:2], "–"] if doctor == "full information" else expected)


def test_summary_and_report_agree(whole: Run, page: Page) -> None:
    trained = whole.summary["doctors"]["trained"]
    assert set(trained["accuracy"]) == {"mean", "low", "high", "n", "missing", "sd"}
    assert (whole.summary["steps"], whole.summary["seconds"], whole.summary["method"]) == (
        400,
        125.0,
        "craft",
    )
    half = (trained["critical"]["high"] - trained["critical"]["low"]) / 2
    text = f"{trained['critical']['mean']:.2f} ±{half:.2f}".replace("0.", ".")
    assert text in page.words


def test_it_says_what_was_run_and_what_it_is_not(page: Page) -> None:
    assert "not a medical device" in page.text
    assert "craft on clinic:s" in page.words
    assert "workup train craft --cases clinic:s steps=300 --out demo" in page.words
    assert "100 warm start, 300 craft" in page.words
    assert "reward.alpha" in page.words
    assert "their mean over 13 steps" in page.text


def test_endings_are_counted(whole: Run, page: Page) -> None:
    counts = Counter(
        record.episode.ending for record in whole.episodes(phase="eval", doctor="warm start")
    )
    told = next(
        word
        for word in page.table("How episodes ended")
        if "out of turns" in word and "diagnosed" in word
    )
    assert told.startswith(f"{counts[Ending.DIAGNOSED]} diagnosed (")
    assert f"{counts[Ending.OUT_OF_TURNS]} out of turns (" in told


# ---- what is missing is said


def test_a_run_that_was_killed_before_any_evaluation(tmp_path: Path) -> None:
    page = Page(build(empty(tmp_path / "run", method="craft")))
    assert "Nobody has been evaluated in this run yet." in page.words
    assert "No reinforcement step was logged in this run" in page.text
    assert "No episode of this run was scored by a reward." in page.words
    assert page.count("svg") == 0


def test_an_evaluation_without_training_or_anchors(tmp_path: Path) -> None:
    run = empty(tmp_path / "run", policy="endpoint:deepseek")
    records = [example_run.record(index, "trained", 0, 0) for index in range(30)]
    failed = replace(
        records[0].episode, ending=Ending.FAILED, turns=(), reason="the endpoint gave up"
    )
    run.write(replace(record, doctor="endpoint:deepseek", score=None) for record in records[1:])
    run.write(
        [
            replace(
                records[0],
                doctor="endpoint:deepseek",
                episode=failed,
                correct=None,
                score=None,
                measures={},
            )
        ]
    )
    page = Page(build(run))
    assert "endpoint:deepseek on jsonl:mine.jsonl" in page.words
    assert "No anchors:" in page.text
    assert "deepseek: 1 of 30 episodes failed for reasons of the machinery" in page.text
    assert "29 diagnosed (96.7 %) · 1 failed (3.3 %)" in page.words
    assert page.count("svg") == 1 + 3, "accuracy by category, and against what was found"
    assert "right:" in page.words


def test_cases_without_category_or_weights(tmp_path: Path) -> None:
    run = empty(tmp_path / "run")
    for index in range(8):
        case = Case(
            f"c{index}",
            "Unwell.",
            Truth("gout" if index % 2 else "flu", facts=(Fact("f", "fever", "A fever."),)),
        )
        turn = Turn(
            (),
            Completion("<ask>fever</ask>"),
            Action("ask", ("fever",)),
            Observation((Message("user", "A fever."),), ("f",), "fever"),
        )
        run.write(
            [
                Record(
                    "model",
                    Episode(case, (), (turn,), Ending.OUT_OF_TURNS),
                    correct=index > 3,
                    measures={"noise": None},
                )
            ]
        )
    page = Page(build(run))
    assert "Accuracy by diagnosis" in page.words
    assert "the cases name no category" in page.text
    assert "not scored" in page.words
    assert "pathognomonic was missed" not in page.text


def test_figures_that_rest_on_few_episodes_say_so(tmp_path: Path) -> None:
    run = empty(tmp_path / "run", method="craft")
    for doctor in ("warm start", "trained"):
        records = [
            replace(example_run.record(index, doctor, 0, 0), measures={"noise": None})
            for index in range(9)
        ]
        run.write([replace(records[0], measures={"noise": 0.5}), *records[1:]])
    page = Page(build(run))
    assert "of 1" in page.words
    assert "(fewer than two: critical, noise)" in page.text


def test_parts_that_do_not_add_up_are_not_stacked(tmp_path: Path) -> None:
    run = empty(tmp_path / "run", method="craft")
    for step in (1, 2, 3):
        run.log({"stage": "grpo", "step": step, "reward": 0.5, "parts": {"CR": 0.4, "acc": 0.6}})
    page = Page(build(run))
    assert "do not simply add up" in page.text
    assert "stacked" not in page.text


# ---- text stays text


NASTY = "<script>alert(1)</script>&amp;\"'$x_1$"


def test_nothing_breaks_out_of_its_place(tmp_path: Path) -> None:
    run = Run.create(
        tmp_path / "run",
        {"method": NASTY, "cases": NASTY, "policy": NASTY},
        {"command": NASTY, "processor": NASTY},
    )
    fact = Fact(NASTY, NASTY, NASTY, weight=3)
    case = Case(NASTY, NASTY, Truth(NASTY, facts=(fact, replace(fact, id="other"))), category=NASTY)
    turn = Turn(
        (),
        Completion(NASTY),
        Action(NASTY, (NASTY,)),
        Observation((Message("user", NASTY),), (NASTY,), NASTY),
    )
    for number, doctor in enumerate(("warm start", "trained", NASTY)):
        episode = Episode(
            replace(case, id=f"{NASTY}{number % 2}"),
            (),
            (turn,),
            Ending.FAILED if number == 2 else Ending.DIAGNOSED,
            NASTY,
        )
        record = Record(
            doctor,
            episode,
            correct=number < 2,
            score=Score.at_end(episode, 1.0, **{NASTY: 1.0}),
            measures={NASTY: 1.0},
        )
        run.write(
            [record, replace(record, episode=replace(episode, case=replace(case, id="both")))]
        )
    run.log({"stage": NASTY, "step": 1, "reward": 1.0, "parts": {NASTY: 1.0}, "loss": 1.0})
    run.log({"stage": "b", "step": 1, "reward": 1.0, "parts": {NASTY: 1.0}})
    page = Page(build(run))
    assert NASTY in page.text
    pages = [page, Page(_compared(run, tmp_path)), *map(Page, tmp_path.rglob("transcripts/*.html"))]
    assert len(pages) > 2
    for other in pages:
        assert other.count("script") == 0
        assert "<script>alert" not in other.source
        assert all("alert" not in str(attributes) or tag == "svg" for tag, attributes in other.tags)


def _compared(run: Run, path: Path) -> Path:
    shutil.copytree(run.path, path / "again")
    compare([run, Run.open(path / "again")], path / "c.html", Console(file=StringIO()))
    return path / "c.html"


# ---- transcripts


def outcome(case: str, correct: bool | None, sample: int = 0) -> Outcome:
    return Outcome(case, "gout", "", sample, "diagnosed", correct, 1, None, {}, {})


@given(
    st.lists(
        st.tuples(st.sampled_from([True, False, None]), st.sampled_from([True, False, None])),
        max_size=40,
    ),
    st.integers(0, 12),
)
def test_transcripts_are_chosen_by_rule(
    verdicts: list[tuple[bool | None, bool | None]], most: int
) -> None:
    before = [outcome(f"{k:02}", first) for k, (first, _) in enumerate(verdicts)]
    after = [outcome(f"{k:02}", last) for k, (_, last) in enumerate(verdicts)]
    found = groups([before, after], most=most)
    judged = [pair for pair in verdicts if None not in pair]
    assert sum(group.size for group in found) == len(judged)
    shown = [len(group.cases) for group in found]
    assert sum(shown) == min(most, len(judged))
    for group in found:
        assert len(group.cases) in (
            group.size,
            *range(max(shown, default=0) - 1, max(shown, default=0) + 1),
        ), "groups take turns"
        assert group.cases == sorted(group.cases)


def test_a_transcript_tells_what_was_missed_repeated_and_malformed() -> None:
    facts = (
        Fact("a", "fever", "A fever.", weight=1),
        Fact("b", "crystals", "Crystals.", weight=3),
        Fact("c", "toe", "A toe.", weight=2),
    )
    case = Case("c", "Unwell.", Truth("gout", facts=facts))

    def turn(text: str, kind: str, content: str, reply: str, *evidence: str) -> Turn:
        return Turn(
            (),
            Completion(text),
            Action(kind, (content,)),
            Observation((Message("user", reply),), evidence, content),
        )

    turns = (
        turn("<ask> fever </ask>", "ask", "fever", "A  fever.", "a"),
        turn(
            "<think>hm</think><ask>fever</ask>", "ask", "fever", "Yes, since Monday: a fever.", "a"
        ),
        turn("rubbish", "malformed", "", "Please write exactly one action."),
    )
    simulated = replace(turns[2].observation, sources=("record", "generated", "record", "none"))
    turns = (*turns[:2], replace(turns[2], observation=simulated))
    played = Episode(case, (), turns, Ending.OUT_OF_TURNS)
    shown = side(Record("trained", played, correct=False, score=Score((0.0, 0.25, -0.5))), "mine")
    assert [(line.label, line.content) for line in shown.lines] == [
        ("ask", "fever"),
        ("ask", "<think>hm</think><ask>fever</ask>"),
        ("malformed", "rubbish"),
    ]
    assert [line.repeated for line in shown.lines] == [False, True, False]
    assert [line.reply for line in shown.lines] == [
        "",
        "Yes, since Monday: a fever.",
        "Please write exactly one action.",
    ]
    assert [line.score for line in shown.lines] == ["", "+0.25", "−0.50"]
    results = "results: 2 record, 1 generated, 1 none"
    assert [line.origins for line in shown.lines] == ["", "", results]
    assert [fact.id for fact in shown.missed] == ["b", "c"], (
        "heaviest first, supportive ones not at all"
    )
    assert (shown.answer, shown.ending, shown.verdict) == ("", "out of turns", "wrong")


@pytest.mark.parametrize(
    ("coverage", "said"), [(0.0, "missed: "), (1.0, "nothing significant"), (None, "")]
)
def test_nothing_is_missed_that_could_not_be_asked_for(coverage: float | None, said: str) -> None:
    fact = Fact("b", "crystals", "Crystals.", weight=3)
    case = Case("c", "Unwell.", Truth("gout", facts=(fact,)))
    seen = Observation((), ("b",) if coverage else (), "crystals")
    turn = Turn((), Completion("x"), Action("ask", ("crystals",)), seen)
    played = Episode(case, (), (turn,), Ending.OUT_OF_TURNS)
    record = Record("a", played, correct=False, measures={"coverage": coverage})
    met = Meeting(case, [side(record, "a")], "")
    page = environment("workup.report").from_string(
        '{% import "parts.html" as parts with context %}{{ parts.met(meeting, scored) }}'
    )
    text = page.render(meeting=met, **legend([met]))
    assert ("missed" in text) == bool(said)
    assert said in text


def test_the_page_shows_a_dozen_cases_with_both_doctors(page: Page) -> None:
    body = page.source[page.source.index('id="transcripts"') :]
    assert body.count('class="side"') == 24
    assert body.count('class="presentation"') == 12
    assert "missed:" in body


# ---- warnings beside the accuracy


def unreadable(path: Path, turns: int, readable: int) -> Run:
    """Twelve episodes of `turns` turns, of which the last `readable` name a disease."""
    run = empty(path, policy="mumbler")
    for index in range(12):
        patient = example_run.case(index)
        spoken = [("malformed", ())] * (turns - readable) + [("diagnose", ("gout",))] * readable
        episode = Episode(
            patient,
            (Message("user", patient.presentation),),
            tuple(Turn((1,), Completion("?"), Action(*each), Observation()) for each in spoken),
            Ending.DIAGNOSED if readable else Ending.OUT_OF_TURNS,
        )
        measured = measure(episode, False, example_run.WORLD)
        run.write([Record("mumbler", episode, correct=False, measures=measured)])
    return run


@pytest.mark.long
@pytest.mark.parametrize(("readable", "told"), [(0, "100 %"), (1, "75 %"), (2, "")])
def test_turns_that_could_not_be_read_are_told_beside_the_accuracy(
    tmp_path: Path, readable: int, told: str
) -> None:
    run = unreadable(tmp_path / "run", 4, readable)
    shutil.copytree(run.path, tmp_path / "again")
    stream = StringIO()
    with PlainLive(stream) as live:
        live.table(summarise(run, steps=0, seconds=1.0))
    build(run)
    page = Page(run.report).text
    both = StringIO()
    compare([run, Run.open(tmp_path / "again")], tmp_path / "c.html", Console(file=both, width=200))
    line = f"mumbler: {told} of its turns could not be read"
    shown = [" ".join(each.getvalue().split()) for each in (stream, both)]
    for text in (*shown, page, Page(tmp_path / "c.html").text):
        assert (line in text) == bool(told), text
        assert ("could not be read" in text) == bool(told)


def test_what_was_not_measured_warns_of_nothing() -> None:
    undefined = {"mean": None, "low": None, "high": None, "n": 0, "missing": 4}
    entries = {"a": {}, "b": {"malformed": undefined}, "c": {"malformed": {"mean": 0.5, "n": 9}}}
    assert warnings.lines(entries) == []
    assert len(warnings.lines({**entries, "d": {"malformed": {"mean": 0.51, "n": 9}}})) == 1


@pytest.mark.parametrize("name", ["malformed", "not_understood"])
def test_a_single_question_is_no_reason_to_warn(name: str) -> None:
    def told(episodes: int) -> list[str]:
        return warnings.lines({"a": {name: {"mean": 1.0, "n": episodes}}})

    assert told(1) == told(2) == []
    ((line),) = told(3)
    assert line.startswith("a: 100 % of its ")
    assert line.endswith("; 3 episodes")


@pytest.mark.parametrize(
    ("encounter", "ways"),
    [
        (
            "consultation",
            "environment.encoder understands meanings, roles.interpreter puts a model between, "
            "roles.simulator puts a model in its place",
        ),
        ("library", ""),
        ("elsewhere:Own", ""),
        ("", ""),
    ],
)
def test_a_warning_names_only_the_settings_of_its_environment(encounter: str, ways: str) -> None:
    entries = {"a": {"not_understood": {"mean": 1.0, "n": 9}}}
    (line,) = warnings.lines(entries, {"a": encounter})
    assert line.endswith(f"exact patient's ({ways}); 9 episodes" if ways else "; 9 episodes")
    assert ways or "environment." not in line


# ---- comparing runs


@pytest.mark.long
def test_compare_pairs_common_cases_and_draws_all_curves(whole: Run, tmp_path: Path) -> None:
    other = example_run.make(tmp_path / "other", method="outcome", cases=30, seed=1)
    stream = StringIO()
    compare([whole, other], tmp_path / "c.html", Console(file=stream, width=100))
    assert "other − demo, paired over 30 cases" in stream.getvalue()
    assert f"page  {tmp_path}/c.html" in stream.getvalue()
    page = Page(tmp_path / "c.html")
    assert page.count("svg") == 1 + 6 + 3 + 1, "questions, learning, what was found, categories"
    assert {"demo", "other", "craft on clinic:s", "outcome on clinic:s"} <= set(page.words)
    common = [
        {
            r.episode.case.id: r.correct
            for r in run.episodes(phase="eval", doctor="trained", sample=0)
        }
        for run in (whole, other)
    ]
    assert len(common[0].keys() & common[1].keys()) == 30
    means = [
        fmean(
            bool(r.correct)
            for r in run.episodes(phase="eval", doctor="trained")
            if r.episode.case.id in common[1]
        )
        for run in (whole, other)
    ]
    told = page.table("other, 30 common cases")
    assert told[told.index("accuracy") + 3] == signed("accuracy", means[1] - means[0])


@pytest.mark.long
def test_compare_says_what_cannot_be_compared(whole: Run, tmp_path: Path) -> None:
    other = empty(tmp_path / "demo", method="craft")
    with pytest.raises(UserError, match=r"demo: no policy has been evaluated.*workup resume"):
        compare([whole, other])
    spaced = empty(tmp_path / "my demo", method="craft")
    with pytest.raises(UserError, match=r"`workup resume '.*my demo'`"):
        compare([whole, spaced])
    with pytest.raises(UserError, match=r"demo is named twice"):
        compare([whole, Run.open(whole.path / "../demo")])
    other.write(
        replace(example_run.record(index, "trained", 0, 0), score=None) for index in range(100, 110)
    )
    stream = StringIO()
    compare([whole, other], tmp_path / "c.html", Console(file=stream, width=200))
    assert (
        f"{other.path} and {whole.path} were evaluated on different cases" in stream.getvalue()
    ), "same names are told apart"
    page = Page(tmp_path / "c.html")
    assert "different sources of cases" in page.text
    assert f"Without reinforcement steps: {other.path}." in page.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("cases", "split", "paired"),
    [
        ("clinic:s", 0, True),
        ("clinic:m", 0, False),
        ("clinic:s", 1, False),
        ("jsonl:mine.jsonl", 0, False),
    ],
)
def test_compare_pairs_runs_of_the_same_cases_alone(
    whole: Run, tmp_path: Path, cases: str, split: int, paired: bool
) -> None:
    """Whatever the ids: those of another source or split may be other patients'."""
    other = Run.create(tmp_path / "other", {"cases": cases, "split": split, "method": "craft"}, {})
    other.write(example_run.record(index, "trained", 0, 0) for index in range(40))
    stream = StringIO()
    compare([whole, other], tmp_path / "c.html", Console(file=stream, width=200))
    told, page = stream.getvalue(), Page(tmp_path / "c.html")
    what = (
        f"other and demo were evaluated on different cases ({cases}, split {split}; clinic:s, "
        "split 0)"
    )
    assert ("other − demo, paired over 40 cases" in told, what in told) == (paired, not paired)
    assert (what in page.text, "its transcripts stand in its own report" in page.text) == (
        not paired,
        not paired,
    )
    assert ("in the order demo · other." in page.text) is paired
    (size,) = set(re.findall(r"of ([\d,]+) cases by 2 models", told))
    assert (int(size) > 40) is not paired, "clustered by the case, not by its id"


def test_a_file_that_was_played_whole_holds_every_split(tmp_path: Path) -> None:
    for name, split in (("trained", 0), ("next", 1), ("endpoint", None)):
        run = Run.create(tmp_path / name, {"cases": "jsonl:mine.jsonl", "split": split}, {})
        run.write(
            example_run.record(index, "trained", 0, 0)
            for index in range(30 if split is None else 6)
        )
    for others, paired in (("endpoint", True), ("next", False)):
        stream = StringIO()
        compare(
            [Run.open(tmp_path / name) for name in ("trained", others)],
            None,
            Console(file=stream, width=200),
        )
        assert ("paired over 6 cases" in stream.getvalue()) is paired, stream.getvalue()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.jsonl").touch()
    (tmp_path / "elsewhere" / "mine.jsonl").touch()
    (tmp_path / "endpoint").rename(tmp_path / "elsewhere" / "endpoint")
    runs = [Run.open(tmp_path / name) for name in ("trained", "elsewhere/endpoint")]
    compare(runs, None, Console(file=(stream := StringIO()), width=200))
    assert "different cases" in stream.getvalue(), "two files of one name are two sources"


def test_a_run_compares_two_of_its_doctors(whole: Run) -> None:
    stream = StringIO()
    Console(file=stream, width=100).print(whole.compare("random doctor"))
    assert "random doctor" in stream.getvalue()
    assert "macro_accuracy" in stream.getvalue()
    told = {"doc\x1b[31m": whole.outcomes("trained"), "you": whole.outcomes("warm start")}
    Console(file=stream, width=100).print(contrast(told, 0))
    assert "doc [31m" in stream.getvalue()
    with pytest.raises(
        UserError, match=r"no evaluated doctor 'warm stat'\. Did you mean 'warm start'"
    ):
        whole.compare("warm stat")


def test_an_episode_can_be_shown(whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
    record = whole.episodes(phase="eval", doctor="trained", ending="diagnosed")[0]
    record.show()
    shown = capsys.readouterr().out
    assert record.episode.case.truth.diagnosis in shown
    assert all(
        fact.item in shown
        for fact in record.episode.case.truth.facts
        if fact.id in record.episode.discovered
    )
    assert "3 pathognomonic" in shown


def test_an_episode_that_is_shown_cannot_steer_the_terminal(
    whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[31m\x9b2J\u202eevil"
    record = whole.episodes(phase="eval", doctor="trained", ending="diagnosed")[0]
    episode, case = record.episode, record.episode.case
    said = Message("user", evil)
    turns = [
        replace(
            turn,
            completion=replace(turn.completion, text=evil),
            action=replace(turn.action, content=(evil,)),
            observation=replace(turn.observation, messages=(said,), sources=(evil,)),
        )
        for turn in episode.turns
    ]
    facts = tuple(replace(fact, text=evil, weight=3) for fact in case.truth.facts)
    truth = replace(case.truth, diagnosis=evil, facts=facts)
    episode = replace(
        episode, opening=(said,), turns=tuple(turns), case=replace(case, id=evil, truth=truth)
    )
    replace(record, doctor=evil, stage=evil, episode=episode).show()
    shown = capsys.readouterr().out
    assert shown.count("evil") > 5 + len(turns)
    assert not set(shown) & set("\x1b\x9b\u202e")


# ---- small parts


@given(st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=30), st.integers(0, 7))
@settings(deadline=None)
def test_smoothing_is_a_centred_mean(values: list[float | None], half: int) -> None:
    expected = [
        np.mean(near)
        if (near := [v for v in values[max(0, k - half) : k + half + 1] if v is not None])
        else np.nan
        for k in range(len(values))
    ]
    np.testing.assert_allclose(smooth(values, 2 * half + 1), expected, atol=1e-9)


@given(st.integers(1, 3000), st.integers(2, 400))
def test_thinning_keeps_the_ends(count: int, most: int) -> None:
    index = thin(count, most).tolist()
    assert (index[0], index[-1]) == (0, count - 1)
    assert len(index) == min(count, most)


@given(st.lists(st.floats(-5, 5), max_size=6).map(sorted), st.floats(0.01, 2))
def test_labels_are_moved_apart_and_no_further(places: list[float], gap: float) -> None:
    moved = apart(places, gap)
    assert all(above - below >= gap - 1e-9 for below, above in pairwise(moved))
    if all(above - below >= gap for below, above in pairwise(places)):
        assert moved == pytest.approx(places)
    assert np.mean(moved or [0]) == pytest.approx(np.mean(places or [0]), abs=1e-9)


def test_who_is_compared() -> None:
    exact = ("random doctor", "greedy information")

    def of(*doctors: str) -> Ends:
        return Ends.of(doctors, exact)

    assert of("random doctor", "warm start", "trained") == Ends("warm start", "trained", exact)
    assert of("untrained", "trained", "hybrid") == Ends("untrained", "trained", exact)
    assert of("warm start") == Ends(None, "warm start", exact)
    assert of("untrained", "sft") == Ends("untrained", "sft", exact)
    assert of("warm start", "stage 1", "stage 2") == Ends("warm start", "stage 2", exact)
    several = of("random doctor", "m", "m, bayes concludes", "bayes, oracle context")
    assert several == Ends(None, "m", exact)
    assert of("greedy information") == Ends(None, None, exact)


def test_an_evaluation_stands_behind_the_steps_before_it() -> None:
    rewarded = [{"stage": stage, "reward": 1.0} for stage in ("1", "1", "2", "2", "2")]
    lines = [{"stage": "warm start", "loss": 1.0}, *rewarded]
    doctors = ("untrained", "warm start", "1", "trained")
    assert [updates_until(lines, doctor) for doctor in doctors] == [0, 0, 2, 5]


def stopped(path: Path, *stages: str) -> Page:
    """The report of a run whose last of `stages` was never evaluated."""
    run = empty(path, method="craft")
    for name in ("warm start", *stages):
        for step in (1, 2, 3):
            reward = {} if name == "warm start" else {"reward": step / 10, "accuracy": 0.5}
            run.log({"stage": name, "step": step, **reward})
    for doctor in ("warm start", *stages[:-1]):
        rows = [example_run.record(index, "warm start", 0, 0) for index in range(12)]
        run.write(replace(row, doctor=doctor, stage=doctor, step=3) for row in rows)
    return Page(build(run))


@pytest.mark.parametrize(
    ("stages", "of", "who"), [(("grpo",), "", "warm start"), (("1", "2"), " of 2", "1")]
)
def test_a_run_that_stopped_before_its_last_evaluation_says_so(
    stages: tuple[str, ...], of: str, who: str, tmp_path: Path
) -> None:
    page = stopped(tmp_path / "run", *stages)
    told = f"Reinforcement stopped at update 3{of} without an evaluation."
    assert page.text.count(f"{told} The last evaluation is that of “{who}”") == 2


def test_a_run_that_came_to_its_end_did_not_stop(page: Page) -> None:
    assert "Reinforcement stopped" not in page.text


def test_rewards_of_several_stages_are_not_one_line(tmp_path: Path) -> None:
    lines = [{"stage": stage, "reward": k, "accuracy": k} for stage in "ab" for k in (0.1, 0.2)]
    assert Curve("", lines).spans == [(0, 2), (2, 4)]
    with rc_context({**rcParamsDefault, **STYLE}):
        made = learning.__wrapped__(Curve("", lines), {}, Ends(None, None))  # type: ignore[attr-defined]
    reward, accuracy = ([list(line.get_xdata()) for line in ax.lines] for ax in made.panels)
    assert reward[:2] == [[1, 2], [3, 4]]
    assert accuracy[0] == [1, 2, 3, 4]
    told = "compare rewards within a stage alone"
    assert told in stopped(tmp_path / "two", "1", "2").text
    assert told not in stopped(tmp_path / "one", "1").text
    for name, said in (("two", True), ("one", False)):
        beside = _compared(Run.open(tmp_path / name), tmp_path / f"{name} beside")
        assert ("compare rewards within a stage alone" in Page(beside).text) == said
        assert "each curve the mean over 1 step." in Page(beside).text


def test_names_beside_one_line_stand_apart_within_the_panel() -> None:
    doctors = ("random doctor", "told information", "greedy information", "full information", "x")
    curve = Curve("", [{"stage": "a", "accuracy": k / 9} for k in range(9)])
    levels = {doctor: {"accuracy": Estimate.exact(1.0)} for doctor in doctors}
    with rc_context({**rcParamsDefault, **STYLE}):
        made = learning.__wrapped__(curve, levels, Ends(None, None, doctors))  # type: ignore[attr-defined]
        (ax,) = made.panels
        canvas = FigureCanvasAgg(ax.figure)
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in ax.texts]
    boxes.sort(key=lambda box: box.y0)
    assert len(boxes) == len(doctors)
    assert all(above.y0 - below.y1 > 2 for below, above in pairwise(boxes))
    inside = ax.get_window_extent()
    assert all(inside.y0 < (box.y0 + box.y1) / 2 < inside.y1 for box in boxes)


def test_parts_of_a_reward_look_different() -> None:
    parts = {f"part {k}": 0.1 for k in range(9)}
    lines = [{"stage": "a", "reward": 0.9, "parts": parts}] * 3
    for additive in (True, False):
        page = curves.parts(Curve("", lines), additive)
        keys = re.findall(r'<b style="color:(.*?)">(.*?)</b>part', page)
        assert len({*keys}) == len(keys) == len(parts)
    assert page.count("stroke-dasharray") > 0


@pytest.mark.parametrize("additive", [True, False])
def test_parts_of_a_reward_stay_in_their_stages(additive: bool) -> None:
    paid = {"a": {"x": 1.0, "y": -1.0}, "b": {"x": 3.0, "y": -2.0}}
    lines = [
        {"stage": stage, "reward": sum(parts.values()), "parts": parts}
        for stage, parts in paid.items()
        for _ in range(100)
    ]
    curve = Curve("", lines)
    assert curve.window > 1
    with rc_context({**rcParamsDefault, **STYLE}):
        (ax,) = curves.parts.__wrapped__(curve, additive).panels  # type: ignore[attr-defined]
    if additive:
        drawn = [area.get_paths()[0].vertices for area in ax.collections]
    else:
        drawn = [line.get_xydata() for line in ax.lines[:4]]
    ends = [
        (float(at[:, 0].min()), float(at[:, 0].max()), {*at[:, 1].tolist()} - {0.0}) for at in drawn
    ]
    assert ends == [
        (1, 100, {1.0}),
        (101, 200, {3.0}),
        (1, 100, {-1.0}),
        (101, 200, {-2.0}),
    ]


def test_what_is_left_of_rounding_is_0() -> None:
    lines = [{"kl": value} for value in (1e-18, -3e-17, None, 1e-9, 0.25)]
    assert Curve("", lines).values("kl") == [0.0, 0.0, None, 1e-9, 0.25]


def test_a_figure_that_nobody_has_gets_no_panel() -> None:
    known = {"accuracy": Estimate.exact(0.5), "coverage": Estimate.exact(0.5)}
    doctors = {"a": {**known, "noise": Estimate(math.nan, math.nan, math.nan, 0)}, "b": known}
    looks = outcomes.looks(list(doctors), Ends(None, None))
    page = outcomes.against_accuracy(doctors, looks, Curve("", []))
    assert re.findall('Accuracy against ([a-z]+)"', page) == ["coverage"]
    nothing = {"a": {"accuracy": Estimate.exact(0.5)}}
    assert outcomes.against_accuracy(nothing, looks, Curve("", [])) == ""


def test_long_names_of_diseases_take_two_lines() -> None:
    long = "Acute COPD exacerbation / infection"
    assert outcomes.written(long) == "Acute COPD exacerbation /\ninfection"
    assert outcomes.written("gout") == "gout"
    cut = outcomes.written("so " * 40).split("\n")
    assert len(cut) == 2
    assert cut[1].endswith("…")
    assert all(len(line) <= outcomes.LONGEST for line in cut)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_letters_have_contrast(scheme: str) -> None:
    """4.5:1 at least, as WCAG 2 asks of small letters."""
    style = resources.files("workup.report").joinpath("templates/style.css").read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6}|var\(--\w+\));", blocks[0]))
    if scheme == "dark":
        colours |= dict(re.findall(r"--([\w-]+): (#\w{6}|var\(--\w+\));", blocks[1]))
    pairs = [(f"w{k}", f"w{k}-soft") for k in range(4)]
    pairs += [(name, "paper") for name in ("good", "bad", "muted")]
    for letters, ground in pairs:
        text = colours[letters]
        text = colours[text[6:-1]] if text.startswith("var") else text
        one, other = sorted(map(luminance, (text, colours[ground])))
        assert (other + 0.05) / (one + 0.05) >= 4.5, (letters, ground)


def test_stage_borders_are_where_stages_change() -> None:
    lines = [{"stage": stage} for stage in "aabbb"]
    assert Curve("", lines).borders == [(2, "b")]


def test_parts_of_a_curve_are_means_over_its_steps() -> None:
    lines = [{"accuracy": value} for value in (0.0, 0.2, 0.4, None, None, 0.9, 1.0)]
    assert Curve("", lines).parts("accuracy", 3) == pytest.approx([0.2, None, 0.95])
    assert Curve("", lines).parts("questions", 2) == [None, None]
    assert Curve("", lines[:2]).parts("accuracy", 3) == []
