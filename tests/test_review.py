"""Reviews: what is drawn, what is kept, what reviewers see, and what their marks say."""

from __future__ import annotations

import csv
import json
import math
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from io import StringIO
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import krippendorff as library
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reviewing import SECRET, WORDS, made, played
from rich.console import Console
from serving import serving
from sklearn.metrics import cohen_kappa_score
from typer.testing import CliRunner

from workup.cli.app import app
from workup.core.errors import UserError
from workup.runs import Run
from workup.runs.packed import opened, squeezed
from workup.studies import questions
from workup.studies.review import answers, drawing, folder, form, tables
from workup.studies.review.answers import Answers
from workup.studies.review.folder import Review, ReviewPlan
from workup.studies.review.results import Mark, Results
from workup.studies.review.tables import COLUMNS

# --- drawing --------------------------------------------------------------------------------------

samples = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)
plays = st.lists(
    st.dictionaries(st.sampled_from([f"case {k}" for k in range(30)]), samples),
    min_size=1,
    max_size=5,
)
draws = given(plays, st.integers(1, 40), st.integers(0, 5))


def even(counts: Mapping[Any, int], of: int) -> bool:
    """Whether `of` things occur equally often, give or take one."""
    every = [*counts.values(), *[0] * (of - len(counts))]
    return max(every) - min(every) <= 1


@draws
def test_singles_show_every_doctor_on_every_drawn_case(
    played: list[dict[str, list[int]]], cases: int, seed: int
) -> None:
    items = drawing.singles(played, cases, seed)
    count = min(cases, len(drawing.common(played)))
    assert len(items) == count * len(played)
    seen = [(item.case, item.sides[0].doctor) for item in items]
    assert len(set(seen)) == len(seen)
    assert all(item.sides[0].sample in played[item.sides[0].doctor][item.case] for item in items)
    for start in range(0, len(items), count or 1):
        block = items[start : start + count]
        assert len({item.case for item in block}) == count
        assert even(Counter(item.sides[0].doctor for item in block), len(played))
    assert items == drawing.singles(played, cases, seed)


@draws
def test_pairs_are_balanced_over_doctors_and_sides(
    played: list[dict[str, list[int]]], cases: int, seed: int
) -> None:
    if len(played) < 2:
        return
    items = drawing.pairs(played, cases, seed)
    assert len(items) == min(cases, len(drawing.common(played)))
    assert len({item.case for item in items}) == len(items)
    left = Counter((item.sides[0].doctor, item.sides[1].doctor) for item in items)
    meetings = list(combinations(range(len(played)), 2))
    met = {(one, other): left[one, other] + left[other, one] for one, other in meetings}
    assert sum(met.values()) == len(items)  # nobody meets himself
    assert even(met, len(meetings))
    assert all(abs(left[one, other] - left[other, one]) <= 1 for one, other in meetings)
    for item in items:
        assert all(side.sample in played[side.doctor][item.case] for side in item.sides)
    assert items == drawing.pairs(played, cases, seed)


def test_another_seed_is_another_review() -> None:
    played = [{f"case {k}": [0, 1] for k in range(30)}] * 2
    for draw in (drawing.singles, drawing.pairs):
        first, second = draw(played, 30, 0), draw(played, 30, 1)
        assert [item.case for item in first] != [item.case for item in second]
        assert [item.sides for item in first] != [item.sides for item in second]


# --- the form -------------------------------------------------------------------------------------


def test_questions_are_chosen_by_name() -> None:
    assert list(form.chosen(form.DEFAULT, (), pairs=False)) == ["accuracy", "quality", "safety"]
    asked = form.chosen(form.DEFAULT, ("quality", "accuracy"), pairs=True)
    assert list(asked) == ["accuracy", "quality", "better"]
    assert list(form.chosen(form.DEFAULT, ("better",), pairs=True)) == ["better"]
    for by, pairs, why in (
        (("acuracy",), False, "Did you mean 'accuracy'"),
        (("better",), False, "add --pairs"),
    ):
        with pytest.raises(UserError, match=why):
            form.chosen(form.DEFAULT, by, pairs=pairs)
    with pytest.raises(UserError, match="pairs: true"):
        form.chosen({"quality": form.DEFAULT["quality"]}, (), pairs=True)
    with pytest.raises(UserError, match="add --pairs"):
        form.chosen({"better": form.DEFAULT["better"]}, (), pairs=False)


