"""Orders that name a disease: RAGES carries none of them out, and the refusal tells nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Call
from handmade import Script, play
from hypothesis import given
from hypothesis import strategies as st

from workup.cases import open_source
from workup.cases.catalogue import built_in
from workup.cases.clinic.pathology import markers
from workup.cases.clinic.tables import clinic_tables
from workup.core.case import Case, Fact, Item, Kind, Source, Truth
from workup.core.errors import UserError
from workup.core.ports import Reply, Request
from workup.environments.base.disease_names import DiseaseNames, SourceDiseases
from workup.environments.evidence import EvidenceSeeking, Settings, seeking
from workup.environments.exams.exam_base import ExamBase, Statistic
from workup.environments.exams.rages import NO_DISEASE, ExamResult, ExamSimulator, RagesSettings
from workup.studies.audits.disease_orders import (
    EXAMINATION,
    FORMS,
    KINDS,
    NAMING,
    Candid,
    audit,
    pairs,
)

WING = open_source("clinic:pathology")
BRAIN = Case(
    "b1",
    "A mass of the temporal lobe.",
    Truth(
        "glioblastoma",
        codes=("C71.9",),
        aliases=("GBM", "glioblastoma multiforme"),
        facts=(Fact("t1", "GFAP", "GFAP: positive.", Kind.LABORATORY),),
    ),
)
FABRY = Case("f1", "Burning feet.", Truth("Fabry disease", aliases=("alpha-Gal A deficiency",)))
OWN = Source("own", (BRAIN,), (FABRY,))
ORDERS = (
    "is it glioblastoma",
    "glioblastoma",
    "GLIOBLASTOMA",
    "Glioblastomas?",
    "glioblastomatous growth",
    "glio-blastoma",
    "glio blastoma",
    "g.l.i.o.b.l.a.s.t.o.m.a",
    "gbm",
    "biopsy to confirm GBM",
    "immunohistochemistry and molecular tests to rule out glioblastoma in this patient",
    "multiforme glioblastoma: yes or no",
    "glioblastoma in plasma: yes or no",  # "plasma:" is the specimen of what is listed behind it
    "FISH for glioblastoma (yes, no)",
    "Immunohistochemistry (e.g., glioblastoma)",
    "glioblastoma, meningioma",
    "是不是glioblastoma？",
    "C71.9",
    "code c719",
)


class Told:
    """A model that says what it is told to say, and counts how often it was asked."""

    name = "told"

    def __init__(self, result: str = "yes, it is.", disease: bool = False) -> None:
        self.asked, self.result, self.disease = 0, result, disease

    async def complete(self, request: Request) -> Reply:
        self.asked += 1
        return Reply(
            json.dumps({"exists": True, "disease": self.disease, "test": "", "result": self.result})
        )


def ordered(simulator: ExamSimulator, case: Case, *orders: str) -> Sequence[ExamResult]:
    return asyncio.run(simulator.results(case, orders))


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_that_names_the_diagnosis_is_refused_unasked(order: str) -> None:
    model = Told("yes, it is glioblastoma.")
    (result,) = ordered(ExamSimulator(OWN, model=model), BRAIN, order)
    assert (result.source, result.confidence, result.evidence) == ("refused", 0.0, ())
    assert result.text == NO_DISEASE if result.request.isascii() else "glio" not in result.text
    assert model.asked == 0


@pytest.mark.parametrize("order", ORDERS)
def test_the_refusal_is_the_same_for_a_patient_with_another_disease(order: str) -> None:
    simulator = ExamSimulator(OWN, model=Told("no."))
    (one,), (other,) = (ordered(simulator, case, order) for case in (BRAIN, FABRY))
    assert one == other


def test_a_disease_of_the_source_is_refused_for_every_patient() -> None:
    """The clinic's tables do not have it, and its aliases stand in another case alone."""
    simulator = ExamSimulator(OWN, model=Told())
    for order in ("is it Fabry disease", "fabry's disease", "deficiency of alpha Gal-A"):
        (result,) = ordered(simulator, BRAIN, order)
        assert result.source == "refused", order


def test_what_the_model_takes_for_a_disease_is_refused_in_the_same_words() -> None:
    model = Told("", disease=True)
    (result,) = ordered(ExamSimulator(OWN, model=model), BRAIN, "the commonest glial cancer of man")
    assert model.asked == 1
    assert (result.source, result.text) == ("refused", NO_DISEASE)


