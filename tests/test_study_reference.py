"""What raises a reference's belief: the passages' states, and the gains against plain scoring."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from hpo_world import patient, patients, release
from hypothesis import given
from hypothesis import strategies as st
from studying import asked
from test_local_policy import letters, qwen

from workup.cases import open_source
from workup.cases.clinic.renamed import called
from workup.core.case import Case, Document, Source, Truth
from workup.core.errors import UserError
from workup.core.leaks import Mask
from workup.core.text import neutralise, tagged
from workup.environments.base.queries import mentioned
from workup.environments.base.searching import EVIDENCE
from workup.models.samplers import How
from workup.models.samplers import load as sampler
from workup.retrieval.hpo.library import build
from workup.retrieval.index import IndexSettings
from workup.studies import reference
from workup.studies.base.arms import settings_of
from workup.studies.base.likelihood import opened
from workup.studies.reference import (
    DENIED,
    MISNAMED,
    NAMED,
    OTHER,
    SHUFFLED,
    STATES,
    TRIVIA,
    WITHHELD,
)

pytestmark = pytest.mark.drawn

torch.set_num_threads(1)
CLINIC = open_source("clinic:s")
TEXTS = reference.texts_of("clinic:s")


def said(text: Document) -> str:
    return f"{text.title}. {text.text}"


@given(st.integers(0, 500), st.integers(0, 9), st.integers(30, 200))
def test_each_passage_is_what_its_name_says(index: int, seed: int, longest: int) -> None:
    case = CLINIC.test[index]
    shown = reference.states(case, CLINIC, TEXTS, longest, seed)
    assert shown is not None
    assert shown == reference.states(case, CLINIC, TEXTS, longest, seed)
    assert {*shown} == {*STATES}
    names = (case.truth.diagnosis, *case.truth.aliases)

    def named(text: str) -> bool:
        mask = Mask(names)
        mask(text)
        return mask.found > 0

    naming = {NAMED, MISNAMED, DENIED}
    assert {state for state in STATES if named(shown[state])} - {SHUFFLED} == naming
    foreign = mentioned((shown[OTHER],), tuple(CLINIC.diagnoses))
    assert foreign
    assert mentioned((shown[MISNAMED],), tuple(CLINIC.diagnoses)) == (case.truth.diagnosis,)
    assert sorted(shown[SHUFFLED].split()) == sorted(shown[NAMED].split())
    assert shown[DENIED].startswith(shown[NAMED])
    for state in (NAMED, MISNAMED, OTHER, TRIVIA, SHUFFLED):
        assert len(shown[state].split()) <= longest
    assert any(shown[OTHER] == " ".join(said(text).split()[:longest]) for text in TEXTS)
    assert len(shown[WITHHELD]) != len(shown[NAMED])


def test_in_a_renamed_clinic_passages_bear_the_cases_names() -> None:
    source = open_source("clinic:s#renamed")
    entries = reference.texts_of("clinic:s#renamed")
    for case in source.test[:20]:
        shown = reference.states(case, source, entries, 80, 0)
        assert shown is not None
        assert shown[NAMED].startswith(f"{case.truth.diagnosis}. Findings: ")
        other, _, findings = shown[OTHER].partition(". ")
        assert other in {*called(case).values()} - {case.truth.diagnosis}
        assert shown[MISNAMED] == f"{case.truth.diagnosis}. {findings}"
        assert "disease" not in "".join(shown[state].lower() for state in (NAMED, OTHER, MISNAMED))


def test_with_links_a_diseases_two_entries_are_one_passage() -> None:
    source = open_source("clinic:s#renamed,linked")
    entries = reference.texts_of("clinic:s#renamed,linked")
    assert len(entries) == 12
    for case in source.test[:20]:
        shown = reference.states(case, source, entries, 80, 0)
        assert shown is not None
        form = r"(\w+)\. Findings: (.*)\. (\w+)\. Picture: (\w+)\."
        read = {state: re.fullmatch(form, shown[state]) for state in (NAMED, OTHER, MISNAMED)}
        right, other, misnamed = (found.groups() for found in read.values() if found)
        names = {name: mark for mark, name in called(case).items()}
        for picture, _, disease, same in (right, other):
            assert picture == same
            assert names[disease][-2:] == names[picture][-2:]
        assert right[2] == case.truth.diagnosis != other[2]
        assert misnamed == (*other[:2], case.truth.diagnosis, other[3])


@pytest.mark.parametrize(
    ("cases", "passages"),
    [
        ("clinic:s#renamed", "clinic:s#renamed,linked"),
        ("clinic:s#renamed", "clinic:m#renamed"),
        ("clinic:s", "clinic:s#renamed"),
    ],
)
def test_passages_without_the_cases_names_are_refused(
    tmp_path: Path, cases: str, passages: str
) -> None:
    tokenizer = letters()
    qwen(len(tokenizer), context=4_096).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    line = f"reference {tmp_path} cases={cases} passages={passages} longest=30 environment=library"
    with pytest.raises(UserError, match=r"go together|has no names for pictures"):
        reference.run(asked("study", line))


def test_gains_are_differences_of_whole_prompts(tmp_path: Path) -> None:
    """The oracle runs the model on each whole prompt."""
    tokenizer = letters()
    folder = tmp_path / "tiny"
    qwen(len(tokenizer), context=4_096).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    how = "cases=clinic:s n=2 passages=clinic:s longest=30 environment=library"
    task = asked("study", f"reference {folder} {how}")
    found, settings = reference.run(task), settings_of(task.values, str(folder))
    model = sampler("local").open(str(folder), How())
    policy = model.policy
    _, environment, cases = opened(settings)
    for case, gains in zip(cases, found.gains, strict=True):
        shown = reference.states(case, CLINIC, TEXTS, 30, settings.seed)
        assert shown is not None
        lead, answer = environment.conclusion(case)
        *before, last = environment.open(case)

        def score(text: str, before=before, last=last, lead=lead, answer=answer) -> float:  # type: ignore[no-untyped-def]
            from dataclasses import replace

            prompt = policy.render((*before, replace(last, content=last.content + text)))
            ids = [*prompt, *policy.encode(lead), *policy.encode(answer)]
            with torch.no_grad():
                logits = policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)  # type: ignore[attr-defined]
            start = len(ids) - len(policy.encode(answer))
            return sum(float(logits[at - 1, ids[at]]) for at in range(start, len(ids)))

        base = score("")
        for state in STATES:
            text = tagged(EVIDENCE, neutralise(shown[state]))
            assert gains.totals[state] == pytest.approx(score(text) - base, abs=2e-3)
        assert gains.tokens == len(policy.encode(answer))
    page = found.write(tmp_path / "study", "reference", "What?")
    told = json.loads((tmp_path / "study" / "reference.json").read_text())
    assert {row["passage"]: row["total"]["n"] for row in told["rows"]} == dict.fromkeys(STATES, 2)
    assert "<svg" in page.read_text()
    assert not any(text.text in page.read_text() for text in TEXTS)


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (Document("2", "Lung fever", "No fever alone."), "Gout. No Gout alone."),
        (Document("2", "Notes", f"{'On and on. ' * 9} Fever."), "Gout. Notes. On and on. On"),
    ],
    ids=["a name that holds another one", "a name that stands behind the cut"],
)
def test_the_right_name_takes_the_place_of_every_other(other: Document, shown: str) -> None:
    source = Source("s", (), (), diagnoses=("Gout", "Fever", "Lung fever"))
    case = Case("1", "A patient.", Truth("Gout"))
    found = reference.states(case, source, [Document("1", "Gout", "A toe."), other], 6, 0)
    assert found is not None
    assert found[MISNAMED] == shown


def test_passages_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file; or clinic:SUBSET"):
        reference.texts_of("nowhere.jsonl")
    file = tmp_path / "one.jsonl"
    file.write_text('{"id": "1", "label": "Flu", "definition": "A fever."}\n')
    assert [said(text) for text in reference.texts_of(str(file))] == ["Flu. A fever."]


def test_passages_of_an_index_are_right_by_id_and_nobodys_own(tmp_path: Path) -> None:
    build([str(release(tmp_path / "hpo"))], tmp_path / "index", IndexSettings())
    texts = reference.texts_of(str(tmp_path / "index"))
    assert len(texts) == 7
    sick = ("OMIM:4", "Twin syndrome")
    rows = [patient(f"p{n}", sick, "HP:0000011", "HP:0000012", pmid="PMID:40") for n in range(9)]
    rows.append(patient("x", ("OMIM:2", "Blue disease"), "HP:1", "HP:2", pmid="PMID:20"))
    source = open_source(patients(tmp_path / "p.jsonl", *rows))
    *twins, alone = source.test
    for case in twins:
        shown = reference.states(case, source, texts, 100, 0)
        assert shown is not None
        assert shown[NAMED].startswith(
            "Twin syndrome. Disease OMIM:4, Twin syndrome. Source: PMID:41"
        )
        assert shown[MISNAMED].startswith("Twin syndrome. Disease OMIM:")
        assert not shown[MISNAMED].startswith("Twin syndrome. Disease OMIM:4")
        name, _, rest = shown[OTHER].partition(". ")
        assert shown[MISNAMED] == f"Twin syndrome. {rest.replace(name, 'Twin syndrome')}"
    assert reference.states(alone, source, texts, 100, 0) is None