QUESTIONS = """
questions:
  warmth:
    ask: Was it kind?
    hint: In its words.
    values: [cold, fair, warm]
  marks:
    ask: How good was it?
    values: [1, 2, 3]
    level: interval
  grade:
    ask: Is it right?
    values: {"no": 0, "yes": 1}
    verdicts: {"no": wrong, "yes": same}
  sooner:
    ask: Who was quicker?
    pairs: true
    ties: false
"""


def test_the_papers_scales_are_those_of_its_judges() -> None:
    found = form.read("promed")
    assert tuple(found) == questions.SCALES
    for name, question in found.items():
        assert question.answers == {str(mark): mark for mark in range(1, 6)}
        assert question.level == "ordinal"
        # The judges' rubric has a line for each scale, which may say more.
        (line,) = (line for line in questions.READING.splitlines() if line.startswith(name))
        asked = question.ask.lower().rstrip("?")
        assert line.removeprefix(f"{name}: ").startswith(asked), name
    with pytest.raises(UserError, match="Did you mean 'promed'"):
        form.read("promet")
    with pytest.raises(UserError, match="no such file"):
        form.read("promet.yaml")


def test_questions_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "questions.yaml"
    file.write_text(QUESTIONS)
    found = form.read(str(file))
    assert found["warmth"].answers == {"cold": 1, "fair": 2, "warm": 3}
    assert found["marks"].answers == {"1": 1, "2": 2, "3": 3}
    assert found["sooner"].answers == {"A": 1.0, "B": 0.0}
    assert form.DEFAULT["better"].answers == {"A": 1.0, "equal": 0.5, "B": 0.0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("questions: {a: {ask: x, values: {yes: 1, no: 0}}}", "put them in quotes"),
        ("questions: {a: {ask: x, values: [one]}}", "setting 'questions.a': it needs 2 to 9"),
        ("questions: {a: {ask: x, values: {b: 1, c: 1}}}", "the same number"),
        ("questions: {a: {ask: x, values: [b, b, c]}}", "two of its values are the same"),
        ("questions: {a: {ask: x, values: [1.0000001, 1, 2]}}", "two of its values are the same"),
        ("questions: {a: {ask: x, values: [{b: 1}, c]}}", "a word or a number"),
        ("questions: {note: {ask: x, values: [b, c]}}", "give the question another name"),
        ("questions: {as: {ask: x, pairs: true}}", "give the question another name"),
        ("questions: {a: {ask: x, values: {b: 1, c: .nan}}}", "finite number"),
        ("questions: {a: {ask: x, values: [b, c], verdicts: {d: same}}}", "'d' is none"),
        ("questions: {a: {ask: x, values: [b, c], verdicts: {b: same}}}", "every value"),
        ("questions: {a: {ask: x, values: [b, c], pairs: true}}", "has no values"),
        ("questions: {A b: {ask: x, values: [b, c]}}", "questions.A b"),
        ("questions: {a: {values: [b, c]}}", "questions.a.ask"),
        ("questions: {a: {ask: x, values: [b, c], colour: red}}", "questions.a.colour"),
        ("question: {}", "questions"),
    ],
)
def test_a_wrong_form_is_told_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "questions.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(why)) as error:
        form.read(str(file))
    assert "\n" not in str(error.value)


# --- reviews --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("runs") / SECRET)