def test_no_result_of_a_model_keeps_a_name_that_the_order_uses() -> None:
    """What the order says is no reason to say it again."""
    model = Told("GFAP stains the glioblastoma.")
    with pytest.raises(Exception, match="names the diagnosis"):
        ordered(ExamSimulator(OWN, model=model), BRAIN, "serum ferritin")


def test_what_record_and_base_know_is_answered_beside_a_disease() -> None:
    model = Told()
    simulator = ExamSimulator(OWN, model=model)
    (result,) = ordered(simulator, BRAIN, "GFAP and glioblastoma")
    assert result.text == f"GFAP: positive. {NO_DISEASE}"
    assert (result.source, result.evidence) == ("refused", ("t1",))
    (result,) = ordered(simulator, BRAIN, "CD45, is it GBM")  # nobody has CD45: it is not written
    assert result.text == NO_DISEASE
    assert model.asked == 0


def test_a_known_name_within_a_word_hides_no_disease() -> None:
    """The known "ER" also stands within the capitals of "MERKEL"."""
    simulator = ExamSimulator(OWN, model=Told())
    for order in (
        "MERKEL CELL CARCINOMA, ER",
        "ER: MERKEL CELL CARCINOMA",
        "ER (MERKEL CELL CARCINOMA)",
    ):
        assert simulator.refuses(BRAIN, order), order
    assert not simulator.refuses(BRAIN, "ER")


def test_an_examination_whose_name_holds_a_disease_is_an_examination() -> None:
    """The name is the record's or the base's own, whoever the patient is."""
    fact = Fact("t2", "influenza A antigen", "influenza A antigen: detected.", Kind.LABORATORY)
    case = Case("i1", "Fever.", Truth("influenza", facts=(fact,)))
    simulator = ExamSimulator(Source("own", (case,), ()), model=Told())
    assert ordered(simulator, case, "Influenza-A antigen")[0].text == fact.text
    simulator.base = ExamBase.of("it", [Statistic("influenza", "Influenza culture", 1.0)])
    (drawn,) = ordered(simulator, case, "influenza culture")
    assert (drawn.source, drawn.text) == ("base", "Influenza culture: positive.")


def test_a_refused_order_counts_as_no_examination() -> None:
    items = (Item("GFAP", "GFAP immunostain", "GFAP: negative.", Kind.LABORATORY),)
    world = EvidenceSeeking(Source("own", (BRAIN,), (), items), Settings(max_turns=3))
    world = seeking(world.with_models({"simulator": Told()}))
    asked = world.write_lists(("meningioma",), ("is it glioblastoma", "GBM or not"))
    end = world.write_lists(("glioblastoma",))
    episode = play(Script(asked, asked, end), world, BRAIN)
    first = episode.turns[0].observation
    assert first.sources == ("refused", "refused")
    assert (first.item, first.evidence) == ("", ())
    assert first.messages[0].content.count(NO_DISEASE) == 1
    assert not any(name in first.messages[0].content.lower() for name in ("glio", "gbm"))
    assert not any(world.informed(episode, place) for place in range(3))


def test_no_stage_repeats_the_name_of_a_disease() -> None:
    items = (Item("GFAP", "GFAP immunostain", "GFAP: negative.", Kind.LABORATORY),)
    settings = Settings(max_turns=2, stages=("immunostain",))
    world = EvidenceSeeking(Source("own", (BRAIN,), (), items), settings)
    asked = world.write_lists(("meningioma",), ("is it glioblastoma", "CD45"))
    reply = play(Script(asked), world, BRAIN).turns[0].observation.messages[0].content
    assert NO_DISEASE in reply
    assert "glioblastoma" not in reply
    assert "CD45: cannot be ordered now." in reply


# --- the names themselves ---


def test_no_examination_of_the_clinic_is_taken_for_a_disease() -> None:
    known = SourceDiseases(open_source("clinic:full"))
    names = [
        *(name for m in markers() for name in (m.name, *m.synonyms, m.item.question)),
        *(finding.name for finding in clinic_tables().findings),
        *("serum ferritin", "HER2 FISH", "prostate specific antigen", "PSA", "vitamin B12 level"),
        *("blood culture", "CT of the chest", "EGFR mutation", "alcohol consumption"),
    ]
    assert [name for name in names if known.within(BRAIN, name)] == []


