"""Tables of measured figures: what is kept of runs, and that pages show it and nothing else."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workup.core.crossed import Crossed
from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.runs import Run
from workup.runs.words import plus_minus
from workup.studies import claims
from workup.studies.base.result import Result, Section, sheet
from workup.studies.claims import meaning
from workup.studies.claims.decided import judged

ROOT = Path(__file__).parents[1]
MEASURED = re.compile(r"(?<![\w/.{(-])[+−]?\.\d\d\b(?!\d)|[±] ?\.?\d")
"""How a measured share is written: ".57", "+.05", "± .03"."""

CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)

EXPLAINED = {  # pages that explain how an interval is computed and read, with examples
    "docs/evaluation.md",
    "docs/start.md",
    "docs/review.md",
    "src/workup/methods/promed/README.md",  # a default
}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return import_module("docs.site.results")


def test_pages_show_what_was_kept(results: ModuleType) -> None:
    for page, text in results.written().items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: type make results"


def test_every_paper_has_headlines_on_the_first_page(results: ModuleType) -> None:
    text = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    for name in claims.names():
        headlines = [each for each in claims.read(name).claims if each.headline]
        assert 1 <= len(headlines) <= 2, name
        assert all(f"| {each.says} ({each.place}) |" in text for each in headlines), name
    assert text.count("| seeds | adjusted p |\n") == 1


def test_the_words_of_an_arm_stand_behind_those_of_all(results: ModuleType) -> None:
    """Typed as the page says, an arm is what its own command trains."""
    for found in results.claimed().values():
        for setup in found["setups"].values():
            common, own = results._typed(setup["commands"])
            for arm, typed in setup["commands"].items():
                method, words = own[arm]
                shown = shlex.split(common.replace("METHOD", method).removesuffix("WORDS") + words)
                assert {*shown} == {*shlex.split(typed)}, "a repeated word stands once"
                assert meaning(shown[2:]) == meaning(shlex.split(typed)[2:])


def test_what_all_arms_share_is_told_once_and_an_option_stays_with_its_value(
    results: ModuleType,
) -> None:
    """`--cases` without what follows it would take the next word for a source."""
    told, own = results._typed(
        {
            "a": "workup train craft --cases clinic:s steps=3 lr=0.1 --seeds 3",
            "b": "workup train outcome --cases clinic:m steps=3 lr=0.1 --seeds 3",
        }
    )
    assert told == "workup train METHOD steps=3 lr=0.1 --seeds 3 WORDS"
    assert own == {"a": ("craft", "--cases clinic:s"), "b": ("outcome", "--cases clinic:m")}


def test_a_bar_does_not_divide_a_cell(results: ModuleType) -> None:
    assert results._markdown(["a|b", "c"], [["d", "e|f"]]).splitlines() == [
        r"| a\|b | c |",
        "| --- | ---: |",
        r"| d | e\|f |",
    ]


def test_kept_results_name_no_folder_of_a_machine() -> None:
    for file in (ROOT / "results").glob("*.json"):
        assert not re.search(r"(?<![\w.])/(tmp|home|work|root)\b", file.read_text()), file


def test_no_other_page_types_a_measured_figure() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/adapters/*.md")]
    pages += [*ROOT.glob("docs/methods/*.md"), *ROOT.glob("src/**/README.md")]
    found = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in pages
        if str(page.relative_to(ROOT)) not in EXPLAINED
        for line in CODE.sub("", page.read_text(encoding="utf-8")).splitlines()
        if MEASURED.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("text", [".57 ± .03", "by .05 to .10", "+.03", "**.77**", "9.0 ± 0.2"])
def test_a_typed_figure_is_seen(text: str) -> None:
    assert MEASURED.search(text)


@pytest.mark.parametrize("text", ["lr=.003", "version 3.11.7", "a.10", "0.57", "p.25"])
def test_what_is_no_figure_is_not(text: str) -> None:
    assert not MEASURED.search(text)


def estimate(mean: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean - 0.03, "high": mean + 0.03, "n": 100, "missing": 0}


KEPT = {
    "seeds": [0, 1],
    "made": {"ended": "2026-01-02T03:04", "processor": "A", "commit": "abcdef0123456"},
    "doctors": {
        "trained": {"cases": 1000, "accuracy": estimate(0.66), "questions": estimate(6.5)},
        "random doctor": {"cases": 1000, "accuracy": estimate(0.5)},
    },
}
CLAIMS = {
    "paper": "Toy",
    "scale": "tiny",
    "command": "workup claims toy",
    "made": KEPT["made"],
    "counts": {"held": 2, "undecided": 1, "not run": 1},
    "claims": [],
    "setups": {},
    "notes": ["a note"],
}


@pytest.fixture
def kept(results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two results."""
    (tmp_path / "results").mkdir()
    (tmp_path / "docs/results").mkdir(parents=True)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "KEPT", tmp_path / "results")
    (tmp_path / "results/runs.json").write_text(json.dumps(KEPT))
    (tmp_path / "results/claims-toy.json").write_text(json.dumps(CLAIMS))
    return tmp_path


