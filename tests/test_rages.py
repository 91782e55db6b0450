"""RAGES: results from record, base and model, in that order, the same for everybody who asks."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from handmade import Script
from hypothesis import given
from hypothesis import strategies as st
from preparing import configured, endpoint, sections
from scipy.stats import chi2
from serving import Answer, fault, serving

from workup.cases import open_source
from workup.cases.clinic.pathology import markers, rates, tumours
from workup.cases.exam_terms import key, positive, read
from workup.core.case import Case, Fact, Item, Kind, Source, Truth
from workup.core.episode import Ending
from workup.core.errors import RolloutError, UserError
from workup.core.leaks import WITHHELD
from workup.core.ports import Reply, Request
from workup.environments.base.lists import boxed, lists, written
from workup.environments.evidence import EvidenceSeeking
from workup.environments.evidence import Settings as World
from workup.environments.exams.exam_base import ExamBase, Statistic
from workup.environments.exams.rages import (
    CONFIDENCE,
    ExamResult,
    ExamSimulator,
    RagesSettings,
)
from workup.rl.rollout import Play, ToPlay, rollout
from workup.roles.config import Config
from workup.roles.run_models import RunModels

WING = open_source("clinic:pathology")
GIST = Case(
    "g1",
    "A mass of the stomach wall; spindle cells.",
    Truth(
        "gastrointestinal stromal tumor",
        aliases=("GIST",),
        facts=(
            Fact("t1", "CD117", "CD117: positive.", Kind.LABORATORY),
            Fact("t2", "desmin", "desmin: negative.", Kind.LABORATORY),
        ),
    ),
)
FREE = Source("here", (GIST,), ())


def ordered(simulator: ExamSimulator, case: Case, *orders: str) -> Sequence[ExamResult]:
    return asyncio.run(simulator.results(case, orders))


def with_server(
    folder: Path, answer: Answer, cases: Sequence[tuple[Case, tuple[str, ...]]], **settings: Any
) -> tuple[list[Sequence[ExamResult]], list[dict[str, Any]]]:
    """What each of several doctors gets at the same time, and what the server was asked."""
    with serving(answer) as server:
        run_models = RunModels(
            Config.find(configured(folder, server)), "it", cache=folder / "cache"
        )
        simulator = ExamSimulator(FREE, RagesSettings(**settings)).with_model(
            run_models.open("endpoint:it")
        )

        async def all() -> list[Sequence[ExamResult]]:
            return await asyncio.gather(*(simulator.results(c, orders) for c, orders in cases))

        try:
            return asyncio.run(all()), server.asked
        finally:
            run_models.close()


def reports(test: str, result: str, exists: bool = True) -> str:
    return json.dumps({"exists": exists, "test": test, "result": result})


def echo(body: dict[str, Any]) -> str:
    return reports(sections(body)["the order"], "positive.")


# --- names ---


@pytest.mark.parametrize(
    "names",
    [
        ("CD20", "CD-20", "cd 20", "CD20 immunostain", "immunohistochemistry for CD20"),
        ("TTF-1", "TTF1", "TTF 1 expression"),
        ("CK5/6", "CK 5/6", "ck5/6 IHC"),
        ("β-catenin", "beta-catenin", "Beta Catenin staining"),
        ("雌激素受体", "雌激素受体染色", "雌激素受体 免疫组化"),
    ],
)
def test_spellings_of_a_name_are_one(names: tuple[str, ...]) -> None:
    assert len({key(name) for name in names}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("CD3", "CD30"), ("HER2", "HER2 FISH"), ("KRAS mutation", "KRAS"), ("p40", "p63")],
)
def test_other_examinations_are_others(one: str, other: str) -> None:
    assert key(one) != key(other)


@given(st.text(max_size=400))
def test_any_order_is_read(text: str) -> None:
    for known in (lambda form: True, lambda form: False):
        named = read(text, known)
        assert len(named) <= 20
        assert all(key(each.name) for each in named)
    assert positive(text) in (True, False, None)


def test_markers_of_the_wing_have_names_of_their_own() -> None:
    own = Counter(key(marker.name) for marker in markers())
    assert own.most_common(1)[0][1] == 1


def test_an_order_may_name_several() -> None:
    def known(form: str) -> bool:
        return form in {"cd3", "cd20", "ck7"}

    def names(order: str) -> list[str]:
        return [each.name for each in read(order, known)]

    assert names("Immunohistochemistry (e.g., CD3, CD20)") == ["CD3", "CD20"]
    assert names("cytokeratin 7 (CK7) immunostain") == ["cytokeratin 7"]
    assert names("CD3 (T cells), CD20 and Ki-67") == ["CD3", "CD20", "Ki-67"]
    assert names("CK7 (clone OV-TL)") == ["CK7"]
    assert names("CD3、CD20染色") == ["CD3", "CD20染色"]
    assert names("immunohistochemistry") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("CD20: positive, diffuse membranous staining.", True),
        ("CD20: negative, no staining of the tumor cells.", False),
        ("EGFR mutation: not detected.", False),
        ("EGFR mutation: detected.", True),
        ("CD34（-）", False),
        ("Ki-67（3+）", True),
        ("CD3阳性", True),
        ("MLH1: expression is retained.", False),
        ("MLH1: loss of nuclear expression.", True),
        ("HER2 not amplified by FISH", False),
        ("BRAF V600E: not mutated", False),
        ("MYC rearrangement not present", False),
        ("TP53 is not lost", False),
        ("non-amplified", False),
        ("unmutated IGHV", False),
        ("rearranged: no", False),
        ("Loss of expression: no", False),
        ("amplified, not rearranged", None),
        ("about 70 % of cells", None),
        ("positive in the stroma, negative in the tumor", None),
    ],
)
def test_what_a_result_says(text: str, says: bool | None) -> None:
    assert positive(text) is says


def test_the_wing_s_wordings_are_read_as_they_are_meant() -> None:
    read_wrongly = [
        fact.text
        for marker in markers()
        for fact in (*marker.positives, replace(marker.positives[0], text=marker.negative))
        if positive(fact.text) not in (None, fact.text != marker.negative)
    ]
    assert read_wrongly == []


# --- record and base ---


def test_the_wing_s_record_answers_every_marker_by_every_name() -> None:
    simulator = ExamSimulator(WING)
    for case in WING.train[:5]:
        found = {fact.item: fact for fact in case.truth.facts}
        for marker in markers():
            for result in ordered(simulator, case, marker.name, *marker.synonyms):
                fact = found.get(marker.name)
                assert (result.source, result.confidence) == ("record", 1.0)
                assert result.text == (fact.text if fact else marker.negative)
                assert result.evidence == ((fact.id,) if fact else ())


class Writer:
    """A model that has a result of its own for everything."""

    name = "writer"

    async def complete(self, request: Request) -> Reply:
        return Reply(reports("", "written."))


@given(data=st.data())
def test_precedence_by_brute_force(data: st.DataObject) -> None:
    """Each source has some examinations: the first in order that has one gives its result.

    The model writes a result for each, and overrides nothing.
    """
    exams = [f"CD{number}" for number in range(901, 907)]
    subsets = st.sets(st.sampled_from(exams))
    on_record, in_base = data.draw(subsets), data.draw(subsets)
    sources = data.draw(st.permutations(["record", "base", "generated"]))
    allowed = tuple(sources[: data.draw(st.integers(0, 3))])
    facts = tuple(Fact(f"f{exam}", exam, f"{exam}: recorded.") for exam in sorted(on_record))
    case = Case("c", "A lump.", Truth("some disease", facts=facts))
    simulator = ExamSimulator(Source("here", (case,), ()), RagesSettings(sources=allowed))
    simulator = simulator.with_model(Writer())
    if "base" in allowed:
        simulator.base = ExamBase.of(
            "it", [Statistic("some disease", e, 1.0) for e in sorted(in_base)]
        )
    for exam, result in zip(exams, ordered(simulator, case, *exams), strict=True):
        expected = next(
            (
                source
                for source, has in (("record", on_record), ("base", in_base))
                if source in allowed and exam in has
            ),
            "generated" if "generated" in allowed else "none",
        )
        text = {
            "record": "recorded.",
            "base": "positive.",
            "generated": "written.",
            "none": "not available.",
        }[expected]
        assert (result.source, result.text) == (expected, f"{exam}: {text}")
        assert result.confidence == CONFIDENCE[result.source]


def test_draws_follow_the_table() -> None:
    """Chi-square of positive draws over all tumours and some markers against the exact rates."""
    simulator = ExamSimulator(WING, RagesSettings(sources=("base",)))
    chosen = random.Random(0).sample(range(len(markers())), 12)
    patients, statistic, cells = 200, 0.0, 0
    for row, tumour in enumerate(tumours()):
        cases = [
            Case(f"{tumour.name} {number}", "", Truth(tumour.name)) for number in range(patients)
        ]
        for column in chosen:
            marker, rate = markers()[column], float(rates()[row, column])
            if not 5 <= patients * rate <= patients - 5:
                continue
            drawn = sum(
                simulator._drawn(case, marker.name).text != marker.negative  # type: ignore[union-attr]
                for case in cases
            )
            statistic += (drawn - patients * rate) ** 2 / (patients * rate * (1 - rate))
            cells += 1
    assert cells > 100
    assert chi2.ppf(1e-4, cells) < statistic < chi2.ppf(1 - 1e-4, cells)


def test_a_draw_depends_on_case_and_examination_alone() -> None:
    settings = RagesSettings(sources=("base",))
    one, other = ExamSimulator(WING, settings), ExamSimulator(WING, settings)
    for case in WING.train[:20]:
        alone = ordered(one, case, "TTF-1")[0]
        among = ordered(other, case, "CD3", "thyroid transcription factor 1", "TTF1")
        assert {alone.text} == {result.text for result in among[1:]}
    assert len({ordered(one, case, "TTF-1")[0].text for case in WING.train[:60]}) > 2


def test_a_disease_that_the_base_lacks_has_no_result() -> None:
    settings = RagesSettings(sources=("base",), base="clinic")
    rare = replace(GIST, truth=Truth("a disease that nobody has described"))
    simulator = ExamSimulator(FREE, settings)
    assert ordered(simulator, GIST, "CD117")[0].source == "base"
    (result,) = ordered(simulator, rare, "CD117")
    assert (result.source, result.confidence) == ("none", 0.0)
    assert result.text == "CD117: not available."


def test_what_the_wing_does_not_have_is_not_available() -> None:
    """A fabricated test, one of another department, a method alone, and empty brackets."""
    orders = ("CD1355", "serum calcium", "immunohistochemistry", "()")
    for result in ordered(ExamSimulator(WING), WING.train[0], *orders):
        assert (result.source, result.confidence) == ("none", 0.0)
        assert result.text == f"{result.request}: not available."


def test_two_names_of_a_test_are_one() -> None:
    simulator = ExamSimulator(FREE, RagesSettings(base="clinic"))
    one, other, both = ordered(simulator, GIST, "c-KIT", "KIT protein", "CD117 (c-KIT)")
    assert one.text == other.text == both.text == "CD117: positive."
    assert one.evidence == both.evidence == ("t1",)
    (mixed,) = ordered(simulator, GIST, "DOG1 and c-KIT")
    assert (mixed.source, mixed.confidence) == ("base", 0.8)


def test_a_base_s_own_names_hold_for_the_record_too() -> None:
    rows = [
        Statistic("GIST", "Desmina", 0.1, test_names=("desmin",)),
        Statistic("GIST", "H-Cald", 0.9),
    ]
    simulator = ExamSimulator(FREE, RagesSettings(base="clinic"))
    simulator.base = ExamBase.of("it", rows)
    (result,) = ordered(simulator, GIST, "desmina")
    assert (result.text, result.source) == ("desmin: negative.", "record")


def test_names_of_the_diagnosis_are_withheld_and_counted() -> None:
    shown = Fact("t3", "DOG1", "DOG1: positive, so this is a GIST.", Kind.LABORATORY)
    case = replace(GIST, truth=replace(GIST.truth, facts=(shown,)))
    (result,) = ordered(ExamSimulator(FREE), case, "DOG1")
    assert result.text == f"DOG1: positive, so this is a {WITHHELD}."
    assert result.withheld == 1


def test_an_item_s_normal_answer_counts_where_the_record_says_so() -> None:
    items = (Item("lipase", "Is lipase raised?", "Normal lipase.", Kind.LABORATORY),)
    case = Case("p", "Belly pain.", Truth("Acute pancreatitis"))
    silent = Source("here", (case,), (), items=items)
    assert ordered(ExamSimulator(silent), case, "lipase")[0].source == "none"
    shown = replace(case, truth=replace(case.truth, record="Normal lipase."))
    assert ordered(ExamSimulator(silent), shown, "lipase")[0].text == "Normal lipase."


@pytest.mark.parametrize(
    ("record", "source"),
    [
        ("Strep test: Negative. CRP raised.", "none"),
        ("Strep test: Negative. Monospot: Negative.", "record"),
    ],
)
def test_another_test_s_answer_says_nothing_of_this_one(record: str, source: str) -> None:
    tests = [Item(name, name, "Negative.", Kind.LABORATORY) for name in ("strep test", "monospot")]
    case = Case("p", "A sore throat.", Truth("Mononucleosis", record=record))
    world = ExamSimulator(Source("here", (case,), (), items=tests))
    assert ordered(world, case, "strep test")[0].source == "record"
    assert ordered(world, case, "monospot")[0].source == source


# --- the model ---


def test_a_group_of_episodes_asks_each_order_once(tmp_path: Path) -> None:
    orders = ("CD900", "CD117", "serum ferritin", "CD900")
    found, asked = with_server(tmp_path, echo, [(GIST, orders)] * 16)
    assert sorted(sections(body)["the order"] for body in asked) == ["cd900", "serum ferritin"]
    assert all(list(each) == list(found[0]) for each in found)
    assert [result.source for result in found[0]] == ["generated", "record", *["generated"] * 2]
    assert [result.text for result in found[0]][::2] == [
        "CD900: positive.",
        "serum ferritin: positive.",
    ]


@pytest.mark.parametrize("names", [("LCA", "CD45", "cd 45 stain"), ("Ki67", "MIB-1")])
def test_two_names_of_a_test_are_one_request_to_the_model(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """So its results cannot contradict each other, whoever asks under which name."""
    found, asked = with_server(tmp_path, echo, [(GIST, (name,)) for name in names])
    assert len(asked) == 1
    assert [each.text for (each,) in found] == [f"{name}: positive." for name in names]


def test_what_the_model_calls_by_a_recorded_name_is_the_recorded_result(tmp_path: Path) -> None:
    found, asked = with_server(
        tmp_path, lambda body: reports("CD117", "negative."), [(GIST, ("stem cell receptor",))]
    )
    (result,) = found[0]
    assert len(asked) == 1
    assert (result.source, result.text) == ("record", "CD117: positive.")
    assert (result.request, result.evidence) == ("stem cell receptor", ("t1",))


def test_an_order_that_does_not_exist_has_no_result(tmp_path: Path) -> None:
    found, _ = with_server(
        tmp_path, lambda body: reports("CD1355", "", exists=False), [(GIST, ("CD1355",))]
    )
    assert found[0] == [ExamResult("CD1355", "CD1355: not available.", "none", 0.0)]


def test_a_result_that_names_the_diagnosis_is_asked_for_again(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> str:
        first = len(body["messages"]) == 2
        return reports("DOG1", "positive, typical of GIST" if first else "positive")

    found, asked = with_server(tmp_path, answer, [(GIST, ("DOG1",))])
    assert found[0][0].text == "DOG1: positive"
    assert len(asked) == 2


def test_a_model_that_keeps_naming_it_fails_the_episode(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="names the diagnosis"):
        with_server(tmp_path, lambda body: reports("DOG1", "it is GIST"), [(GIST, ("DOG1",))])


def test_a_model_that_fails_is_a_failed_episode() -> None:
    order = written(lists(("melanoma",), ("DOG1",)))
    with serving(lambda body: fault(500)) as server:
        world = EvidenceSeeking(FREE, World(max_turns=2)).with_models(
            {"simulator": endpoint(server)}
        )
        doctor = Script(order, written(boxed("GIST")))
        episode = asyncio.run(rollout(ToPlay(GIST), world, doctor, Play()))
    assert (episode.ending, episode.turns) == (Ending.FAILED, ())
    assert "500" in episode.reason


@pytest.mark.parametrize("sources", [["generated"], ["record", "generated"], ["base", "generated"]])
def test_the_model_sees_the_allowed_sources_alone(tmp_path: Path, sources: list[str]) -> None:
    _, asked = with_server(tmp_path, echo, [(GIST, ("CD900",))], sources=sources, base="clinic")
    shown = sections(asked[0])
    assert ("findings on record" in shown) == ("record" in sources)
    assert ("statistics of the disease" in shown) == ("base" in sources)
    assert ("CD117: positive." in json.dumps(shown)) == ("record" in sources)
    assert ("CD117: positive in 9" in json.dumps(shown)) == ("base" in sources)


def test_generation_alone_overrides_nothing_and_asks_for_everything(tmp_path: Path) -> None:
    found, asked = with_server(tmp_path, echo, [(GIST, ("CD117",))], sources=["generated"])
    assert found[0][0].source == "generated"
    assert len(asked) == 1


def test_embedding_needs_a_base_with_an_encoder() -> None:
    with pytest.raises(UserError, match="built without an encoder"):
        ExamSimulator(FREE, RagesSettings(base="clinic", nearest="embedding"))


def test_a_urology_case_is_a_follow_up_in_chinese(call: Call, tmp_path: Path) -> None:
    """RJUA tells all results at the outset, so that only the diagnosis is left (ES-14)."""
    rows = [
        {
            "id": "1",
            "question": f"医生您好，我{age}岁，左侧睾丸痛。是什么病？",
            "disease": "附睾睾丸炎",
        }
        for age in (20, 30)
    ]
    (tmp_path / "RJUA_test.jsonl").write_text(
        "".join(json.dumps({**row, "id": str(k)}) + "\n" for k, row in enumerate(rows))
    )

    def doctor(body: dict[str, Any]) -> str:
        system, user = (message["content"] for message in body["messages"])
        assert "你是病理医生" in system
        assert "ExamList" not in system
        right = "20岁" in user
        return written(boxed("附睾睾丸炎" if right else "睾丸扭转"))

    with serving(doctor) as server:
        configured(tmp_path, server)
        status, shown, told = call(
            *("evaluate", "endpoint:it", "--cases", f"rjua:{tmp_path / 'RJUA_test.jsonl'}#all"),
            *("--out", tmp_path / "run", "environment=evidence"),
            *("environment.max_turns=1", "environment.told=record"),
        )
    assert status == 0, told
    assert len(server.asked) == 2
    assert "it   .50" in shown