def test_a_review_holds_copies_that_outlive_their_run(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "moved"
    played(own)
    before = sorted((path, path.stat().st_mtime_ns) for path in own.rglob("*"))
    made(own, tmp_path / "review")
    assert before == sorted((path, path.stat().st_mtime_ns) for path in own.rglob("*"))
    own.rename(tmp_path / "elsewhere")
    review = Review.open(tmp_path / "review")
    with Run.open(tmp_path / "elsewhere") as kept:
        for item in review.items:
            for shown, record in zip(item.sides, review.records(item), strict=True):
                name = review.manifest.doctors[shown.doctor].doctor
                (same,) = kept.evaluated(name, case=item.case, sample=shown.sample)
                assert replace(same, doctor=str(shown.doctor)) == record
    assert review.path.stat().st_mode & 0o777 == 0o700


def test_a_review_that_cannot_be_made_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "review"
    asked = form.chosen(form.DEFAULT, (), pairs=True)
    other = played(tmp_path / "other", cases=1)
    with Run.open(other) as changed:
        record = changed.episodes()[0]
        case = replace(record.episode.case, presentation="Somebody else.")
        changed.write([replace(record, episode=replace(record.episode, case=case))])
        changed.store.close()
        with sqlite3.connect(other / "episodes.sqlite") as connection:
            body = json.dumps({**json.loads(_body(connection)), "presentation": "Somebody else."})
            connection.execute("UPDATE bodies SET lines = ?", (squeezed([body]),))
    for runs, plan, why in (
        ([run], ReviewPlan(asked, 5, True), "--pairs needs two doctors"),
        ([run], ReviewPlan(asked, 5, True, doctors=("nobody",)), "no evaluated doctor 'nobody'"),
        ([run, other], ReviewPlan(asked, 50, True, doctors=(WORDS["trained"],)), "another patient"),
        ([tmp_path / "none"], ReviewPlan(asked, 5, True), "does not exist"),
    ):
        with pytest.raises(UserError, match=why) as error:
            folder.make(runs, plan, out)
        assert "\n" not in str(error.value)
        assert not out.exists()
    made(run, out)
    with pytest.raises(UserError, match="exists already"):
        made(run, out)


def _body(connection: sqlite3.Connection) -> str:
    (body,) = opened(connection.execute("SELECT lines FROM bodies").fetchone()[0])
    return body


def test_damaged_and_newer_reviews_are_told(run: Path, tmp_path: Path) -> None:
    review = made(run, tmp_path / "review")
    file = review.path / "review.json"
    whole = json.loads(file.read_text())
    for change, why in (
        ({"format": 2}, "newer workup"),
        ({"items": [{"case": "x", "sides": [{"doctor": "?"}]}]}, "field 'items.0.sides.0"),
    ):
        file.write_text(json.dumps(whole | change))
        with pytest.raises(UserError, match=why):
            Review.open(review.path)
    with pytest.raises(UserError, match="workup review make"):
        Review.open(tmp_path)


# --- what was said --------------------------------------------------------------------------------

said = st.one_of(
    st.tuples(st.just("answer"), st.integers(1, 4), st.sampled_from(["good", "bad", None])),
    st.tuples(st.just("skip"), st.integers(1, 4), st.none()),
    st.tuples(st.just("undo"), st.just(0), st.none()),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(said, max_size=15))
def test_what_stands_is_what_a_list_of_edits_would_hold(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int, str | None]]
) -> None:
    store = Answers(tmp_path_factory.mktemp("answers") / "answers.sqlite")
    store.admit("Ada")
    store.admit("Bo")
    store.answer("Bo", 1, {"q": "bad"})
    kept: list[tuple[int, str | None, bool]] = []
    for act, item, value in acts:
        if act == "undo":
            last = store.standing("Ada").last
            taken = store.undo("Ada", last.id) if last else None
            assert taken == (kept.pop()[0] if kept else None)
            continue
        if act == "skip":
            store.skip("Ada", item)
        else:
            store.answer("Ada", item, {"q": value})
        if not kept or kept[-1] != (item, value, act == "skip"):
            kept.append((item, value, act == "skip"))
    found = store.standing("Ada").entries
    assert {n: (n, each.answers.get("q"), each.skipped) for n, each in found.items()} == {
        each[0]: each for each in kept
    }
    assert list(store.standing("Bo").entries) == [1]


def test_an_undo_takes_back_the_last_entry_alone(tmp_path: Path) -> None:
    store = Answers(tmp_path / "answers.sqlite")
    store.admit("Ada")
    store.answer("Ada", 1, {"q": "good"}, "first")
    store.answer("Ada", 2, {"q": "bad"})
    first, second = (store.standing("Ada").entries[item].id for item in (1, 2))
    assert store.undo("Ada", first) is None
    assert store.undo("Ada", second) == 2
    assert store.undo("Ada", second) is None  # sent twice
    store.answer("Ada", 1, {"q": "bad"}, "changed")
    (entry,) = store.standing("Ada").entries.values()
    assert (entry.answers, entry.note) == ({"q": "bad"}, "changed")
    last = store.standing("Ada").last
    assert last is not None
    assert store.undo("Ada", last.id) == 1
    (entry,) = store.standing("Ada").entries.values()
    assert (entry.answers, entry.note) == ({"q": "good"}, "first")
    with sqlite3.connect(store.path) as connection:
        history = connection.execute("SELECT act, note FROM entries ORDER BY id").fetchall()
        acts = ["answer", "answer", "undo", "answer", "undo"]
        assert [act for act, _ in history] == acts
        for change in ("DELETE FROM entries", "UPDATE entries SET note = ''"):
            with pytest.raises(sqlite3.IntegrityError, match="entries are kept"):
                connection.execute(change)