def test_a_mark_becomes_a_table_and_the_text_around_stays(results: ModuleType, kept: Path) -> None:
    page = kept / "README.md"
    page.write_text(
        "Before\n\n<!-- result runs doctors accuracy questions -->\nold\n<!-- end of result -->\n"
        "\nBetween\n\n<!-- result claims -->\n<!-- end of result -->\nAfter\n"
    )
    text = results.written()[page]
    assert text.startswith("Before\n\n<!-- result runs doctors accuracy questions -->\n|")
    assert "old" not in text
    assert "| **trained** | **.66 ±.03** | **6.5** |" in text
    assert "| random doctor | .50 ±.03 | – |" in text
    assert "1,000 patients, seeds 0, 1; measured 2026-01-02 on A, commit abcdef012." in text
    assert (
        "| [Toy](docs/results/claims-toy.md) | tiny | 4 | 2 | 0 | 0 | 0 | 1 | 0 | 1 | 0 |" in text
    )
    assert text.endswith("<!-- end of result -->\nAfter\n")
    page.write_text(text)
    assert results.written()[page] == text


STUDY = {
    "kind": "study",
    "command": "workup study toy",
    "made": KEPT["made"],
    "tables": [
        {
            "title": "By dose",
            "headings": ["policy", "dose", "n", "accuracy"],
            "rows": [["a", "0", "60", "0.98"], ["a", "1", "60", "0.83"], ["b", "0", "60", "0.97"]],
            "words": 2,
        }
    ],
}


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            "toy table 1",
            ["| policy | dose | n | accuracy |", "| --- | --- | ---: | ---: |"],
        ),
        (
            "toy+toy table 1 columns 1 4",
            ["| policy | accuracy |", "| b | 0.97 |\n| a | 0.98 |"],
        ),
        (
            "toy table 1 wide 4",
            ["| accuracy of | 0 | 1 |", "| a | 0.98 | 0.83 |\n| b | 0.97 | – |"],
        ),
    ],
)
def test_a_table_of_a_study(words: str, lines: list[str], results: ModuleType, kept: Path) -> None:
    (kept / "results/toy.json").write_text(json.dumps(STUDY))
    (kept / "README.md").write_text(f"<!-- result {words} -->\n<!-- end of result -->\n")
    text = results.written()[kept / "README.md"]
    assert all(line in text for line in lines)
    assert "`workup study toy`, measured 2026-01-02 on A, commit abcdef012." in text


@dataclass(frozen=True)
class Toy(Result):
    title = "A toy"
    source: str

    def sections(self) -> list[Section]:
        columns = {"policy": lambda row: row, "share": lambda row: Estimate(0.5, 0.2, 0.8, 9)}
        return [Section("One", [sheet("All", ["a"], columns)])]


def test_what_is_kept_of_a_study_is_what_it_printed(results: ModuleType, tmp_path: Path) -> None:
    found = Toy("a toy")
    found.write(tmp_path, "toy", "?", "workup audit toy")
    kept = results.take("toy", [tmp_path / "toy.json"])
    assert kept["command"] == "workup audit toy"
    assert kept["made"]["workup"]
    (table,) = kept["tables"]
    assert (table["headings"], table["words"]) == (["policy", "share"], 1)
    assert table["rows"] == [["a", "0.50 [0.20, 0.80]"]]
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UserError, match=r"other\.json is no result of a study"):
        results.take("toy", [tmp_path / "other.json"])