@given(st.data())
def test_every_name_of_the_clinic_is_found_in_every_form(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(built_in().entries))
    name = data.draw(st.sampled_from(entry.names))
    form = data.draw(st.sampled_from(sorted(FORMS)))
    found = SOURCE_NAMES.within(FORMS[form](name))
    assert found or name == "consumption"


SOURCE_NAMES = DiseaseNames(name for entry in built_in().entries for name in entry.names)


def test_a_long_name_is_read_in_linear_time() -> None:
    began = time.process_time()
    DiseaseNames([f"aa{'s' * 200_000}x", "aortic stenosis"]).within(f"bb{'s' * 200_000}x")
    assert time.process_time() - began < 2


@given(st.text(max_size=300))
def test_any_text_is_looked_at(text: str) -> None:
    assert SOURCE_NAMES.within(text) in (True, False)
    assert SOURCE_NAMES.within(f"{text} glioblastoma {text}")


def test_a_closed_list_is_read_until_all_its_other_names_are_known() -> None:
    class Counted(tuple[Case, ...]):
        read = 0

        def __iter__(self) -> Iterator[Case]:
            for case in super().__iter__():
                Counted.read += 1
                yield case

    rare = [replace(FABRY, id=str(number)) for number in range(50)]
    cases = Counted((*rare[:3], Case("p", "", Truth("Pompe disease", aliases=("GSD II",))), *rare))
    source = Source("own", cases, (), (), ("Fabry disease", "Pompe disease"))
    known = SourceDiseases(source)
    assert Counted.read == 0
    assert known.within(FABRY, "is it GSD II")
    assert not known.within(FABRY, "serum ferritin")
    assert 4 <= Counted.read <= 5


# --- the audit ---


def test_no_order_gives_the_truth_away_to_a_candid_writer() -> None:
    found = asyncio.run(audit(WING, RagesSettings(), 100 * len(KINDS), seed=0))
    rows = {row.kind: row for row in found.rates}
    assert set(rows) == {NAMING, *KINDS}
    assert found.rate("given_away", found.told).mean == 0
    assert rows[NAMING].refused.mean == 1
    assert rows[EXAMINATION].refused.mean == 0
    assert found.remarks() == []


def test_the_audit_sees_what_is_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the refusal a candid writer tells the truth in nearly every order."""
    monkeypatch.setattr(SourceDiseases, "within", lambda self, case, text: False)
    found = asyncio.run(audit(WING, RagesSettings(), 5 * len(KINDS), seed=2))
    rows = {row.kind: row for row in found.rates}
    assert rows[NAMING].given_away.mean > 0.9
    assert rows[EXAMINATION].given_away.mean == 0
    assert any("given away" in note for note in found.remarks())


def test_the_audit_reads_replies_that_name_the_truth() -> None:
    named = Told("compatible with the tumour called glio-blastoma multi-forme")
    fact = Fact("t9", "CD45", "CD45: negative, a glioblastoma.", Kind.LABORATORY)
    source = Source("own", (), (replace(BRAIN, truth=replace(BRAIN.truth, facts=(fact,))), FABRY))
    found = asyncio.run(audit(source, RagesSettings(), 2 * len(KINDS), model=named))
    assert found.rate("given_away", found.told).mean == 0  # withheld, and refused
    assert Candid(True).name == "candid"


def test_pairs_follow_from_the_seed() -> None:
    assert pairs(WING, 40, 1) == pairs(WING, 40, 1) != pairs(WING, 40, 2)
    assert all(pair.truth != pair.other for pair in pairs(WING, 60, 3) if pair.kind != EXAMINATION)
    with pytest.raises(UserError, match="no test case"):
        pairs(replace(WING, test=()), 4, 0)


def test_the_command(call: Call, tmp_path: Path) -> None:
    status, shown, _ = call(*f"audit disease-orders n={len(KINDS)} --out a".split())
    assert status == 0
    assert "truth given away" in shown
    written = json.loads((tmp_path / "a/disease-orders.json").read_text())
    assert {each["kind"] for each in written["told"]} == set(KINDS)
    for audit_of, wrong in (("rages", "--cases clinic:s"), ("disease-orders", "recorded=0.2")):
        status, _, refused = call(*f"audit {audit_of} {wrong}".split())
        assert status == 2
        assert "no setting" in refused
