"""A metric declares itself: one new file is a measure that shows everywhere, by its own words."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from handmade import Script, play
from rich.console import Console
from serving import serving

from workup.cases import open_source
from workup.cli import api
from workup.core.episode import Ending
from workup.core.errors import UserError
from workup.environments.consultation import Settings, open
from workup.interop import exports
from workup.interop.exports import material
from workup.interop.exports.writing import export
from workup.metrics import extra, known, measures
from workup.metrics.metric import ANY, COUNT, LAST, Metric, Where
from workup.report.compare import compare, figures
from workup.report.live import print_result
from workup.report.page import build
from workup.runs import Run
from workup.viewer import opened, pages
from workup.viewer.app import render

SENSE = "words that the doctor wrote in the last turn"
MEANING = f"{SENSE}; undefined without a turn"
CAVEAT = "its last turns are long"
NEW = f'''
from workup.metrics.metric import COUNT, Caveat, Metric

METRICS = (
    Metric(
        "wordiness", "{SENSE}", "last words", undefined="without a turn", range=COUNT, digits=1,
        caveat=Caveat(0.25, "{CAVEAT}"),
    ),
)


def open(option, cases, models):
    async def measure(episode, correct):
        texts = [turn.completion.text for turn in episode.turns]
        return {{"wordiness": float(len(texts[-1].split())) if texts else None}}

    return measure
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose files are measures, as those of `workup.metrics.extra` are."""
    made = tmp_path / "measures"
    made.mkdir()
    monkeypatch.setattr(extra, "__path__", [*extra.__path__, str(made)])
    _forget()
    yield made
    for file in made.glob("*.py"):
        sys.modules.pop(f"{extra.__name__}.{file.stem}", None)
    _forget()


def _forget() -> None:
    known.metric.cache_clear()
    known._further.cache_clear()


def text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