PAPERS = ["cmig", "craft", "evidence-seeking", "medr3", "promed"]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_verdict_follows_from_its_figure(paper: str) -> None:
    """By the rules of today, which may be younger than the figure."""
    found = json.loads((ROOT / f"results/claims-{paper}-tiny.json").read_text())
    known = {claim.id: claim for claim in claims.read(paper).claims}
    for row in found["claims"]:
        unmoved = "has moved" in row["reason"]  # only the runs tell
        if row["difference"] and not unmoved:
            gap = Crossed.from_json(row["difference"])
            told = judged(known[row["id"]], gap, row["ours"], row["theirs"])
            assert (row["verdict"], row["reason"]) == told, row["id"]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_result_added_to_itself_is_the_same(paper: str, results: ModuleType) -> None:
    found = json.loads((ROOT / f"results/claims-{paper}-tiny.json").read_text())
    both = results.added(found, found)
    assert both["counts"] == found["counts"]
    assert both["notes"] == found["notes"]
    assert both["setups"] == found["setups"]
    for ours, theirs in zip(both["claims"], found["claims"], strict=True):
        assert ours == theirs | {"adjusted_p": pytest.approx(theirs["adjusted_p"], abs=1e-9)}


def decided_once() -> dict[str, Any]:
    """ProMed's result without the claims that were decided again."""
    found = json.loads((ROOT / "results/claims-promed-tiny.json").read_text())
    claims = [each for each in found["claims"] if "before" not in each]
    names = {each.get("setup") for each in claims}
    setups = {name: each for name, each in found["setups"].items() if name in names}
    same = {key: value for key, value in found.items() if key != "later"}
    return same | {"claims": claims, "setups": setups}


def test_a_claim_decided_later_takes_its_place(results: ModuleType) -> None:
    found = decided_once()
    first, second = (each for each in found["claims"][:2])
    held = first | {"difference": second["difference"], "verdict": "held", "says": "Pay helps"}
    alone = [held, *(each | {"difference": None} for each in found["claims"][1:])]
    chosen = f"workup claims promed --only {first['id']}"
    later = found | {"claims": alone, "command": chosen, "setups": {}}
    both = results.added(later, found)
    assert both["claims"][0]["difference"] == second["difference"]
    name = first["setup"]
    other = {name: found["setups"][name] | {"about": "Other words."}}
    again = results.added(later | {"setups": other}, found)
    assert again["setups"] == found["setups"] | {f"{name}, later": other[name]}
    assert again["claims"][0]["setup"] == f"{name}, later"
    assert f"by the arms of *{name}, later* below: Pay helps." in results.claims_page(again)
    assert [each["verdict"] for each in both["claims"][1:]] == [
        each["verdict"] for each in found["claims"][1:]
    ]
    page = results.claims_page(both)
    assert "Decided later, measured " in page
    assert "Pay helps." in page
    with pytest.raises(UserError, match="none is decided"):
        results.added(found | {"claims": alone[1:]}, found)


def test_of_a_folder_the_chosen_claims_are_added_and_those_that_a_check_left_out(
    results: ModuleType,
) -> None:
    found = json.loads((ROOT / "results/claims-cmig-tiny.json").read_text())
    first, second, *others = found["claims"]
    nothing = {"difference": None, "verdict": "could not show it", "reason": "it pays too little"}
    left_out = [first | nothing, second | nothing, *others]
    command = f"workup claims cmig --only {first['id']}"
    both = results.added(found | {"claims": left_out, "command": command}, found)
    assert both["claims"][0]["reason"] == "it pays too little"
    assert both["claims"][0]["before"][-1]["verdict"] == first["verdict"]
    told = [each["verdict"] for each in both["claims"][1:]]
    assert told == [each["verdict"] for each in found["claims"][1:]], "not chosen"
    assert f"by a check: {first['says']}." in results.claims_page(both)
    stale = found["setups"] | {"stale": {"about": "", "commands": {}, "arms": {}}}
    again = results.added(found, found | {"setups": stale})
    assert "stale" not in again["setups"], "no claim's figure is of it"


