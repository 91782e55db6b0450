"""The renamed clinic: names drawn per case, known to the library alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workup import environments
from workup.cases import open_source
from workup.cases.clinic import clinic
from workup.cases.clinic.graph import Triple, read_triples
from workup.cases.clinic.library import library
from workup.cases.clinic.renamed import (
    FIRST,
    SECOND,
    RenamedKnowledge,
    called,
    diseases,
    in_marks,
    meanings,
    names,
    pictures,
    said,
)
from workup.cases.clinic.tables import SUBSETS, clinic_tables
from workup.cases.jsonl import line_of
from workup.cases.knowledge import Categorical, TabularKnowledge
from workup.core.case import Case, Document, Passage, Source
from workup.core.episode import Action, Completion, Episode, Turn
from workup.core.errors import UserError
from workup.core.ports import Doctor, Teaching
from workup.environments.base.queries import known_findings, taught_diagnosis
from workup.environments.base.searched import Searched
from workup.environments.base.searchers import IdealSearcher, RandomSearcher
from workup.environments.base.teacher import drawn_case
from workup.methods.cmig.searching import exact
from workup.metrics.documents import doc_hit, first_hop
from workup.metrics.measures import measure
from workup.models.tiny import build_tokenizer
from workup.rl.rollout import Play, ToPlay, rollout
from workup.roles.judges.exact import ExactJudge
from workup.runs.settings import world

TRUE_NAMES = [name for each in clinic_tables().diseases for name in (each.name, *each.synonyms)]
TRUE = re.compile(rf"\b(?:{'|'.join(map(re.escape, TRUE_NAMES))})\b", re.IGNORECASE)
MARK = re.compile(r"(?:disease|picture)\d", re.IGNORECASE)
RENAMED = open_source("clinic:s#renamed")
HELD_OUT = open_source("clinic:s#renamed,held-out")
LINKED = open_source("clinic:s#renamed,linked")
PLACES = (
    "clinic:s#renamed,linked",
    "clinic:xs#renamed",
    "clinic:s#renamed,papers",
    "clinic:full#renamed",
)


def shelf(source: Source, name: str = "library", **given: object) -> Searched:
    more = {"subqueries": 0} if name == "library" else {}
    opened = world({"name": name, "told": "record", **more, **given}, {}).open(source)
    assert isinstance(opened, Searched)
    return opened


SHELF = shelf(RENAMED, max_turns=2)


def search(query: str, case: Case, on: Searched = SHELF) -> Turn:
    text = on.write("search", query)
    action = on.read(text)
    return Turn((), Completion(text), action, asyncio.run(on.answer(case, (), action)))


def play(doctor: Doctor, case: Case, on: Searched = SHELF) -> Episode:
    return asyncio.run(rollout(ToPlay(case, 0), on, doctor, Play()))


def texts(source: Source, on: Searched, case: Case) -> Iterator[str]:
    """All that can be read of a case: an episode's messages, and what is written of the case."""
    assert source.knowledge is not None
    episode = play(IdealSearcher(source, source.knowledge, on), case, on)
    for turn in episode.turns:
        yield turn.completion.text
        yield from (message.content for message in turn.observation.messages)
    yield from (message.content for message in on.open(case))
    yield case.truth.record
    yield from (case.truth.diagnosis, *case.truth.aliases, *case.truth.differentials)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["library", "reasoning"])
def test_no_true_name_and_no_mark_is_ever_read(place: str, name: str) -> None:
    source = open_source(place)
    on = shelf(source, name, max_turns=3)
    everything = [*source.phrases, *on.phrases, *source.diagnoses]
    for index in range(4):
        case = source.test[index]
        everything += texts(source, on, case)
        shown = on.demonstrate(source, Teaching(), 0, index)
        everything += [message.content for message in shown.opening]
        for written, messages in shown.exchanges:
            everything += [written, *(message.content for message in messages)]
        everything += getattr(on, "references", lambda case: ())(case)
    assert not [text for text in everything if TRUE.search(text) or MARK.search(text)]
    assert TRUE.search("She has acute cholecystitis.")


