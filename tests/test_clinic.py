"""The built-in clinic against its own tables.

Tested are what the tables have to fulfil, sampling, knowledge, criticality and texts.
"""

import re
import tracemalloc
from collections import Counter
from itertools import pairwise, permutations
from math import log
from time import process_time

import numpy as np
import pytest
from exact_shapley import MOST_FACTS, shapley
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from workup.cases import open_source
from workup.cases.clinic import clinic, open_clinic
from workup.cases.clinic.patients import DECADES, TEST, TRAIN, Patients
from workup.cases.clinic.tables import SEXES, SUBSETS, clinic_tables, parts, rows, shares
from workup.cases.knowledge import Categorical, TabularKnowledge
from workup.core.case import Case, Fact, Kind, Source, Truth, evidence_of
from workup.core.errors import UserError

TABLES = clinic_tables()
SOURCES = {subset: open_clinic(subset) for subset in SUBSETS}
DRAWN = 12_000
NAMES = [name for disease in TABLES.diseases for name in (disease.name, *disease.synonyms)]
NAMED = re.compile(r"\b(" + "|".join(map(re.escape, NAMES)) + r")\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def drawn():
    """Many patients of the second-smallest clinic, before any text is made.

    They are as the sampler draws them.
    """
    rng = np.random.default_rng(11)
    return [clinic("s").draw(rng) for _ in range(DRAWN)]


# --------------------------------------------------------------------------------------- the tables


def test_sizes_and_families():
    sizes = {s: (len(TABLES.subset(s).diseases), len(TABLES.subset(s).findings)) for s in SUBSETS}
    assert (sizes["xs"], sizes["s"], sizes["m"]) == ((6, 16), (12, 30), (24, 60))
    assert sizes["full"] >= (48, 160)
    assert len({disease.family for disease in TABLES.diseases}) >= 8
    assert {finding.kind for finding in TABLES.findings} == set(Kind)


def test_each_clinic_contains_the_smaller_ones():
    for smaller, larger in pairwise(SUBSETS):
        assert set(TABLES.subset(smaller).diseases) < set(TABLES.subset(larger).diseases)
        assert set(TABLES.subset(smaller).findings) < set(TABLES.subset(larger).findings)


def test_codes_have_the_form_of_icd_10_cm():
    for disease in TABLES.diseases:
        assert re.fullmatch(r"[A-TV-Z]\d[0-9A-Z](\.[0-9A-Z]{1,4})?", disease.code), disease.name
    codes = Counter(disease.code for disease in TABLES.diseases)
    assert max(codes.values()) == 1


def test_promised_kinds_of_findings_are_there():
    full = clinic("full")
    names = [finding.name for finding in full.tables.findings]
    spread = full.present.max(0) - full.present.min(0)
    hallmarks = [
        full.present[:, i].max() / full.tables.findings[i].background for i in range(len(names))
    ]
    assert sum(ratio > 50 for ratio in hallmarks) >= 20
    assert sum(spread < 1e-9) >= 3, "pure noise: the same in every disease"
    families = {d.name: d.family for d in full.tables.diseases}
    fever = {
        families[d.name]
        for d in full.tables.diseases
        if TABLES.given.get((d.name, "", "fever"), 0) > 0.3
    }
    assert len(fever) >= 5, "shared across families"
    assert {"allergic rhinitis", "allergic sinusitis"} <= set(families)
    assert {d.female for d in full.tables.diseases} >= {0.0, 1.0}


def test_pancreatitis_is_two_of_three_where_cholecystitis_is_one_picture():
    world = clinic("s")
    names = [finding.name for finding in world.tables.findings]
    criteria = [names.index(name) for name in ("epigastric pain", "serum lipase", "pancreas CT")]
    of = {disease.name: index for index, disease in enumerate(world.tables.diseases)}

    def mixture(disease, values):
        rows = [k for k, profile in enumerate(world.profiles) if profile.disease == of[disease]]
        return np.average(values(world.present[rows]), weights=world.prior[rows], axis=0)

    def two_or_more(p):
        return 1 - (1 - p).prod(1) - sum(p[:, i] * np.delete(1 - p, i, 1).prod(1) for i in range(3))

    assert mixture("acute pancreatitis", lambda p: two_or_more(p[:, criteria])) > 0.9
    assert max(mixture("acute pancreatitis", lambda p: p[:, criteria])) < 0.85
    assert (
        mixture("acute cholecystitis", lambda p: p[:, names.index("gallbladder ultrasound")]) > 0.89
    )


def test_what_is_named_has_one_name_alone_and_numbers_in_their_ranges():
    everything = (*TABLES.diseases, *TABLES.findings)
    # a synonym may repeat its own name in other letters
    names = [
        name for one in everything for name in {n.casefold() for n in (one.name, *one.synonyms)}
    ]
    panels = {name.casefold() for row in rows("panels.csv") for name in parts(row["names"])}
    assert panels == {name for name, count in Counter(names).items() if count > 1}
    assert all(name.strip() for name in names)
    members = {name for row in rows("panels.csv") for name in parts(row["findings"])}
    assert members <= {finding.name for finding in TABLES.findings}
    for disease in TABLES.diseases:
        assert disease.code
        assert disease.family
        assert disease.subset in SUBSETS
        assert 0 < disease.prevalence < 1e6
        assert 0 <= disease.female <= 1
        assert [0, *disease.ages, 120] == sorted([0, *disease.ages, 120]), disease.name
        assert sum(weight for _, weight in disease.variants) == pytest.approx(1)
        assert min(weight for _, weight in disease.variants) > 0
    for finding in TABLES.findings:
        assert finding.question
        assert finding.sex in ("", *SEXES)
        assert finding.subset in SUBSETS
        assert 0 < finding.background < 1
        assert finding.cost > 0
        assert finding.complaint == 0 or (finding.complaint > 0 and finding.kind is Kind.HISTORY)
        assert min(map(len, finding.present)), finding.name
        assert min(map(len, finding.absent)), finding.name
    assert {row["must_not_miss"] for row in rows("diseases.csv")} == {"", "yes"}


def test_likelihoods_are_of_known_things_each_once():
    variants = {disease.name: dict(disease.variants) for disease in TABLES.diseases}
    findings = {finding.name for finding in TABLES.findings}
    for disease, variant, finding in TABLES.given:
        assert finding in findings
        assert not variant or variant in variants[disease], disease
    assert len(TABLES.given) == len(rows("likelihoods.csv"))
    assert all(0 < probability < 1 for probability in TABLES.given.values())


def test_a_parent_is_there_wherever_its_finding_is_and_has_none_itself():
    of = {finding.name: finding for finding in TABLES.findings}
    children = [finding for finding in TABLES.findings if finding.parent]
    assert children
    for finding in children:
        parent = of[finding.parent]
        assert SUBSETS.index(parent.subset) <= SUBSETS.index(finding.subset), finding.name
        assert parent.sex in ("", finding.sex), finding.name
        assert parent.parent is None, finding.name


def test_every_patient_has_a_complaint_of_some_probability_to_come_with():
    for disease in TABLES.diseases:
        at_hand = TABLES.subset(disease.subset).findings
        for sex, share in zip(SEXES, (disease.female, 1 - disease.female), strict=True):
            possible = [f for f in at_hand if f.complaint and f.sex in ("", sex)]
            for variant, _ in disease.variants if share else ():
                chances = [TABLES.probability(disease.name, variant, f) for f in possible]
                assert max(chances) >= 0.3, (disease.name, variant, sex)


def test_rows_become_diseases_and_sentences():
    of = {disease.name: disease for disease in TABLES.diseases}
    row = next(row for row in rows("diseases.csv") if row["variants"] and row["synonyms"])
    first, _, weight = row["variants"].split("|")[0].partition("=")
    assert of[row["name"]].variants[0] == (first, float(weight))
    assert "|".join(of[row["name"]].synonyms) == row["synonyms"]
    assert [d.name for d in TABLES.diseases if d.must_not_miss] == [
        row["name"] for row in rows("diseases.csv") if row["must_not_miss"]
    ]
    assert parts("") == ()
    assert parts("a|b") == ("a", "b")
    assert shares("a b=0.25|c=1")["a b"] == 0.25
    told = [f for f in TABLES.findings if f.unit]
    assert told
    assert all("{" not in text for f in told for text in (*f.present, *f.absent))
    assert any(f.unit in f.present[0] and f.reference in f.present[0] for f in told)


# ---------------------------------------------------------------------------------------- the cases


def test_sources_open_by_name():
    source: Source = open_source("clinic:s", split=4)
    assert (source.name, len(source.train), len(source.test)) == ("clinic:s", TRAIN, TEST)
    assert len(source.items) == 30
    assert set(source.diagnoses) == {disease.name for disease in TABLES.subset("s").diseases}
    assert open_source("clinic:pathology").diagnoses
    for wrong in ("clinic:small", "clinic:"):
        with pytest.raises(UserError, match="no clinic"):
            open_source(wrong)
    with pytest.raises(UserError, match="no clinic"):
        open_clinic("pathology")


@given(
    st.sampled_from(SUBSETS),
    st.sampled_from(["train", "test"]),
    st.integers(0, TEST - 1),
    st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_a_case_depends_on_split_side_and_index_alone(subset, side, index, split):
    cases = getattr(open_clinic(subset, split), side)
    case = cases[index]
    assert case == Patients(subset, split, side, range(TRAIN))[index]
    assert case == cases[index - len(cases)] == cases[index:][0] == cases[: index + 1][-1]
    assert case.id.endswith(f":{index}")


def test_cases_differ_between_indices_sides_and_splits():
    source = open_clinic("s")
    records = [case.truth.record for case in source.train[:300]]
    assert len(set(records)) > 295
    others = [open_clinic("s", 1).train[:300], source.test[:300]]
    for cases in others:
        assert sum(a == case.truth.record for a, case in zip(records, cases, strict=True)) < 5


def test_ends_of_a_split():
    cases = SOURCES["xs"].test
    assert cases[-1] == cases[TEST - 1]
    assert [case.id for case in cases[TEST - 2 :]] == [cases[TEST - 2].id, cases[TEST - 1].id]
    with pytest.raises(IndexError):
        cases[TEST]


def test_the_millionth_case_costs_what_the_first_did_and_memory_does_not_grow():
    cases = SOURCES["s"].train
    assert cases[TRAIN - 1].truth.facts
    tracemalloc.start()
    for index in range(100):
        cases[index]
    before = tracemalloc.get_traced_memory()[0]
    for index in range(100, 800):
        cases[index]
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000
    times = []
    for start in range(0, 500, 50):
        begun = process_time()
        for index in range(start, start + 50):
            cases[index]
        times.append((process_time() - begun) / 50)
    assert min(times) < 1e-3, "a thousand cases a second on one core"


@pytest.mark.long
@pytest.mark.parametrize("subset", SUBSETS)
def test_a_case_is_complete_and_shows_only_what_it_may(subset):
    source, world = SOURCES[subset], clinic(subset)
    phrases, items = set(source.phrases), {item.name: item for item in source.items}
    diseases = {disease.name: disease for disease in world.tables.diseases}
    for case in source.train[:500]:
        facts, disease = case.truth.facts, diseases[case.truth.diagnosis]
        asked = [fact.item for fact in (*facts, case.given[2])]
        assert set(asked) <= set(items)
        assert len(set(asked)) == len(asked)
        assert all(fact.id == f"{fact.item}:yes" for fact in facts)
        assert all(
            fact.kind == items[fact.item].kind and fact.weight in {0, 1, 2, 3} for fact in facts
        )
        assert covered(case.presentation, phrases)
        assert {fact.text for fact in (*facts, *case.given)} <= phrases
        assert all(fact.text in case.truth.record for fact in facts)
        assert not NAMED.search(" ".join([case.presentation, case.truth.record]))
        assert (case.truth.codes, case.category) == ((disease.code,), disease.family)
        assert case.truth.diagnosis not in case.truth.differentials
        within_limits(case, disease, world)


def test_no_sentence_or_item_names_a_diagnosis():
    for finding in TABLES.findings:
        for text in (finding.name, finding.question, *finding.present, *finding.absent):
            assert not NAMED.search(text), text
    assert NAMED.search("This looks like Gout.")
    assert not NAMED.search("This is about gouty toes.")


def covered(text: str, phrases: set[str]) -> bool:
    """Whether the text is phrases joined by spaces or newlines."""
    ends = [match.start() for match in re.finditer(r"\s|$", text)]
    return any(
        text[:end] in phrases and (end == len(text) or covered(text[end + 1 :], phrases))
        for end in ends
    )


def within_limits(case, disease, world):
    age, sex, complaint = (fact.id.split(":")[1] for fact in case.given)
    assert complaint == "yes"
    assert disease.female not in {0.0, 1.0} or sex == {0.0: "male", 1.0: "female"}[disease.female]
    decade = DECADES.index(age)
    assert int(disease.ages[0] // 10) <= decade <= int(disease.ages[2] // 10)
    present = {fact.item for fact in case.truth.facts if fact.id.endswith(":yes")} | {
        case.given[2].item
    }
    for finding in world.tables.findings:
        if finding.name in present:
            assert finding.sex in ("", sex)
            assert finding.parent is None or finding.parent in present


@pytest.mark.parametrize("subset", SUBSETS)
def test_vocabulary_is_moderate_and_holds_names_and_normal_answers(subset):
    source = SOURCES[subset]
    assert len(set(source.phrases)) == len(source.phrases) < 2500
    names = (
        {item.name for item in source.items}
        | {item.normal for item in source.items}
        | set(source.diagnoses)
    )
    assert names <= set(source.phrases)
    assert len({item.name for item in source.items}) == len(source.items)


def record_of(source, case):
    """What asking every item would answer.

    Present findings have their ids, everything else its normal answer.
    """
    return {item.name: () for item in source.items} | evidence_of((*case.given, *case.truth.facts))


# ------------------------------------------------------------------- the sampler against the tables


def test_diseases_and_complaints_come_as_often_as_the_tables_say(drawn):
    world = clinic("s")
    weights = [finding.complaint for finding in world.tables.findings]
    expected = world.prior[:, None] * world.present * weights
    expected = DRAWN * expected / expected.sum()
    for axis, seen in ((1, [d[0] for d in drawn]), (0, [d[2] for d in drawn])):
        wanted = expected.sum(axis)
        counts = np.bincount(seen, minlength=len(wanted))
        assert (counts[wanted == 0] == 0).all()
        assert chisquare(counts[wanted > 0], wanted[wanted > 0]).pvalue > 1e-3


def test_findings_come_as_often_as_the_tables_say(drawn):
    """z-scores over all profiles must be standard normal.

    The complaint is left out, which is there by construction.
    """
    world = clinic("s")
    deviations = []
    for place in range(len(world.profiles)):
        mine = [d for d in drawn if d[0] == place]
        for finding, chance in enumerate(world.present[place]):
            others = [d[3][finding] for d in mine if d[2] != finding]
            n, spread = len(others), (chance * (1 - chance) * len(others)) ** 0.5
            if spread > 2:
                deviations.append((sum(others) - n * chance) / spread)
    assert len(deviations) > 300
    assert np.mean(np.square(deviations)) == pytest.approx(1, abs=0.2)
    assert max(np.abs(deviations)) < 4.5


def test_ages_come_as_often_as_the_tables_say(drawn):
    world = clinic("s")
    expected = np.sum([world.ages[d[0]] for d in drawn], axis=0)
    counts = np.bincount([d[1] for d in drawn], minlength=len(DECADES))
    assert chisquare(counts, expected * DRAWN / expected.sum()).pvalue > 1e-3
    assert world.ages.sum(1) == pytest.approx(np.ones(len(world.ages)))


def test_subquestions_follow_their_parent():
    world = clinic("full")
    names = [finding.name for finding in world.tables.findings]
    parent, child = names.index("cough"), names.index("productive sputum")
    rng = np.random.default_rng(3)
    present = np.array([world.draw(rng)[3] for _ in range(3000)])
    assert not present[~present[:, parent], child].any()
    assert 0.2 < present[present[:, parent], child].mean() < 0.7


def test_who_comes_with_a_special_finding_has_the_general_one():
    world = clinic("full")
    findings = world.tables.findings
    names = [finding.name for finding in findings]
    rng = np.random.default_rng(4)
    drawn = [world.draw(rng) for _ in range(4000)]
    came = Counter(names[complaint] for _, _, complaint, _ in drawn)
    special = {f.name: f.parent for f in findings if f.parent and f.complaint}
    assert {"coughing up blood": "cough", "knee pain": "joint pain"}.items() <= special.items()
    assert all(came[name] for name in ("chest pain on breathing", "sudden severe headache"))
    for _, _, complaint, present in drawn:
        assert present[complaint]
        if parent := special.get(names[complaint]):
            assert present[names.index(parent)]


def test_nobody_has_what_their_age_excludes():
    """No child smokes, and no woman of seventy is pregnant; in others both are found."""
    ages = {finding.name: finding.ages for finding in TABLES.findings}
    assert ages["smoking history"] == (2, 9)
    assert ages["pregnancy test"] == (1, 5)
    seen = Counter()
    for case in SOURCES["full"].train[:1500]:
        decade = DECADES.index(case.given[0].id.removeprefix("age:"))
        for fact in (*case.given[2:], *case.truth.facts):
            first, end = ages[fact.item]
            assert first <= decade < end, (case.id, fact.item)
            seen[fact.item] += 1
    assert min(seen["smoking history"], seen["pregnancy test"]) > 5


def test_nobody_denies_in_general_what_they_have_in_particular():
    """Where it hurts on breathing in, the chest hurts: who asks for either is told so."""
    source = SOURCES["full"]
    parents = {item.name: item.parent for item in source.items if item.parent}
    for case in source.test[:400]:
        present = {fact.item for fact in (*case.given, *case.truth.facts)}
        assert {parents[name] for name in present & set(parents)} <= present


@pytest.mark.parametrize("subset", ["s", "full"])
def test_the_posterior_is_calibrated_from_the_presentation_on(subset):
    """Bayes' answer is right exactly as often as it says.

    It is so if the knowledge describes the sampler, complaint and all: in the full clinic some
    complaints have a parent.
    """
    world = clinic(subset)
    said, right = {3: [], 8: [], 30: []}, {3: [], 8: [], 30: []}
    for index in range(1500):
        case = SOURCES[subset].train[index]
        record, stated = record_of(SOURCES[subset], case), evidence_of(case.given)
        order = [
            *stated,
            *np.random.default_rng(index).permutation(sorted(set(record) - set(stated))),
        ]
        for known, claims in said.items():
            posterior = world.knowledge.posterior({item: record[item] for item in order[:known]})
            best = int(np.argmax(posterior))
            claims.append(posterior[best])
            right[known].append(world.knowledge.diagnoses[best] == case.truth.diagnosis)
    for known, claims in said.items():
        error = (np.mean(right[known]) - np.mean(claims)) / (np.std(right[known]) / 1500**0.5)
        assert abs(error) < 3, known


# --------------------------------------------------------------------- the knowledge by brute force


def profile_weights(world, case):
    """P(profile | presentation), multiplied out from the tables."""
    age, sex, complaint = (fact.id.split(":")[1] for fact in case.given)
    came = next(f for f in world.tables.findings if f.name == case.given[2].item)
    line = [i for i, f in enumerate(world.tables.findings) if f.name in (came.name, came.parent)]
    assert complaint == "yes"
    weights = []
    for place, profile in enumerate(world.profiles):
        chance = world.present[place, line].prod() * world.ages[place, DECADES.index(age)]
        weights.append(world.prior[place] * chance * (profile.sex == sex))
    return np.array(weights) / sum(weights)


@pytest.mark.parametrize("subset", ["xs", "s", "m"])
def test_criticality_and_differentials_are_those_of_the_tables(subset):
    world = clinic(subset)
    names = [finding.name for finding in world.tables.findings]
    children = [finding for finding in world.tables.findings if finding.parent]
    related = {name for finding in children for name in (finding.name, finding.parent)}
    weighed = Counter()
    for case in SOURCES[subset].test[:60]:
        weights = profile_weights(world, case)
        owner = np.array([profile.disease for profile in world.profiles])
        posterior = np.bincount(owner, weights)
        truth = world.knowledge.diagnoses.index(case.truth.diagnosis)
        assert world.knowledge.posterior(evidence_of(case.given)) == pytest.approx(
            posterior, abs=1e-4
        )
        others = [
            posterior[world.knowledge.diagnoses.index(name)] for name in case.truth.differentials
        ]
        assert others == pytest.approx(
            sorted(np.delete(posterior, truth), reverse=True)[:4], abs=1e-4
        )
        for fact in case.truth.facts:
            if fact.item in related:
                continue  # what is known of the one tells of the other
            chance = world.present[:, names.index(fact.item)]
            mine = owner == truth
            ratio = np.average(chance[mine], weights=weights[mine]) / np.average(
                chance[~mine], weights=weights[~mine]
            )
            if min(abs(ratio / step - 1) for step in (2, 5, 10)) > 0.01:
                assert fact.weight == sum(ratio >= step for step in (2, 5, 10)), (case.id, fact.id)
            weighed[fact.weight] += 1
    assert set(weighed) == {0, 1, 2, 3}


def test_anchors_of_clinic_s_stand_apart():
    """First presentation < ten random questions < ten greedy ones < the whole record.

    The distances are the room that learning has.
    """
    source = SOURCES["s"]
    items = [item.name for item in source.items]
    right = Counter()
    for index, case in enumerate(source.test[:400]):
        stated, record = evidence_of(case.given), record_of(source, case)
        order = np.random.default_rng(index).permutation(sorted(set(record) - set(stated)))
        random = {item: record[item] for item in order[:10]}
        greedy = dict(stated)
        for _ in range(10):
            best = max(zip(source.knowledge.gains(greedy, items), items, strict=True))[1]
            greedy[best] = record[best]
        for name, evidence in (
            ("first", {}),
            ("random", random),
            ("greedy", greedy),
            ("full", record),
        ):
            posterior = source.knowledge.posterior(stated | evidence)
            right[name] += source.diagnoses[int(np.argmax(posterior))] == case.truth.diagnosis
    share = {name: count / 400 for name, count in right.items()}
    assert share["first"] == pytest.approx(0.35, abs=0.08)
    assert share["random"] == pytest.approx(0.75, abs=0.07)
    assert share["greedy"] == pytest.approx(0.92, abs=0.05)
    assert share["full"] == pytest.approx(0.965, abs=0.03)


# ----------------------------------------------------------------------------------- Shapley values


def value(source, case, facts):
    posterior = source.knowledge.posterior(evidence_of((*case.given, *facts)))
    return log(posterior[list(source.diagnoses).index(case.truth.diagnosis)])


@given(st.integers(0, 1000), st.sampled_from(["xs", "s", "full"]))
@settings(max_examples=10, deadline=None)
def test_shapley_values_are_mean_marginals_over_all_orders(index, subset):
    source = SOURCES[subset]
    case = source.test[index]
    facts = sorted(case.truth.facts, key=lambda fact: -(fact.weight or 0))[:5]
    expected = dict.fromkeys((fact.id for fact in facts), 0.0)
    orders = list(permutations(facts))
    for order in orders:
        for place, fact in enumerate(order):
            marginal = value(source, case, order[: place + 1]) - value(source, case, order[:place])
            expected[fact.id] += marginal / len(orders)
    values = shapley(source.knowledge, case, facts)
    assert values == pytest.approx(list(expected.values()), abs=1e-9)


@given(st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_shapley_values_are_efficient(index):
    source = SOURCES["s"]
    case = source.test[index]
    facts = case.truth.facts[:MOST_FACTS]
    values = shapley(source.knowledge, case, facts)
    assert sum(values) == pytest.approx(value(source, case, facts) - value(source, case, ()))


def test_shapley_values_are_symmetric_and_zero_for_a_dummy():
    rows = np.array([[0.2, 0.8], [0.7, 0.3]])
    flat = np.array([[0.4, 0.6], [0.4, 0.6]])
    tables = [
        Categorical(name, ((), (f"{name}:yes",)), likelihood)
        for name, likelihood in (("a", rows), ("twin of a", rows), ("noise", flat))
    ]
    knowledge = TabularKnowledge(["gout", "flu"], [1, 1], tables)
    facts = [Fact(f"{table.item}:yes", table.item, "") for table in tables]
    case = Case("1", "", Truth("gout", facts=tuple(facts)))
    first, twin, noise = shapley(knowledge, case, facts)
    assert first == pytest.approx(twin)
    assert first > 0.1
    assert noise == pytest.approx(0, abs=1e-12)
    assert shapley(knowledge, case, []) == []
    with pytest.raises(ValueError, match="too many"):
        shapley(knowledge, case, facts * 4)


def test_the_full_clinics_options_are_as_many_as_there_are_letters():
    """The right one is among them, anywhere; in the other order they are the same ones."""
    source, other = (
        open_source(f"clinic:full#{how}", split=0) for how in ("options", "options,reordered")
    )
    places = []
    for case, turned in zip(source.test[:60], other.test[:60], strict=True):
        assert len(set(case.options)) == len(case.options) == 26
        assert case.options[::-1] == turned.options
        places.append(case.options.index(case.truth.diagnosis))
    assert min(places) < 5
    assert max(places) > 20
    small = open_source("clinic:s#options", split=0)
    assert set(small.test[0].options) == set(small.diagnoses)