@pytest.fixture
def runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Two evaluations, of a model that writes two words and of one that writes five."""
    (folder / "wordiness.py").write_text(NEW)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    said = {
        "short": "so <diagnose>flu</diagnose>",
        "long": "well then <diagnose>a common cold</diagnose>",
    }
    with serving(lambda body: said[body["model"]]) as server:
        endpoints = {name: {"base_url": server.url, "model": name} for name in said}
        return [
            api.evaluate(
                f"endpoint:{name}",
                cases="clinic:xs",
                out=tmp_path / name,
                endpoints=endpoints,
                quiet=True,
                evaluation={"cases": 4, "measures": ["wordiness"]},
            )
            for name in said
        ]


def test_one_new_file_is_a_measure_that_shows_everywhere(runs: list[Run], tmp_path: Path) -> None:
    run = runs[1]
    found = run.summary["doctors"]["long"]["wordiness"]
    assert (found["mean"], found["n"]) == (5, 4), "the interval of a share would end at 1"

    stream = io.StringIO()
    print_result(run.summary, Console(file=stream, width=200))
    assert "last words" in stream.getvalue()
    assert " 5.0 " in stream.getvalue()
    assert f"long: {CAVEAT}" in stream.getvalue()

    page = build(run).read_text()
    assert f'<abbr title="{MEANING}">last words</abbr>' in page
    assert f"last words {MEANING}" in text(page), "in the legend"
    assert f"long: {CAVEAT}; 4 episodes." in page

    stream, html = io.StringIO(), tmp_path / "both.html"
    compare(runs, html, Console(file=stream, width=200), measure="wordiness")
    ((difference, *_),) = re.findall(r"last words\s+(\S+)\s+(\S+ to \S+|–)", stream.getvalue())
    assert difference == "+3.0"
    assert stream.getvalue().count("last words") == 3, "the results, the measure, the differences"
    assert f'<abbr title="{MEANING}">last words</abbr>' in html.read_text()
    groups = figures(runs)["groups"]
    assert groups["short"]["wordiness"]["mean"] == 2
    assert groups["long"]["lead"]["wordiness"]["mean"] == 3


def test_viewer_and_exports_ask_it_too(runs: list[Run], tmp_path: Path) -> None:
    run = runs[1]
    shown = opened([run.path], restricted=False)
    shown["long"].columns.catch_up(60)
    overview = text(render("run.html", **pages.overview(shown["long"])))
    assert f"last words {MEANING}" in overview
    assert CAVEAT in overview
    listed = pages.episodes(shown["long"], {"sort": "wordiness", "order": "down", "doctor": "long"})
    assert ("wordiness", "last words") in listed["sorts"]
    assert [row["measure"] for row in listed["rows"]] == ["5.0"] * 4
    page = render("episodes.html", **listed)
    assert f'<th scope="col"><abbr title="{MEANING}">last words</abbr></th>' in page
    key = dict(parse_qsl(urlsplit(listed["rows"][0]["href"]).query))["episode"]
    page = render("episode.html", **pages.episode(shown["long"], {"episode": key}))
    assert f'<abbr title="{MEANING}">last words</abbr>' in page

    for name in ("jsonl", "parquet"):
        chosen = material.chosen(run.path, ["doctor=long"])
        made = export(chosen, exports.load(name), tmp_path / name, restricted=False, command="")
        card = (made.folder / "README.md").read_text()
        assert f"| `wordiness` | {MEANING} |" in card
    lines = (tmp_path / "jsonl" / "episodes.jsonl").read_text().splitlines()
    measured = [json.loads(line)["measures"] for line in lines]
    assert [{"name": "wordiness", "value": 5} in each for each in measured] == [True] * 4


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ('METRICS = (Metric("words", "how many"),)', "finds 'wordiness', which METRICS does not"),
        ("", "has no METRICS"),
    ],
)
def test_a_value_that_is_not_declared_is_refused(folder: Path, declared: str, told: str) -> None:
    head, _, rest = NEW.partition("METRICS = (")
    module = folder / "silent.py"
    module.write_text(head + declared + "\n\n\n" + rest[rest.index("def open") :])
    source = open_source("clinic:xs")
    episode = play(Script("<diagnose>flu</diagnose>"), open(source, Settings()), source.test[0])

    def taken() -> None:
        (measure,) = extra.open_measures(["silent"], source.test)
        asyncio.run(measure(episode, False))  # type: ignore[arg-type]

    with pytest.raises(UserError, match=told) as error:
        taken()
    assert str(module) in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("async def measure", "def measure", "is a plain function; write `async def`"),
        ("float(len(texts[-1].split()))", '"many"', "'wordiness' is a str; give a number"),
        ("def open(option, cases, models)", "def open(option)", r"write open\(option, cases, mod"),
        ("def open(", "def opened(", r"write open\(option, cases, models\)"),
        ('"wordiness"', '"questions"', "declares 'questions', which every evaluation has"),
    ],
)
def test_a_measure_that_would_break_an_evaluation_is_refused(
    folder: Path, old: str, new: str, told: str
) -> None:
    (folder / "broken.py").write_text(NEW.replace(old, new))
    source = open_source("clinic:xs")
    episode = play(Script("<diagnose>flu</diagnose>"), open(source, Settings()), source.test[0])

    def taken() -> None:
        (measure,) = extra.open_measures(["broken"], source.test)
        asyncio.run(measure(episode, False))  # type: ignore[arg-type]

    with pytest.raises(UserError, match=told) as error:
        taken()
    assert "broken.py: " in str(error.value)


def test_two_measures_that_find_figures_of_one_name_are_refused(folder: Path) -> None:
    (folder / "first.py").write_text(NEW)
    (folder / "second.py").write_text(NEW)
    assert known.metric("wordiness").range == COUNT, "declared alike"
    (folder / "second.py").write_text(
        NEW.replace("range=COUNT", "range=ANY").replace("COUNT,", "ANY,")
    )
    sys.modules.pop(f"{extra.__name__}.second", None)
    _forget()
    with pytest.raises(UserError, match="'second' declares 'wordiness', which another one does"):
        known.metric("wordiness")


def every() -> list[Metric]:
    return [
        *known._everyday().values(),
        *(each for name in extra.names() for each in extra.declared(name)),
    ]


def test_no_two_metrics_have_one_name_or_one_heading() -> None:
    found = {each.name: each for each in every()}
    assert all(found[each.name] == each for each in every())
    pages = [each for each in found.values() if each.where & (Where.PAGES | Where.TERMINAL)]
    assert len({each.title for each in pages}) == len(pages)
    ranks = [each.rank for each in pages]
    assert LAST not in ranks
    assert len(set(ranks)) == len(ranks), "the order of the columns is told"


@pytest.mark.parametrize("each", every(), ids=lambda each: each.name)
def test_every_metric_says_what_it_is_in_one_sentence(each: Metric) -> None:
    assert (each.sense and each.sense[0].islower()) or each.sense.startswith(("KG", "BLEU", "F1"))
    assert not each.sense.endswith(".")
    low, high = each.range
    assert low < high
    assert not each.undefined or each.undefined.split()[0] in ("where", "elsewhere", "of")
    assert each.title


def test_what_an_episode_measures_is_declared() -> None:
    source = open_source("clinic:xs")
    episode = play(Script("<ask>fever</ask>", "x"), open(source, Settings()), source.test[0])
    taken = measures.measure(episode, False, open(source, Settings()))  # type: ignore[arg-type]
    named = {each.name for each in measures.METRICS}
    assert set(taken) <= named
    assert {ending.name.lower() for ending in Ending} <= named


def test_a_name_that_nobody_declares_stands_on_pages_as_it_is() -> None:
    unknown = known.metric("found_by_a_reward")
    assert (unknown.title, unknown.meaning, unknown.range) == ("found_by_a_reward", "", ANY)
    assert known.shown(["found_by_a_reward", "accuracy"], Where.PAGES) == [
        *("accuracy", "found_by_a_reward")
    ]
    assert known.shown(["found_by_a_reward"], Where.TERMINAL) == []


def test_each_judges_own_figures_stand_behind_their_mean() -> None:
    names = ["hacks", "diff_acc by endpoint:b", "diff_acc by endpoint:a", "accuracy", "diff_acc"]
    assert known.shown(names, Where.PAGES) == [
        *("accuracy", "diff_acc", "diff_acc by endpoint:b", "diff_acc by endpoint:a", "hacks")
    ]
    assert known.metric("diff_acc by endpoint:a").title == "DiffAcc by endpoint:a"