@pytest.mark.parametrize("index", [0, 7, 99_999])
def test_a_case_is_the_plain_clinics_patient_and_the_same_twice(index: int) -> None:
    one, plain = RENAMED.test[index], open_source("clinic:s").test[index]
    assert one == open_source("clinic:s#renamed").test[index]
    assert (one.id, one.presentation, one.given) == (plain.id, plain.presentation, plain.given)
    assert one.truth.facts == plain.truth.facts
    places = [each.name for each in clinic("s").tables.diseases]
    called_here = list(called(one).values())
    assert one.truth.diagnosis == called_here[places.index(plain.truth.diagnosis)]
    assert one.truth.differentials == tuple(
        called_here[places.index(name)] for name in plain.truth.differentials
    )
    assert (one.truth.aliases, one.truth.codes) == ((), ())
    assert one.truth.diagnosis in line_of(one)


def test_names_are_drawn_anew_for_every_case() -> None:
    cases = [
        *RENAMED.train[:30],
        *RENAMED.test[:30],
        *open_source("clinic:s#renamed", split=1).test[:30],
    ]
    drawn = [tuple(called(case).values()) for case in cases]
    assert len(set(drawn)) == len(drawn)
    first = [names[0] for names in drawn]
    assert len(set(first)) > 60
    for each in drawn:
        assert len({name[:2] for name in each}) == len(each) == 12


def test_held_out_names_are_in_no_training_case_and_in_every_test_case() -> None:
    known, unknown = set(names(held_out=False)), set(names(held_out=True))
    assert len(known | unknown) == len(known) + len(unknown) == len(FIRST) * len(SECOND)
    assert len(unknown) == len(known) / 3
    assert {name[:2] for name in known} == set(FIRST)
    assert {name[2:] for name in known} == set(SECOND)
    for index in range(0, 1000, 10):
        train = set(called(HELD_OUT.train[index]).values())
        assert train <= known
        assert HELD_OUT.train[index] == RENAMED.train[index]
        assert set(called(HELD_OUT.test[index]).values()) <= unknown
        assert set(called(RENAMED.test[index]).values()) <= known


@given(st.integers(0, 10_000), st.data())
@settings(max_examples=40, deadline=None)
def test_names_and_marks_are_each_others_inverse(index: int, data: st.DataObject) -> None:
    case = RENAMED.train[index]
    marks = list(called(case))
    words = data.draw(st.lists(st.sampled_from([*marks, "fever", ",", "Findings:"]), max_size=9))
    text = " ".join(words)
    assert in_marks(case, said(case, text)) == text
    assert said(case, in_marks(case, said(case, text))) == said(case, text)
    assert not MARK.search(said(case, text))


def test_a_mark_or_a_true_name_in_a_query_finds_nothing() -> None:
    case = RENAMED.test[0]
    for query in ("disease03", "acute cholecystitis", "appendicitis", "Xyzzy"):
        assert not search(query, case).observation.evidence


def test_no_mark_comes_about_when_marks_are_removed() -> None:
    assert not MARK.search(in_marks(RENAMED.test[0], "disdisease07ease08 diseasdisease01e02"))


def test_a_made_up_name_finds_the_documents_of_its_disease() -> None:
    source = open_source("clinic:s#renamed,papers")
    papers = shelf(source, passages=20)
    of = {document.id: document.disease for document in library("s#renamed,papers")}
    for index in range(3):
        case = source.test[index]
        for mark, name in called(case).items():
            (entry,) = search(name.upper(), case).observation.passages or ()
            assert entry.id.startswith(f"s-handbook-{int(mark[-2:])}")
            found = search(name, case, papers).observation.passages or ()
            first = [of[passage.id.partition("#")[0]] for passage in found][:3]
            assert first == [mark] * 3
            assert all(name in passage.whole for passage in found[:3])