def test_reviewers_keep_their_links(tmp_path: Path) -> None:
    store = Answers(tmp_path / "answers.sqlite")
    assert store.reviewers() == {}
    ada = store.admit("Dr  Ada ")
    assert store.admit("Dr Ada") == ada != store.admit("Dr Bo")
    assert list(store.reviewers()) == ["Dr Ada", "Dr Bo"]
    assert store.path.stat().st_mode & 0o777 == 0o600
    for name in ("", " ", 81 * "x", "a\x1bb"):
        with pytest.raises(UserError, match="printable"):
            store.admit(name)


def test_the_pace_leaves_breaks_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([f"2026-01-01T{clock}+00:00" for clock in CLOCK])
    monkeypatch.setattr(answers, "_now", lambda: next(times))
    store = Answers(tmp_path / "answers.sqlite")
    store.admit("Ada")
    for item in range(1, len(CLOCK)):
        store.skip("Ada", item)
    assert store.standing("Ada").pace == 30.0  # the median of 20, 30 and 50; lunch does not count


CLOCK = ("09:00:00", "09:00:10", "09:00:30", "09:01:00", "12:00:00", "12:00:50")


# --- results --------------------------------------------------------------------------------------


def marked(review: Review, reviewers: Sequence[str], seed: int = 0) -> Results:
    """A review that reviewers have marked at random: some items skipped, some answers not known."""
    rng = np.random.default_rng(seed)
    store = review.answers
    letters = ("A", "B") if review.manifest.pairs else ("",)
    for name in reviewers:
        store.admit(name)
        for number in range(1, len(review.items) + 1):
            if rng.random() < 0.1:
                store.skip(name, number, "cannot read it")
                continue
            given: dict[str, str | None] = {}
            for asked, question in review.form.items():
                fields = [asked] if question.pairs else [f"{asked}.{x}".strip(".") for x in letters]
                for field in fields:
                    value = str(rng.choice(list(question.answers)))
                    given[field] = None if rng.random() < 0.1 else value
            store.answer(name, number, given, "=1+1")
    return Results.of(review)


