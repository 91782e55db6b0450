"""Measures by name: each on episodes made by hand, and in a whole evaluation."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest
from handmade import Script
from serving import fault, serving
from studying import done, refused, typed

from workup.cases import open_source
from workup.cases.jsonl import line_of
from workup.cli import api
from workup.core.case import Case, Passage, Truth
from workup.core.episode import Action, Completion, Ending, Episode, Message, Observation, Turn
from workup.core.errors import RolloutError, UserError
from workup.environments.library import Library
from workup.methods.cmig.searching import icd_tree
from workup.metrics.documents import contains, doc_hit
from workup.metrics.extra import names, open_measures, take
from workup.metrics.extra.emb import Embedding
from workup.metrics.extra.kg import KnowledgeGraph
from workup.metrics.icd_distance import load_tree
from workup.metrics.naming import Coder
from workup.runs import Run
from workup.runs.settings import world


def case(diagnosis: str, *codes: str, **rest: Any) -> Case:
    return Case("1", "A patient.", Truth(diagnosis, codes=codes, **rest))


def ended(case: Case, answer: str | None, *turns: Turn) -> Episode:
    last = (
        []
        if answer is None
        else [Turn((), Completion(answer), Action("diagnose", (answer,)), Observation(done=True))]
    )
    return Episode(
        case,
        (Message("user", "A patient."),),
        (*turns, *last),
        Ending.DIAGNOSED if last else Ending.OUT_OF_TURNS,
    )


def taken(spec: str, episode: Episode, correct: bool) -> dict[str, float | None]:
    _, values = asyncio.run(take(open_measures([spec], [episode.case]), episode, correct))
    return values


@pytest.mark.parametrize(
    ("answer", "correct", "expected"),
    [
        (
            "asthma, mild intermittent (J45.2)",
            False,
            (0.6, 0.3, 0.0),
        ),  # J45.3 is a sibling: two steps
        ("J45.3", True, (1.0, 1.0, 0.0)),
        ("in words that nothing maps, yet right", True, (1.0, 1.0, 0.0)),  # EM = 1 implies KG = 1
        ("in words that nothing maps", False, (0.0, 0.0, 1.0)),
        ("cholera", False, (0.0, 0.0, 0.0)),
        (None, False, (0.0, 0.0, None)),
    ],
)
def test_kg(answer: str | None, correct: bool, expected: tuple[float, float, float | None]) -> None:
    found = taken("kg", ended(case("Mild persistent asthma", "J45.3"), answer), correct)
    assert (found["kg"], found["em_kg"], found["unmapped"]) == pytest.approx(expected)
    assert found["truth_unmapped"] == 0


def test_kg_by_the_whos_tree_and_by_the_truths_name() -> None:
    persistent = ended(case("Mild persistent asthma", "J45.3"), "J45.2")
    assert taken("kg:who", persistent, False)["kg"] == 1.0  # the WHO knows neither: both are J45
    assert taken("kg", ended(case("Crohn disease"), "K50.0"), False)["kg"] == pytest.approx(0.8)
    nameless = taken("kg", ended(case("zzqx"), "asthma"), False)
    assert (nameless["kg"], nameless["truth_unmapped"]) == (0.0, 1.0)
    assert taken("kg:who", ended(case("zzqx", "A00"), "zzqy"), False)["unmapped"] == 1.0
    several = ended(case("two diseases", "A00", "K50.9"), "K50.9")
    assert taken("kg", several, False)["kg"] == 1.0


def test_kg_with_names_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "names.csv"
    file.write_text("zzqy,J45.2\n")
    wheezing = ended(case("Mild persistent asthma", "J45.3"), "zzqy")
    assert taken("kg", wheezing, False)["kg"] == 0.0
    assert taken(f"kg:names={file}", wheezing, False)["kg"] == pytest.approx(0.6)
    assert taken(f"kg:who,names={file}", wheezing, False)["kg"] == 1.0
    paid = icd_tree(names=str(file))("zzqy", wheezing.case)
    assert asyncio.run(paid) == pytest.approx(0.6)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no file or folder"):
        open_measures([f"kg:names={tmp_path / 'nothing.csv'}"], [])


def test_a_file_of_names_is_looked_at_before_a_release_is_loaded(tmp_path: Path) -> None:
    """No such release could be loaded, and nothing is said of it."""
    with pytest.raises(UserError, match="is a folder, and one file is needed"):
        open_measures([f"kg:none,names={tmp_path}"], [])
    with pytest.raises(UserError, match="is a folder, and one file is needed"):
        icd_tree("none", str(tmp_path))


@pytest.mark.parametrize(
    "answer", ["not mild intermittent asthma", "J45.2?", "J45.2 or cholera", "asthma was ruled out"]
)
def test_kg_of_what_is_not_asserted_is_nothing(answer: str) -> None:
    found = taken("kg", ended(case("Mild persistent asthma", "J45.3"), answer), False)
    assert (found["kg"], found["unmapped"]) == (0.0, 1.0)


def test_kg_as_a_reward_goes_by_codes_alone() -> None:
    graph = KnowledgeGraph(Coder(load_tree("cm")))
    asthma = case("Asthma", "J45.909")
    assert asyncio.run(graph.score("J45.909", asthma)) == 1.0
    assert asyncio.run(graph.score("J45", asthma)) == pytest.approx(0.4)
    assert asyncio.run(graph.score("", asthma)) == asyncio.run(graph.score("zzqx", asthma)) == 0.0


LIBRARY = world({"name": "library", "max_turns": 4}, {}).open(open_source("clinic:xs"))


def search(*texts: tuple[str, str]) -> Turn:
    assert isinstance(LIBRARY, Library)
    passages = tuple(
        Passage(str(number), text, title) for number, (title, text) in enumerate(texts)
    )
    return Turn(
        (),
        Completion("<search>x</search>"),
        Action("search", ("x",)),
        Observation((Message("user", LIBRARY.show(passages)),), passages=passages),
    )


def hit(episode: Episode) -> float:
    return doc_hit(episode)


def test_doc_hit_is_per_document_in_whole_words_over_all_turns() -> None:
    hepatitis = case("Hepatitis A", aliases=("infectious hepatitis",))
    one = search(("Liver", "Viral hepatitis"), ("", "A vaccine\nexists [2] too"))
    shown = [passage.whole for passage in one.observation.passages or ()]
    assert shown == ["Liver\nViral hepatitis", "A vaccine\nexists [2] too"]
    assert hit(ended(hepatitis, None, one)) == 0.0, (
        "a name must not begin in one document and end in the next"
    )
    assert doc_hit(ended(hepatitis, None, search(("", "Anti-hepatitis-A titres")))) == 1.0
    assert doc_hit(ended(hepatitis, None, one, search(("", "INFECTIOUS hepatitis.")))) == 1.0
    assert hit(ended(hepatitis, None, search(("", "hepatitis and")))) == 0.0
    assert hit(ended(hepatitis, "Hepatitis A")) == 0.0, "what the doctor says is no document"
    last = search(("", "Rest"), ("", "A liver disease: hepatitis A"))
    assert hit(ended(hepatitis, None, last)) == 1.0, "the last passage may end in the name"
    assert not contains(["anything"], case(""))


@pytest.mark.parametrize(
    ("name", "text", "held"),
    [
        # beside markup, as it stands in a library and as a transcript shows it
        ("flu", "<b>flu</b>", True),
        ("flu", "‹b>Flu‹/b> is common", True),
        ("flu", '<a href="x">flu</a>', True),
        ("kidney stone", "A kidney <i>stone</i> hurts", True),
        ("Kawasaki disease", "‹i>Kawasaki‹/i> disease", True),
        ("flu", "see <flu>", True),
        # beside any other sign
        ("flu", "fever>flu>rest", True),
        ("flu", "flu->rest", True),
        ("flu", "flu/cold", True),
        ("flu", "cold/flu%", True),
        ("flu", "(flu)+rest", True),
        # Chinese puts nothing between words
        ("流感", "患者患有流感。", True),
        ("肺炎", "支原体肺炎CT", True),
        # whole words and whole numbers all the same
        ("flu", "<b>influx</b>", False),
        ("flu", "fluid<", False),
        ("flu", "‹b>flu‹/b>id", True),
        ("diabetes type 1", "diabetes type 1.5", False),
        ("stage 1", "stage 10>", False),
        ("Rh-", "Rh+ blood", False),
        ("hepatitis A", "hepatitis and", False),
        ("क", "कि", False),
    ],
)
def test_whole_words_have_any_sign_beside_them(name: str, text: str, held: bool) -> None:
    assert contains([text], case(name)) is held
    assert contains([f"{text}.", "another"], case("other", aliases=(name,))) is held


def test_action_level_accuracy() -> None:
    environment = world({"name": "questioning", "max_turns": 4}, {}).open(handmade.SOURCE)
    clear, unclear = (
        replace(
            handmade.CASES[0],
            truth=replace(handmade.CASES[0].truth, extra={"ambiguous": ambiguous}),
        )
        for ambiguous in (False, True)
    )
    asks = Script("question: Which one do you mean? [end]", "answer: so [answer: Flu] [end]")
    answers, mumbles = (
        Script("answer: so [answer: Flu] [end]"),
        Script("hm", "answer: so [answer: Flu] [end]"),
    )
    expected = {(asks, False): 0.0, (asks, True): 1.0, (answers, False): 1.0, (answers, True): 0.0}
    expected |= {(mumbles, False): 0.0, (mumbles, True): 0.0}
    for (doctor, ambiguous), value in expected.items():
        found = taken(
            "actions", handmade.play(doctor, environment, unclear if ambiguous else clear), True
        )
        assert found["action"] == value
        assert found["action_ambiguous" if ambiguous else "action_non_ambiguous"] == value
        assert found["action_non_ambiguous" if ambiguous else "action_ambiguous"] is None
    wrong = handmade.play(answers, environment, clear)
    assert taken("actions", wrong, False)["action"] == 0.0
    with pytest.raises(UserError, match="abgcoqa"):
        open_measures(["actions"], handmade.CASES)


def test_emb_has_a_threshold_and_embeds_each_name_once() -> None:
    vectors = {
        "flu": [1.0, 0.0],
        "grippe": [0.8, 0.6],
        "cold": [0.5, 0.75**0.5],
        "anti-flu": [-1.0, 0.0],
        "influenza": [0.6, 0.8],
    }
    asked: list[str] = []

    def embed(texts: Any) -> Any:
        asked.extend(texts)
        return np.array([vectors[text] for text in texts])

    measure = Embedding(embed)
    flu = case("flu")
    found = [
        measure.score(answer, flu) for answer in ("flu", "grippe", "cold", "anti-flu", "", "grippe")
    ]
    assert found == pytest.approx([1.0, 0.8, 0.0, 0.0, 0.0, 0.8])
    assert measure.score("grippe", case("flu", aliases=("influenza",))) == pytest.approx(0.96)
    assert sorted(asked) == sorted(vectors)


def test_names_and_what_is_wrong_with_them() -> None:
    assert names() == [
        *("actions", "bleu", "differential", "emb", "informed", "judges", "kg", "length"),
        *("places", "plausible", "ranked", "ranker", "results", "rouge", "safety"),
    ]
    with pytest.raises(UserError, match="Did you mean 'rouge'"):
        open_measures(["rogue"], [])
    with pytest.raises(UserError, match="'kg' and 'kg:who' find the same figures"):
        open_measures(["kg", "bleu", "kg:who"], [])
    with pytest.raises(UserError, match="emb:FOLDER"):
        open_measures(["emb"], [])
    for option in ("0", "101", "-1", "three", "²"):
        with pytest.raises(UserError, match="a number from 1 to 100"):
            open_measures([f"plausible:{option}"], [])
    with pytest.raises(UserError, match=r"roles\.judge=endpoint:a,endpoint:b"):
        open_measures(["judges"], [])
    with pytest.raises(UserError, match="ICD-10 release"):
        open_measures(["kg:icd9"], [])


def test_text_measures() -> None:
    sure = ended(case("Give fluids and rest for three days"), "Give fluids and rest for three days")
    assert taken("bleu", sure, True) == {"bleu": pytest.approx(1)}
    assert taken("rouge", sure, True)["rougeL"] == 1
    assert taken("bleu", ended(case("x y"), None), False) == {"bleu": 0}


@pytest.fixture
def ward(tmp_path: Path) -> str:
    """Five cases of one name that no dictionary knows, in a file."""
    file = tmp_path / "cases.jsonl"
    made = [
        replace(handmade.CASES[0], id=f"c{k}", truth=Truth("Crohn disease", codes=("K50.9",)))
        for k in range(20)
    ]
    file.write_text("".join(line_of(one).strip() + "\n" for one in made))
    return f"jsonl:{file}"


def evaluate(url: str, cases: str, out: Path) -> Run:
    endpoints = {
        name: {"base_url": url, "model": name, "retries": 0} for name in ("doctor", "coder")
    }
    return api.evaluate(
        "endpoint:doctor",
        cases=cases,
        out=out,
        endpoints=endpoints,
        quiet=True,
        roles={"coder": "endpoint:coder"},
        evaluation={"cases": 5, "measures": ["kg", "rouge"]},
        max_failed=1.0,
    )


def test_an_evaluation_takes_them_and_a_coder_helps(
    ward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))

    def answer(body: dict[str, Any]) -> str:
        return (
            "<diagnose>zzqx's bowel</diagnose>"
            if body["model"] == "doctor"
            else json.dumps({"code": "K50.8"})
        )

    with serving(answer) as server:
        run = evaluate(server.url, ward, tmp_path / "run")
        assert sum(body["model"] == "coder" for body in server.asked) == 1
    assert {call["role"]: call["calls"] for call in run.summary["calls"]}["coder"] == 1, (
        "booked under its own name"
    )
    found = run.summary["doctors"]["doctor"]
    assert (found["accuracy"]["mean"], found["kg"]["mean"], found["unmapped"]["mean"]) == (
        0.0,
        pytest.approx(0.6),
        0.0,
    )
    assert found["em_kg"]["mean"] == pytest.approx(0.3)
    assert {"KG", "ROUGE-L"} <= set(run.report.read_text().replace("<", ">").split(">"))


def test_a_measure_that_cannot_be_taken_fails_its_episode_alone(
    ward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))

    def answer(body: dict[str, Any]) -> Any:
        return (
            "<diagnose>zzqx's bowel</diagnose>"
            if body["model"] == "doctor"
            else fault(400, "no codes today")
        )

    with serving(answer) as server:
        run = evaluate(server.url, ward, tmp_path / "run")
    records = list(run.episodes(phase="eval"))
    assert {record.episode.ending for record in records} == {Ending.FAILED}
    assert all(record.episode.reason.startswith("measure: ") for record in records)
    assert (
        "kg" not in run.summary["doctors"]["doctor"]
        or run.summary["doctors"]["doctor"]["kg"]["n"] == 0
    )


def test_the_audit_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    file = tmp_path / "names.tsv"
    rows = [
        "# a comment",
        "id\tname\tcode",
        "1\tasthma\tICD10CM:J45",
        "2\tasthma\tICD-10:J45.9",
        "3\tcholera\tK50",
        "4\tzzqx\tA00",
        '5\t"odd\tZZZ',
        "6\tmumps\tNCI:C4911",
    ]
    file.write_text("\n".join(rows) + "\n")
    audit = f"audit names {file} --out {tmp_path}/a"
    output = done(f"{audit} columns=name,code")
    lines = [line.removeprefix("  by ").split() for line in output.splitlines() if line.strip()]
    cells = {first: rest for first, *rest in lines}
    assert (cells["dictionary"][0], cells["unmapped"][0], cells["all"][0]) == ("2", "1", "3")
    assert cells["all"][1] == ".33"
    assert "1 of 3 names are in the right category (0.333); 1 are not found as they stand" in output
    more = tmp_path / "more.csv"
    more.write_text("zzqx,A00\n")
    output = done(f"{audit} columns=name,code by=id names={more}")
    assert "2 of 3 names are in the right category (0.667); 0 are not found" in output
    assert ["3", "1", ".00", ".00", ".00"] in [
        re.sub(r"\[[^]]*\]", "", line).split() for line in output.splitlines()
    ]
    assert "2 rows have no code" in output
    assert "columns must name two" in refused(f"{audit} columns=name,cod")
    assert "columns must name two" in refused(f"{audit} columns=name by=code")
    assert "by=ids: it must name one of id" in refused(f"{audit} columns=name,code by=ids")
    assert "none of 7 rows has a name and a code of ICD-10 (cm)" in refused(audit)
    more.write_text("name,code,part\nasthma,J45,a\nmumps,B26,b\n")
    alone = done(f"audit names {more} --out {tmp_path}/b by=part")
    assert "2 of 2 names are in the right category" in alone
    assert {"a", "b"} <= {line.split()[0] for line in alone.splitlines() if line.strip()}
    (tmp_path / "names.jsonl").write_text('{"name": "asthma", "codes": ["J45"], "part": "a"}\n')
    assert "JSON lines have no columns" in refused(f"audit names {tmp_path}/names.jsonl by=part")
    more.write_text(f"zzqx,A00\n{'c' * 140_000},A00\n")
    assert "line 2: cannot be divided" in refused(f"{audit} columns=name,code names={more}")
    more.write_bytes(b"zzqx,A00\rasthma,J45\r")
    assert "line 1: a carriage return" in refused(f"{audit} columns=name,code names={more}")
    with serving(lambda _: fault(400)) as dead:
        lines = f"endpoints:\n  dead: {{base_url: '{dead.url}', model: dead}}\n"
        (tmp_path / "workup.yaml").write_text(lines)
        monkeypatch.chdir(tmp_path)
        lost = typed(f"{audit} columns=name,code model=endpoint:dead")
    assert isinstance(lost.exception, RolloutError)
    assert str(lost.exception).startswith("names asked about that failed: all 1: ")
    file.write_text("asthma\n")
    assert "line 1" in refused(audit)