def test_papers_are_the_plain_clinics_but_for_names() -> None:
    marks = {
        each.name: f"disease{place:02}" for place, each in enumerate(clinic("s").tables.diseases)
    }
    ordered = sorted(marks, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, ordered)), re.IGNORECASE)
    for plain, masked in zip(library("s"), library("s#renamed,papers"), strict=True):
        assert (plain.id, plain.level) == (masked.id, masked.level)
        if ", also called " not in plain.text:
            text = pattern.sub(lambda name: marks[name[0].lower()], plain.text)
            assert text.lower() == masked.text.lower()


# --- knowledge ---

DISEASES, POOL = ("disease00", "disease01", "disease02"), ("Babral", "Cedex", "Difom", "Folin")
SMALL = TabularKnowledge(
    DISEASES,
    [0.5, 0.3, 0.2],
    [
        Categorical("rash", ((), ("rash:yes",)), np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])),
        Categorical("pain", ((), ("pain:yes",)), np.array([[0.3, 0.7], [0.5, 0.5], [0.9, 0.1]])),
    ],
)


def enumerated(evidence: dict[str, tuple[str, ...]]) -> np.ndarray:
    """P(name, answer about pain | evidence) over all ways to name the diseases: names × 2."""
    chance = {"rash": (0.1, 0.6, 0.8), "pain": (0.7, 0.5, 0.1)}
    table = np.zeros((len(POOL), 2))
    for naming in permutations(POOL, len(DISEASES)):
        named = zip(DISEASES, naming, strict=True)
        if any(evidence.get(name, (mark,)) != (mark,) for mark, name in named):
            continue
        if any(name in evidence and name not in naming for name in POOL):
            continue
        for place, prior in enumerate((0.5, 0.3, 0.2)):
            weight = prior
            if "rash" in evidence:
                rash = chance["rash"][place]
                weight *= rash if evidence["rash"] else 1 - rash
            pain = chance["pain"][place]
            table[POOL.index(naming[place])] += weight * np.array([1 - pain, pain])
    return table / table.sum()


@pytest.mark.parametrize("rash", [None, (), ("rash:yes",)])
@pytest.mark.parametrize("known", [POOL[:0], POOL[1:2], POOL[1:3], POOL[1:4]])
def test_exact_knowledge_is_that_of_all_ways_to_name_the_diseases(
    rash: tuple[str, ...] | None, known: Sequence[str]
) -> None:
    evidence = {name: (mark,) for name, mark in zip(known, DISEASES, strict=False)}
    if rash is not None:
        evidence["rash"] = rash
    table, exact = enumerated(evidence), RenamedKnowledge(SMALL, POOL)
    np.testing.assert_allclose(exact.posterior(evidence), table.sum(1), atol=1e-9)
    safe = np.maximum(table, 1e-300)
    outer = np.maximum(table.sum(1, keepdims=True) * table.sum(0), 1e-300)
    information = float((table * np.log(safe / outer)).sum())
    np.testing.assert_allclose(exact.gains(evidence, ["pain"]), [information], atol=1e-9)


def test_without_a_search_exact_reasoning_is_at_chance_and_with_one_at_the_ceiling() -> None:
    plain = open_source("clinic:s")
    assert RENAMED.knowledge is not None
    assert plain.knowledge is not None
    told = shelf(plain)
    doctors = SHELF.anchors(RENAMED, 0)
    for index in range(40):
        case, before = RENAMED.test[index], plain.test[index]
        blind = RENAMED.knowledge.posterior(SHELF.known(case))
        np.testing.assert_allclose(blind, 1 / len(RENAMED.diagnoses))
        chances = plain.knowledge.posterior(told.known(before))
        wanted = plain.knowledge.diagnoses[int(np.argmax(chances))]
        episode = play(doctors["ideal searcher"], case)
        reached = list(called(case).values())[plain.knowledge.diagnoses.index(wanted)]
        assert episode.answer == (reached,)
        assert exact(reached, case) == (wanted == before.truth.diagnosis)
        (answer,) = play(doctors["full information"], case).answer
        right = asyncio.run(ExactJudge().same(answer, case))
        assert right == (answer == case.truth.diagnosis)
        assert answer in called(case).values()