@pytest.fixture(scope="module")
def paired(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    review = made(run, tmp_path_factory.mktemp("reviews") / "pairs", cases=12)
    return marked(review, ("Ada", "Bo", "Cy [red]"))


@pytest.fixture(scope="module")
def single(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    review = made(run, tmp_path_factory.mktemp("reviews") / "singles", cases=12, pairs=False)
    return marked(review, ("Ada", "Bo", "Cy"))


def test_alpha_is_the_librarys(paired: Results, single: Results) -> None:
    for results in (paired, single):
        for name, question in results.review.form.items():
            units: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
            for mark in results.marks:
                if mark.question == name and mark.number is not None:
                    first = mark.label == WORDS["warm start"]
                    turned = question.pairs and not first
                    number = 1 - mark.number if turned else mark.number
                    units[mark.item, mark.side][mark.reviewer] = number
            table = [[unit.get(who, np.nan) for unit in units.values()] for who in results.standing]
            expected = library.alpha(table, level_of_measurement="ordinal")
            found = results.agreement(name)
            assert found.mean == pytest.approx(expected)
            assert found.low <= found.mean <= found.high
            assert found.n == sum(len(unit) > 1 for unit in units.values())


def test_agreement_without_variation_is_undefined(run: Path, tmp_path: Path) -> None:
    review = made(run, tmp_path / "review", pairs=False, cases=4)
    store = review.answers
    store.admit("Ada")
    store.answer("Ada", 1, {"accuracy": "right", "quality": "3", "safety": "no"})
    alone = Results.of(review)
    assert alone.undefined("safety") == "nothing has two marks"
    store.admit("Bo")
    for item, mark in ((1, "3"), (2, "4")):
        for who in ("Ada", "Bo"):
            store.answer(who, item, {"accuracy": None, "quality": mark, "safety": "no"})
    both = Results.of(review)
    assert math.isnan(both.agreement("safety").mean)
    assert both.undefined("safety") == "all marks are equal"
    assert both.undefined("quality") == ""
    assert both.agreement("quality").mean == 1
    found = both.as_json()["questions"]["safety"]["alpha"]
    assert (found["mean"], found["undefined"]) == (None, "all marks are equal")
    assert "undefined: all marks are equal" in printed("review", "results", review.path)


def printed(*words: object) -> str:
    """What `workup WORDS` prints. Raises the error that it ends with."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    if done.exception is not None:
        raise done.exception
    return done.output


def by_hand(results: Results, name: str) -> list[Mark]:
    return [mark for mark in results.marks if mark.question == name and mark.value is not None]


def test_wins_are_counted_by_doctor_and_not_by_side(paired: Results) -> None:
    (wins,) = paired.wins("better")
    one = WORDS["warm start"]
    counts: Counter[float] = Counter()
    for mark in by_hand(paired, "better"):
        (left, right) = paired.review.items[mark.item - 1].sides
        names = [paired.review.manifest.doctors[side.doctor].doctor for side in (left, right)]
        assert mark.doctor == names[0]
        assert mark.against_doctor == names[1]
        better = {"A": names[0], "B": names[1]}.get(str(mark.value))
        counts[0.5 if better is None else float(better == one)] += 1
    assert (wins.won, wins.tied, wins.lost) == (counts[1.0], counts[0.5], counts[0.0])
    assert wins.share.mean == pytest.approx((wins.won + wins.tied / 2) / counts.total())
    assert wins.share.n == counts.total()
    assert wins.share.missing == len(paired.standing) * 12 - counts.total()
    left = [{"A": 1, "equal": 0.5, "B": 0}[str(m.value)] for m in by_hand(paired, "better")]
    assert paired.left("better").mean == pytest.approx(np.mean(left))


def test_names_in_square_brackets_are_printed_as_they_are(single: Results) -> None:
    doctors = [each.model_copy() for each in single.review.manifest.doctors]
    doctors[0] = doctors[0].model_copy(update={"label": "[/b]x[red]"})
    manifest = single.review.manifest.model_copy(update={"doctors": tuple(doctors)})
    console = Console(width=200, file=StringIO())
    for each in tables.shown(Results(replace(single.review, manifest=manifest), single.standing)):
        assert not isinstance(each, str)
        each.show(console)
    assert "Differences to [/b]x[red]" in console.file.getvalue()


def test_means_are_those_of_the_marks(single: Results) -> None:
    for name in single.review.form:
        for doctor in WORDS.values():
            own = [m for m in by_hand(single, name) if m.doctor == doctor]
            assert single.level(name, doctor).mean == pytest.approx(
                np.mean([m.number for m in own])
            )
            assert sum(single.shares(name, doctor).values()) == len(own)


def test_the_runs_judge_stands_beside_most_reviewers(single: Results) -> None:
    units: dict[int, list[str]] = defaultdict(list)
    judged = {mark.item: mark.judged for mark in single.marks}
    for mark in by_hand(single, "accuracy"):
        units[mark.item].append(str(mark.value))
    pairs, split = [], 0
    for item, values in units.items():
        top, count = Counter(values).most_common(1)[0]
        if 2 * count <= len(values):
            split += 1
        else:
            pairs.append((top == "right", bool(judged[item])))
    found = single.judged("accuracy")
    assert split > 0
    assert found.split == split
    assert found.accuracy.n == len(pairs) > 5
    assert found.accuracy.mean == pytest.approx(np.mean([x == y for x, y in pairs]))
    assert found.kappa.mean == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)))
    assert found.kappa.low <= found.kappa.mean <= found.kappa.high


def test_every_mark_is_written_unblinded(paired: Results, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"marks.{kind}" for kind in ("csv", "parquet", "json")}
    options = [word for kind, file in files.items() for word in (f"--{kind}", file)]
    text = printed("review", "results", paired.review.path, *options)
    assert "Krippendorff" in text
    assert "Cy [red]" in text
    with files["csv"].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(files["parquet"]).to_pylist()
    assert len(rows) == len(table) == len(paired.marks) == 3 * 12 * 7
    for row, same, mark in zip(rows, table, paired.marks, strict=True):
        assert tuple(row) == tuple(same) == COLUMNS
        for name in COLUMNS:
            value = getattr(mark, name)
            assert same[name] == value
            told = "" if value is None else str(value)
            assert row[name] == (f"'{told}" if told.startswith("=") else told)
    skipped = [row for row in table if row["skipped"]]
    assert skipped
    assert {(row["value"], row["note"]) for row in skipped} == {(None, "cannot read it")}
    assert {row["doctor"] for row in table} == set(WORDS.values())
    assert {row["run"] for row in table} == {SECRET}
    assert json.loads(files["json"].read_text())["questions"]["better"]["wins"]


FORMULAS = ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "＝1")


def test_no_spreadsheet_runs_what_somebody_typed(paired: Results, tmp_path: Path) -> None:
    mark = paired.marks[0]
    texts = [each.name for each in fields(Mark) if isinstance(getattr(mark, each.name), str)]
    assert {"reviewer", "note", "doctor", "run", "label"} <= set(texts)
    marks = [replace(mark, number=-1.5, **dict.fromkeys(texts, said)) for said in FORMULAS]
    marks.append(replace(mark, note="a = b, -1"))
    results: Any = SimpleNamespace(review=paired.review, marks=marks)
    tables.write_csv(results, tmp_path / "marks.csv")
    with (tmp_path / "marks.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, said in zip(rows, FORMULAS, strict=False):
        assert {row[name] for name in texts} == {f"'{said}"}
        assert row["number"] == "-1.5", "a number is none"
    assert rows[-1]["note"] == "a = b, -1"


def test_a_review_draws_its_seed_unless_it_is_told_one(run: Path, tmp_path: Path) -> None:
    words = ("review", "make", run, "--cases", 5)
    for name in "abc":
        assert "seed: " in printed(*words, "--out", tmp_path / name)
    drawn = [Review.open(tmp_path / name).manifest.seed for name in "abc"]
    assert len(set(drawn)) == 3
    assert 0 not in drawn
    printed(*words, "--seed", drawn[0], "--out", tmp_path / "again")
    assert Review.open(tmp_path / "again").items == Review.open(tmp_path / "a").items


def test_the_commands_and_their_mistakes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--cases", 5, "--by", "accuracy,quality", "--pairs")
    doctors = [word for name in WORDS.values() for word in ("--doctor", name)]
    text = printed("review", "make", run, *words, *doctors, "--out", "mine")
    assert "5 pairs of 5 cases" in text
    assert "workup view --review mine --reviewer NAME" in text
    assert list(Review.open(tmp_path / "mine").form) == ["accuracy", "quality", "better"]
    for wrong, why in (
        (("review", "make", run, "--by", "better"), "add --pairs"),
        (("review", "results", "mine"), "nobody has answered"),
        (("review", "results", run), "is no review"),
        (("view", "--review", "mine"), "no reviewer yet"),
        (("view", run, "--review", "mine"), "leave the runs out"),
        (("view", run, "--reviewer", "Ada"), "belongs to a review"),
    ):
        with pytest.raises(UserError, match=why) as error:
            printed(*wrong)
        assert "\n" not in str(error.value)


def test_a_judge_is_audited_with_reviewers_verdicts(single: Results, tmp_path: Path) -> None:
    """A judge that always says "partly" agrees with the majorities that do."""
    with serving(lambda body: json.dumps({"reason": "", "grade": "partly"})) as server:
        config = tmp_path / "workup.yaml"
        config.write_text(
            f"endpoints: {{mine: {{base_url: '{server.url}', model: m, retries: 0}}}}\n"
        )
        words = (
            single.review.path,
            "model=endpoint:mine",
            "--config",
            config,
            "--out",
            tmp_path / "a",
        )
        text = printed("audit", "labels", *words)
    assert "beside most reviewers" in text
    told = json.loads((tmp_path / "a/labels.json").read_text())
    labels = single.labels("accuracy")
    asked = [each for each in labels if each.verdict is not None and each.record.episode.answer]
    assert len(server.asked) == len(
        {(e.record.episode.case.truth.diagnosis, e.record.episode.answer) for e in asked}
    )
    assert len(told["probes"]) == len(asked) > 5
    assert told["beside"] == "most reviewers"
    whole = next(each for each in told["agreements"] if each["kind"] == "all")
    assert whole["accuracy"]["mean"] == pytest.approx(
        np.mean([label.verdict == "partly" for label in asked])
    )
    kinds = {each["kind"] for each in told["agreements"]}
    assert kinds <= {"all", "all reviewers agree", "some disagree", "one reviewer"}