def decided_again(results: ModuleType, found: dict[str, Any], verdict: str) -> dict[str, Any]:
    """The result with another verdict on its first claim, by other runs of its set-up."""
    first, *others = found["claims"]
    name = first["setup"].partition(",")[0]
    row = first | {"verdict": verdict, "setup": name}
    setups = {name: found["setups"][name] | {"about": verdict}}
    made = {"started": "2027-01-02", "processor": "A", "commit": verdict}
    claimed = [row, *(each | {"difference": None} for each in others)]
    new = found | {"claims": claimed, "setups": setups, "made": made}
    return dict(results.added(new, found))


def test_replaced_verdicts_are_kept_and_told_the_oldest_first(results: ModuleType) -> None:
    found = decided_once()
    first = found["claims"][0]
    once = decided_again(results, found, "undecided")
    twice = decided_again(results, once, "refuted")
    assert "before" not in first
    assert all("before" not in each for each in twice["claims"][1:])
    kept = twice["claims"][0]["before"]
    assert [each["verdict"] for each in kept] == [first["verdict"], "undecided"]
    assert [each["setup"] for each in kept] == ["clinic", "clinic, later"]
    assert [each["made"]["commit"] for each in kept] == [found["made"]["commit"], "undecided"]
    assert all(each["difference"] == first["difference"] for each in kept)
    page = results.claims_page(twice)
    told = page.partition("Decided before by other runs:")[2]
    assert re.search(r"- by the set-up \*clinic\*, measured .*:\n  - .*\*\*held\*\*", told)
    assert "- by the set-up *clinic, later*, measured 2027-01-02 on A, commit undecided:" in told
    assert f"{first['compared']} +.63 ±.03, 8 seeds" in told
    assert page.count("Decided later") == 1, "the second command decided what the first one had"


def test_what_was_not_run_was_no_verdict(results: ModuleType) -> None:
    found = json.loads((ROOT / "results/claims-promed-tiny.json").read_text())
    first, *others = found["claims"]
    waiting = found | {"claims": [first | {"verdict": "not run", "difference": None}, *others]}
    assert "before" not in results.added(found, waiting)["claims"][0]
    missing = first | {"verdict": "could not show it", "difference": None, "reason": "too little"}
    both = results.added(found, found | {"claims": [missing, *others]})
    assert both["claims"][0]["before"][0]["reason"] == "too little"
    assert "**could not show it**, too little" in results.claims_page(both)


def seeded(claim: dict[str, Any], count: int) -> dict[str, Any]:
    """The row of a claim as if it had so many seeds."""
    gap = claim["difference"] | {"seeds": count}
    return claim | {"difference": gap, "by_seed": dict.fromkeys(map(str, range(count)), 0.1)}


def test_more_seeds_than_other_claims_of_the_set_up_are_marked(results: ModuleType) -> None:
    found = decided_once()
    page = results.claims_page(found)
    assert "(others" not in page, "clinic's claims have 8 seeds and loud-weights' one has 5"
    assert "column of seeds" not in page
    assert "workup claims promed --seeds 8 --only clinic\n" in page
    assert "workup claims promed --seeds 5 --only shapley-matters-loud\n" in page
    one, two, *others = found["claims"]
    page = results.claims_page(found | {"claims": [seeded(one, 12), seeded(two, 10), *others]})
    assert "| 12 (others 8 and 10) |" in page
    assert "| 10 (others 8) |" in page
    assert "*Others* in the column of seeds are claims of the same set-up" in page
    assert "workup claims promed --seeds 12 --only above-direct\n" in page
    assert "workup claims promed --seeds 10 --only stage-one-above-sft\n" in page
    assert "--only clinic" not in page, "it would give all claims of the set-up these seeds"


def test_settings_scale_and_first_seed_stay_in_the_command(results: ModuleType) -> None:
    found = json.loads((ROOT / "results/claims-evidence-seeking-tiny.json").read_text())
    one = found["claims"][0]
    small = {"claims": [one], "scale": "small", "command": "workup claims x steps=9 --seeds 3 lr=1"}
    assert results._commands(found | small) == (
        "workup claims evidence-seeking steps=9 lr=1 --scale small --first 11 --seeds 5 "
        "--only results-help"
    )