def test_a_random_searcher_knows_what_it_has_read_and_no_more() -> None:
    assert RENAMED.knowledge is not None
    doctor = RandomSearcher(RENAMED, RENAMED.knowledge, SHELF)
    for index in range(20):
        case = RENAMED.test[index]
        episode = play(doctor, case)
        shown = {
            name for name in called(case).values() if name in str(episode.turns[0].observation)
        }
        assert set(meanings(case, [passage.whole for passage in episode.passages])) == shown
        assert case.truth.diagnosis in shown or episode.answer[0] != case.truth.diagnosis
        assert doc_hit(episode) == (case.truth.diagnosis in shown)


# --- two documents say what a name means ---


def linked(max_turns: int, **given: object) -> Searched:
    return shelf(LINKED, passages=1, max_turns=max_turns, **given)


def read_by_hand(texts: Sequence[str]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Picture → findings, and disease → picture, of the passages of an episode."""
    told, shows = {}, {}
    for text in texts:
        title, _, rest = text.partition("\n")
        kind, _, content = rest.removesuffix(".").partition(": ")
        if kind == "Findings":
            told[title] = set(content.split(", "))
        else:
            assert kind == "Picture"
            shows[title] = content
    return told, shows


def test_the_hops_of_a_search_are_told_apart() -> None:
    """By the documents that the right diagnosis has, read by hand."""
    assert LINKED.knowledge is not None
    found = []
    for index in range(12):
        case, world = LINKED.test[index], linked(4)
        episode = play(RandomSearcher(LINKED, LINKED.knowledge, world), case, world)
        told, shows = read_by_hand([passage.whole for passage in episode.passages])
        both = list(called(case).values())
        its = both[len(both) // 2 + both.index(case.truth.diagnosis)]
        hops = (its in told, case.truth.diagnosis in shows)
        assert (first_hop(episode), doc_hit(episode)) == hops
        assert measure(episode, True, world)["first_hop"] == hops[0]
        found.append(hops)
    assert len(set(found)) > 2
    unlinked = play(RandomSearcher(RENAMED, RENAMED.knowledge, SHELF), RENAMED.test[0])
    assert first_hop(unlinked) is None
    assert "first_hop" not in measure(unlinked, True, SHELF)


def test_a_linked_case_is_the_unlinked_one_with_names_for_pictures() -> None:
    for index in range(10):
        case, plain = LINKED.test[index], RENAMED.test[index]
        assert case.truth.diagnosis == plain.truth.diagnosis
        assert called(case).items() >= called(plain).items()
        assert len(pictures(case)) == len(called(plain)) == 12
        assert len({name[:2] for name in called(case).values()}) == 24
        assert not set(pictures(case)) & set(called(plain).values())


def test_a_disease_and_its_picture_stand_in_two_documents() -> None:
    case = LINKED.test[0]
    names = called(case)
    for number, shown in enumerate(pictures(case)):
        (passage,) = search(shown, case, linked(3)).observation.passages or ()
        disease = names[f"disease{number:02}"]
        assert passage.whole == f"{disease}\nPicture: {shown}."
        whose = {disease: (f"disease{number:02}",)}
        assert not meanings(case, [disease])
        assert meanings(case, [disease, shown]) == whose
        assert meanings(case, [shown, *diseases(case)]) == whose


@pytest.mark.long
def test_two_searches_are_needed_and_enough() -> None:
    """One search leaves chance; with two the ideal searcher reaches the ceiling.

    That is the plain clinic's exact diagnosis, where that disease's own findings find it.
    """
    assert LINKED.knowledge is not None
    reached = 0
    for index in range(30):
        case = LINKED.test[index]
        for most in (2, 3):
            on = linked(most)
            episode = play(IdealSearcher(LINKED, LINKED.knowledge, on), case, on)
            texts = [passage.whole for passage in episode.passages]
            _, shows = read_by_hand(texts)
            assert len(shows) == max(most - 2, 0)
            if most == 3:
                (full,) = play(linked(3).anchors(LINKED, 0)["full information"], case).answer
                reached += episode.answer == (full,)
    assert reached >= 28


def test_a_demonstration_in_a_linked_clinic_names_the_best_disease_that_it_read() -> None:
    on = linked(4, refined="findings", open_books=0)
    told_of = 0
    for index in range(60):
        case, _ = drawn_case(LINKED, 0, index)
        shown = on.demonstrate(LINKED, Teaching(), 0, index)
        assert len(shown.exchanges) >= 3
        told, shows = read_by_hand(
            re.findall(
                r"\[1\] (\w+\n\w+: .*\.)</evidence>", str([*shown.exchanges]).replace("\\n", "\n")
            )
        )
        (diagnosis,) = re.findall("<diagnosis>(.*)</diagnosis>", shown.exchanges[-1][0])
        if case.truth.diagnosis in shows or not shows:
            assert diagnosis == case.truth.diagnosis
            continue
        told_of += 1
        known = {fact.item for fact in (*case.given, *case.truth.facts)}
        shared = {name: len(known & told.get(seen, set())) for name, seen in shows.items()}
        assert shared[diagnosis] == max(shared.values())
    assert told_of


def test_a_refinement_says_whose_picture_it_is() -> None:
    on = linked(4, refined="findings", open_books=0)
    said = [
        text
        for index in range(20)
        for text, _ in on.demonstrate(LINKED, Teaching(), 0, index).exchanges
    ]
    whose = [
        found for text in said if (found := re.match(r"<refine>\[1\] (\w+): ([A-Z]\w+)<", text))
    ]
    assert whose
    assert any(re.match(r"<refine>\[1\] [A-Z]\w+: [a-z]", text) for text in said)


def test_the_anchors_of_the_plain_clinic_are_those_it_had() -> None:
    plain = open_source("clinic:s")
    assert set(shelf(plain).anchors(plain, 0)) == {"told information", "full information"}


# --- what is taught, and the tiny policy ---


def test_refinements_go_through_the_passages() -> None:
    on = shelf(RENAMED, max_turns=2, refined="findings", queried=9)
    (query, (evidence,)), (last, _) = next(
        shown.exchanges
        for shown in (on.demonstrate(RENAMED, Teaching(), 3, index) for index in range(20))
        if len(shown.exchanges) == 2
    )
    refined = last.partition("<refine>")[2].partition("</refine>")[0]
    entries = re.findall(r"\[\d\] (\w+)\nFindings: (.*)\.", evidence.content)
    assert [part.partition(":")[0] for part in refined.split("; ")] == [
        f"[{number}] {name}" for number, (name, _) in enumerate(entries, 1)
    ]
    for part, (_, findings) in zip(refined.split("; "), entries, strict=True):
        listed = [each for each in part.partition(": ")[2].split(", ") if each]
        assert set(listed) <= set(findings.split(", "))
        asked = query.removeprefix("<search>").removesuffix("</search>").split(", ")
        assert set(asked) & set(findings.split(", ")) <= set(listed)


def test_a_demonstration_names_the_truth_only_where_it_was_read() -> None:
    """Else it names the entry with most of the patient's findings, counted here by hand."""
    on = shelf(RENAMED, max_turns=2, refined="findings", open_books=0)
    unread = 0
    for index in range(40):
        case, _ = drawn_case(RENAMED, 0, index)
        (_, (evidence,)), (last, _) = on.demonstrate(RENAMED, Teaching(), 0, index).exchanges
        entries = dict(re.findall(r"\[\d\] (\w+)\nFindings: (.*)\.", evidence.content))
        (diagnosis,) = re.findall("<diagnosis>(.*)</diagnosis>", last)
        if case.truth.diagnosis in entries or not entries:
            assert diagnosis == case.truth.diagnosis
            continue
        unread += 1
        known = {fact.item for fact in (*case.given, *case.truth.facts)}
        shared = {name: len(known & set(text.split(", "))) for name, text in entries.items()}
        assert shared[diagnosis] == max(shared.values())
    assert unread


def test_of_two_passages_about_one_name_the_better_one_counts() -> None:
    case, _ = drawn_case(RENAMED, 0, 0)
    one, other = [name for name in called(case).values() if name != case.truth.diagnosis][:2]
    findings = known_findings(RENAMED, case, shelf(RENAMED, told="record").grammar)[:2]
    texts = {
        f"Findings: {', '.join(findings)}.": one,
        "Nothing else.": one,
        f"Findings: {findings[0]}.": other,
    }
    read = [Passage(text, text, title) for text, title in texts.items()]
    for order in permutations(read):
        assert taught_diagnosis(order, RENAMED, case, findings) == one


def test_no_book_lies_open_where_nothing_can_be_searched() -> None:
    on = shelf(RENAMED, max_turns=1, open_books=1)
    shown = on.demonstrate(RENAMED, Teaching(), 0, 0)
    assert shown.opening == on.open(drawn_case(RENAMED, 0, 0)[0])
    assert len(shown.exchanges) == 1


def test_a_demonstrated_query_may_hold_all_findings() -> None:
    on = shelf(RENAMED, max_turns=2, queried=0, open_books=0)
    for index in range(5):
        case, _ = drawn_case(RENAMED, 0, index)
        query = on.demonstrate(RENAMED, Teaching(), 0, index).exchanges[0][0]
        asked = on.read(query).content[0].split(", ")
        assert asked == known_findings(RENAMED, case, on.grammar), "in the record's order"


def test_demonstrations_always_search() -> None:
    for name in ("library", "reasoning"):
        on = shelf(RENAMED, name, max_turns=2)
        shown = [on.demonstrate(RENAMED, Teaching(), 0, index) for index in range(12)]
        assert all(
            "<evidence>" in str(s) or "<document>" in str(s) or "<refine>" in str(s) for s in shown
        )


def test_names_are_two_tokens_and_come_back_as_they_were() -> None:
    on = shelf(open_source("clinic:s#renamed,papers,held-out"), "reasoning")
    tokens = build_tokenizer(HELD_OUT, on.phrases)
    for name in HELD_OUT.diagnoses[::37]:
        assert len(tokens(name)["input_ids"]) == 2
        written = f"{name} often presents with fever; "
        said_back = tokens.decode(tokens(written)["input_ids"])
        assert read_triples(said_back) == read_triples(written) != ()


def test_thoughts_repeat_the_statements_that_bear_on_the_patient() -> None:
    source = open_source("clinic:s#renamed,statements")
    on = shelf(source, "reasoning", max_turns=2, repeated=99, queried=9, passages=3)
    thoughts = 0
    for index in range(6):
        (_, (document,)), (last, _) = on.demonstrate(source, Teaching(), 1, index).exchanges
        made = {said.lower() for said in re.findall(r"[A-Z][^.;\n]* [^.;\n]*\.", document.content)}
        thought = {f"{said.strip().lower()}." for said in last.split("</think>")[0].split(";")[:-1]}
        thoughts += len(thought)
        assert thought <= made
        answer = re.findall("<answer>(.*)</answer>", last)
        assert answer[0] in source.diagnoses
    assert thoughts


def test_statements_of_reference_reasoning_bear_the_cases_names() -> None:
    on = environments.load("reasoning").open(RENAMED, environments.load("reasoning").Settings())
    case = RENAMED.test[0]
    (reference,) = on.references(case)
    heads = {triple.head for triple in read_triples(reference) if triple.relation == "belongs to"}
    assert heads == {case.truth.diagnosis.lower()}


def test_with_links_a_chain_of_statements_leads_from_the_finding_to_the_name() -> None:
    """Both documents say it in sentences, and so does the reference: name → picture → finding."""
    source = open_source("clinic:s#renamed,linked,statements")
    on = shelf(source, "reasoning", passages=2, max_turns=3)
    for case in (source.test[index] for index in range(6)):
        whose = dict(
            zip(map(str.lower, diseases(case)), map(str.lower, pictures(case)), strict=True)
        )
        truth = case.truth.diagnosis.lower()
        passages = [said(case, f"{each.title}\n{each.text}") for each in on_paper(source)]
        read = {triple for text in passages for triple in read_triples(text)}
        assert {(t.head, t.tail) for t in read if t.relation == "has picture"} == set(whose.items())
        assert {t.head for t in read if t.relation != "has picture"} == set(whose.values())
        (reference,) = on.references(case)
        about = read_triples(reference)
        found = {t for t in about if t.head == whose[truth]}
        items = {fact.item for fact in case.all_facts}
        assert found == {t for t in read if t.head == whose[truth] and t.tail in items}
        assert Triple(truth, "has picture", whose[truth]) in about
        assert not [t for t in about if t.head == truth and t.tail in items]


def on_paper(source: Source) -> Sequence[Document]:
    assert source.library is not None
    return source.library.documents()


def test_a_thought_repeats_whose_picture_it_is() -> None:
    source = open_source("clinic:s#renamed,linked,statements")
    on = shelf(source, "reasoning", max_turns=4, repeated=99, queried=9, passages=2)
    led = 0
    for index in range(30):
        case, _ = drawn_case(source, 1, index)
        *_, (last, _) = exchanges = on.demonstrate(source, Teaching(), 1, index).exchanges
        thoughts = " ".join(text.replace("; ", ". ") for text, _ in exchanges)
        tied = {t.head: t.tail for t in read_triples(thoughts) if t.relation == "has picture"}
        shown = " ".join(message.content for _, said in exchanges for message in said)
        assert tied.keys() == {
            name.lower() for name in diseases(case) if f"{name} has the picture" in shown
        }
        (answer,) = re.findall("<answer>(.*)</answer>", last)
        led += answer.lower() in tied
    assert led > 10


# --- mistakes ---


@pytest.mark.parametrize(
    ("spec", "instead"),
    [
        ("clinic:s#rename", "s#renamed"),
        ("clinic:s#renamed,heldout", "held-out"),
        ("clinic:pathology#renamed", "full#renamed"),
        ("clinic:q#renamed", "s#renamed"),
        ("clinic:s#renamed,linked,papers", "type s#renamed,papers or s#renamed,linked"),
        (
            "clinic:s#renamed,papers,statements,linked",
            "type s#renamed,papers or s#renamed,statements,linked",
        ),
        ("clinic:full#renamed,linked", "type m#renamed,linked"),
    ],
)
def test_a_mistyped_place_says_what_to_type(spec: str, instead: str) -> None:
    with pytest.raises(UserError, match=re.escape(instead)):
        open_source(spec)


def test_a_renamed_clinic_has_its_own_library_alone() -> None:
    for place, index in (("clinic:s#renamed", "clinic:s"), ("clinic:s", "clinic:s#renamed")):
        with pytest.raises(UserError, match="go together"):
            shelf(open_source(place), index=index)
    shelf(RENAMED, index="clinic:s#renamed,papers")
    for source, index in ((RENAMED, f"{RENAMED.name},linked"), (LINKED, RENAMED.name)):
        with pytest.raises(UserError, match="clinic:s#renamed has no names for pictures"):
            shelf(source, index=index)


def test_every_subset_opens() -> None:
    for subset in SUBSETS:
        source = open_source(f"clinic:{subset}#renamed")
        assert len(called(source.train[0])) == len(clinic(subset).tables.diseases)
    assert SHELF.read("<search>fever</search>") == Action("search", ("fever",))
