"""Where the right passage stood: by hand, by a second reading of real episodes, and in a report."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from handmade import Script, play
from test_extra_measures import ended, search, taken

from workup.cases import open_source
from workup.cli import api
from workup.core.case import Case, Truth
from workup.metrics.documents import contains
from workup.metrics.extra.places import measure
from workup.runs.settings import world as opened

RASH = Case("1", "A patient.", Truth("Measles", aliases=("rubeola",)))
RIGHT, WRONG, ALIAS = ("Measles", "Fever."), ("Mumps", "Fever."), ("", "Also called rubeola.")
UNDEFINED: dict[str, float | None] = dict.fromkeys(
    (
        *("passages", "shown_first", "right_at_1", "right_at_2", "right_at_3", "right_later"),
        *("right_alone", "right_unseen", "answer_read"),
    )
)


@pytest.mark.parametrize(
    ("rounds", "answer", "where", "first", "correct", "read"),
    [
        ([(RIGHT, WRONG)], "Measles", "at_1", 1, 1, 1),
        ([(WRONG, ALIAS)], "Mumps", "at_2", 0, 0, 1),
        ([(WRONG, WRONG, RIGHT)], "Gout", "at_3", 0, 0, 0),
        ([(WRONG,) * 3 + (RIGHT,)], "Measles", "later", 0, 1, 1),
        ([(WRONG,)], "Measles", "unseen", None, 1, 0),
        ([(WRONG, WRONG)], "Mumps", "unseen", 0, 0, 1),
        ([(RIGHT,)], "Measles", "alone", None, 1, 1),
        # The last search that found it decides, and the first of two right passages.
        ([(RIGHT,), (WRONG, RIGHT)], "Measles", "at_2", 0, 1, 1),
        ([(RIGHT, WRONG), (WRONG,)], "Mumps", "at_1", 1, 0, 1),
        ([(ALIAS, RIGHT)], "rubeola", "at_1", 1, 1, 1),
        ([(WRONG, RIGHT)], None, "at_2", 0, 0, None),
        ([(WRONG, RIGHT), ()], "Measles", "at_2", 0, 1, 1),
    ],
)
def test_by_hand(
    rounds: list[tuple[tuple[str, str], ...]],
    answer: str | None,
    where: str,
    first: float | None,
    correct: float,
    read: float | None,
) -> None:
    episode = ended(RASH, answer, *(search(*each) for each in rounds))
    found = [each for each in rounds if RIGHT in each or ALIAS in each] or rounds
    assert taken("places", episode, answer in ("Measles", "rubeola")) == {
        **UNDEFINED,
        **{"passages": len(found[-1]), "shown_first": first, "answer_read": read},
        f"right_{where}": correct,
    }


@pytest.mark.parametrize("rounds", [[], [()]])
def test_without_passages_all_is_undefined(rounds: list[tuple[()]]) -> None:
    """Also where a search was answered with "Nothing was found."."""
    assert taken("places", ended(RASH, "Measles", *(search() for _ in rounds)), True) == UNDEFINED


def test_documents_of_an_interleaved_thought_count_too() -> None:
    """The environment `reasoning` shows passages in another tag."""
    world = open_source("clinic:xs#renamed")
    reasoning = opened({"name": "reasoning", "passages": 3}, {}).open(world)
    case = world.test[0]
    said = (f"<think>Which one? <search>{case.truth.diagnosis}</search>", "</think>nothing")
    episode = play(Script(*said), reasoning, case)
    shown = [passage.whole for passage in episode.turns[0].observation.passages or ()]
    assert shown
    place = [contains([text], case) for text in shown].index(True) + 1
    found = taken("places", episode, False)
    assert found["passages"] == len(shown)
    assert found[f"right_at_{place}" if len(shown) > 1 else "right_alone"] == 0.0


def test_words_are_whole_and_passages_apart() -> None:
    episode = ended(RASH, "Measles", search(("", "No measleslike rash"), ("Measles", "A rash")))
    assert taken("places", episode, True)["right_at_2"] == 1.0


@pytest.mark.long
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_random_searcher_in_the_renamed_clinic(tmp_path: Path, shuffled: bool) -> None:
    """Shares add up to accuracy, and shuffled passages have the right one first in a third."""
    world = {"name": "library", "told": "record", "subqueries": 0, "max_turns": 2, "queried": 0}
    run = api.evaluate(
        "random searcher",
        cases="clinic:s#renamed",
        out=tmp_path / "run",
        quiet=True,
        environment={**world, "shuffled": shuffled},
        evaluation={"cases": 200, "measures": ["places"]},
    )
    found = run.summary["doctors"]["random searcher"]
    places = tuple(name for name in UNDEFINED if name.startswith("right_"))
    counted = {name: found[name]["n"] for name in places}
    assert sum(counted.values()) == 200
    assert counted["right_later"] == 0
    right = sum(found[name]["mean"] * count for name, count in counted.items() if count)
    assert right == pytest.approx(200 * found["accuracy"]["mean"])
    several = found["shown_first"]["n"]
    assert found["shown_first"]["mean"] == pytest.approx(counted["right_at_1"] / several)
    assert found["doc_hit"]["mean"] == pytest.approx(1 - counted["right_unseen"] / 200)
    low, high = (0.25, 0.42) if shuffled else (0.78, 0.94)
    assert low < found["shown_first"]["mean"] < high
    assert found["answer_read"]["mean"] == 1.0, "exact reasoning names what it read"
    for record in run.episodes(doctor="random searcher"):
        again = asyncio.run(measure(record.episode, bool(record.correct)))
        assert {name: record.measures[name] for name in again} == again
    assert "first is right" in run.report.read_text()