def test_set_ups_that_differ_from_todays_are_told(
    results: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another seed and another text about a set-up train the same."""
    found = json.loads((ROOT / "results/claims-promed-tiny.json").read_text())
    paper = claims.read("promed")
    loud = found["setups"]["loud-weights"]
    assert results._since(found) == []
    assert (
        results._since(
            found | {"setups": found["setups"] | {"loud-weights": loud | {"about": "x"}}}
        )
        == []
    )
    typed = {arm: f"{words} steps=9" for arm, words in loud["commands"].items()}
    setups = found["setups"] | {"loud-weights": loud | {"commands": typed}}
    (told,) = results._since(found | {"setups": setups})
    assert told.startswith("- The set-up *loud-weights* has changed since. Today's command does ")
    assert told.endswith(f"It decided: {paper.chosen(['shapley-matters-loud'])[0].says}.")
    row = next(each for each in found["claims"] if each["id"] == "shapley-matters-loud")
    without = {key: setup for key, setup in found["setups"].items() if key != "loud-weights"}
    waiting = row | {"verdict": "not run", "difference": None}
    (told,) = results._since(found | {"setups": without, "claims": [waiting]})
    assert "*loud-weights* has come to this scale since. These claims have no runs yet: " in told
    fewer = [each for each in paper.claims if each.id != "shapley-matters-loud"]
    changed = paper.model_copy(
        update={
            "claims": tuple(fewer),
            "setups": {key: one for key, one in paper.setups.items() if key != "loud-weights"},
        }
    )
    monkeypatch.setattr(results, "_today", lambda: {"ProMed": ("promed", changed)})
    (told,) = results._since(found)
    assert told.startswith("- The set-up *loud-weights* has gone since.")


def test_without_claims_the_page_says_so(results: ModuleType, kept: Path) -> None:
    (kept / "results/claims-toy.json").unlink()
    (kept / "README.md").write_text("<!-- result claims -->\n<!-- end of result -->\n")
    assert "No paper has been decided yet." in results.written()[kept / "README.md"]


def test_a_paper_has_a_page_of_its_own(results: ModuleType, kept: Path) -> None:
    (kept / "README.md").write_text("")
    text = results.written()[kept / "docs/results/claims-toy.md"]
    assert text.startswith("# Toy: its claims")
    assert "workup claims toy" in text


@pytest.mark.parametrize("words", ["nothing doctors accuracy", "runs", "runs tables accuracy"])
def test_a_wrong_mark_is_told(words: str, results: ModuleType, kept: Path) -> None:
    (kept / "README.md").write_text(f"<!-- result {words} -->\n<!-- end of result -->\n")
    with pytest.raises(UserError, match=r"README\.md: 'result"):
        results.written()


@pytest.mark.long
def test_runs_are_kept_whole_and_only_with_their_like(
    results: ModuleType, tmp_path: Path, run_folders: list[Path]
) -> None:
    found = results.take("toy", run_folders[:2])
    assert found["seeds"] == [0, 1]
    alone = results.take("toy", run_folders[:1])
    with Run.open(run_folders[0]) as run:
        assert alone["doctors"] == (run.summary or {})["doctors"]
    assert set(found["doctors"]) == set(alone["doctors"])
    assert plus_minus(
        "accuracy", results.Crossed.from_json(found["doctors"]["trained"]["accuracy"])
    )
    with pytest.raises(UserError, match="small letters"):
        results.take("To y", run_folders)
    with pytest.raises(UserError, match="more than their seed"):
        results.take("toy", [run_folders[0], run_folders[2]])


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory: pytest.TempPathFactory, shared_cache: None) -> list[Path]:
    """Two runs that differ by their seed, and one with another rate."""
    import workup

    folder = tmp_path_factory.mktemp("runs")
    usual = {
        **{"cases": "clinic:xs", "max_tokens": 8, "steps": 1, "sft": {"steps": 2}},
        **{"batch": 2, "group": 2, "evaluation": {"cases": 6}, "quiet": True},
    }
    changes = ({"seed": 0}, {"seed": 1}, {"seed": 0, "lr": 1e-4})
    for number, change in enumerate(changes):
        workup.train("craft", out=folder / str(number), **{**usual, **change})
    return [folder / str(number) for number in range(3)]
