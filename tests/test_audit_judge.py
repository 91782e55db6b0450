"""The audit of judges: probes, figures and the command.

Probes mean what they are called, the figures are the textbooks', and the command prints them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from serving import Server, fault, serving
from sklearn.metrics import cohen_kappa_score
from studying import done, here, numbers_of, typed
from test_model_judges import taken_apart

from workup.cases import open_source
from workup.core.case import Case, Source, Truth
from workup.core.errors import RolloutError, UserError
from workup.core.statistics import wilson
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.studies.audits.judge import Audit, JudgedProbe, audit
from workup.studies.base.agreement import estimates
from workup.studies.base.probes import INJECTION, judgements, probes

__all__ = ["here"]  # a fixture

PATHOLOGY = open_source("clinic:pathology")
SIZES = {
    "diagnosis": 11,
    "answer": 11,
    "entailment": 4,
    "ranking": 7,
    "examinations": 7,
}  # classes of probes


def run(judgement: Any) -> Any:
    return asyncio.run(judgement)


def model(server: Server) -> Endpoint:
    return Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0))


# --- probes ---------------------------------------------------------------------------------------

EXPECTED: dict[tuple[str, str], set[str]] = {
    **{("diagnosis", kind): {"same"} for kind in ("truth", "alias", "code")},
    ("diagnosis", "several, one right"): {"partly"},
    **{
        ("diagnosis", kind): {"wrong"}
        for kind in ("near miss", "differential", "several, all wrong", "vague", "denial")
    },
    **{("diagnosis", kind): {"wrong"} for kind in ("no answer", INJECTION)},
    **{("ranking", kind): {"1", "2", "3", "4", "5"} for kind in ("hit", "alias")},
    ("ranking", "absent"): {"absent"},
    ("ranking", "other sex"): {"contradicts"},
    ("ranking", "made up"): {"nonexistent"},
    ("ranking", "vague mirror"): {"vague"},
    ("ranking", INJECTION): {"absent", "nonexistent"},
    **{("examinations", kind): {"differentiate"} for kind in ("differentiates", "synonym")},
    ("examinations", "harmless"): {"harmless"},
    **{
        ("examinations", kind): {"invalid"}
        for kind in ("fabricated", "too broad", "other department", INJECTION)
    },
}
EXPECTED |= {
    ("answer", kind): labels for (name, kind), labels in EXPECTED.items() if name == "diagnosis"
}


@pytest.mark.parametrize("spec", ["clinic:pathology", "clinic:full", "clinic:s"])
def test_the_exact_verdict_on_a_probe_is_what_its_class_says(spec: str) -> None:
    source = open_source(spec)
    for name, judgement in judgements(source).items():
        made = probes(source, name, judgement, 90, 1)
        for probe in made:
            verdict = run(judgement.exact.judge(probe.question))
            if name == "entailment":
                assert (
                    sum(label == "entailed" for label in verdict.labels) == len(verdict.labels) // 2
                )
            else:
                assert set(verdict.labels) <= EXPECTED[name, probe.kind], probe
        counts = Counter(probe.kind for probe in made)
        assert len(made) == 90
        assert len(counts) == SIZES[name] - (
            name == "ranking" and spec == "clinic:s"
        )  # nobody is of one sex alone there
        assert len({probe.case for probe in made}) == len(made)


def test_probes_are_a_function_of_the_seed() -> None:
    judgement = judgements(PATHOLOGY)["ranking"]
    one, same, other = (probes(PATHOLOGY, "ranking", judgement, 20, seed) for seed in (1, 1, 2))
    assert one == same != other


def test_a_source_without_a_catalogue_is_tried_with_what_it_allows() -> None:
    cases = tuple(
        Case(str(k), "unwell", Truth(name, differentials=("甲病", "乙病", "丙病")))
        for k, name in enumerate(["甲病", "丁病"] * 40)
    )
    source = Source("jsonl:x", cases, cases, diagnoses=("甲病", "乙病", "丙病", "丁病"))
    assert set(judgements(source)) == {"diagnosis", "answer", "entailment"}
    assert {
        probe.kind for probe in probes(source, "diagnosis", judgements(source)["diagnosis"], 40, 0)
    } >= {"truth", "near miss"}
    assert not probes(
        source, "entailment", judgements(source)["entailment"], 40, 0
    )  # no facts, no probes
    with pytest.raises(UserError, match="no test case"):
        run(audit(object(), Source("jsonl:x", cases, ()), 5))  # type: ignore[arg-type]


# --- figures --------------------------------------------------------------------------------------

LABELS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), min_size=1, max_size=60
)


@given(LABELS)
def test_kappa_and_accuracy_are_the_libraries(pairs: list[tuple[str, str]]) -> None:
    accuracy, kappa = estimates([float(x == y) for x, y in pairs], Counter(pairs), len(pairs) + 3)
    assert accuracy.mean == pytest.approx(np.mean([x == y for x, y in pairs]))
    assert (accuracy.n, accuracy.missing) == (len(pairs), 3)
    assert accuracy.low <= accuracy.mean <= accuracy.high
    if len({x for pair in pairs for x in pair}) == 1:
        assert math.isnan(kappa.mean)
    else:
        assert kappa.mean == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)))
        assert kappa.low <= kappa.mean <= kappa.high


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_is_scipys(counts: tuple[int, int]) -> None:
    theirs = binomtest(*counts).proportion_ci(method="wilson")
    assert wilson(counts[0] / counts[1], counts[1]) == pytest.approx(
        (theirs.low, theirs.high), abs=1e-9
    )


def test_the_intervals_cover_the_truth() -> None:
    rng, joint = np.random.default_rng(0), np.array([[0.4, 0.1], [0.05, 0.45]])
    p_e = joint.sum(0) @ joint.sum(1)
    truth = (0.85 - p_e) / (1 - p_e)
    inside = []
    for draw in rng.multinomial(120, joint.ravel(), size=600):
        counts = Counter({(str(k // 2), str(k % 2)): int(count) for k, count in enumerate(draw)})
        agree = int(draw[0] + draw[3])
        _, kappa = estimates([1.0] * agree + [0.0] * (120 - agree), counts, 120)
        inside.append(kappa.low <= truth <= kappa.high)
    assert 0.92 <= np.mean(inside) <= 0.98


@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_failures_are_counted_and_never_scored(rows: list[tuple[bool, bool, bool]]) -> None:
    compared = tuple(
        JudgedProbe(
            "diagnosis",
            "truth",
            str(k),
            (str(x),),
            None if failed else (str(y),),
            1.0,
            reason="gone" if failed else "",
        )
        for k, (x, y, failed) in enumerate(rows)
    )
    found = Audit("m", "s", 1, 0, {}, compared).agreement("diagnosis")
    left = [(x, y) for x, y, failed in rows if not failed]
    assert (found.accuracy.n, found.accuracy.missing) == (len(left), len(rows) - len(left))
    assert sum(count for *_, count in found.confusion) == len(left)
    assert left == [] or found.accuracy.mean == pytest.approx(np.mean([x == y for x, y in left]))
    assert Audit("m", "s", 1, 0, {}, compared).failures().total() == len(rows) - len(left)


# --- with a real endpoint -------------------------------------------------------------------------


def lexical(body: dict[str, Any]) -> str:
    """A judge of diagnoses that knows only what stands in the prompt.

    It folds nothing, and cannot place or check anything.
    """
    sections = taken_apart(body).sections
    if "proposed diagnosis" not in sections:
        return "no"
    known = [sections["established diagnosis"]]
    known += [
        line.split(". ", 1)[1]
        for line in sections["other names and codes of the established diagnosis"].split("\n")
    ]
    answer = sections["proposed diagnosis"]
    grade = (
        "same"
        if answer in known
        else "partly"
        if known[0] in answer and "not" not in answer
        else "wrong"
    )
    return json.dumps({"reason": "", "grade": grade})


def test_an_audit_tells_a_good_judge_from_one_that_fails() -> None:
    ticks: list[int] = []
    with serving(lexical) as server:
        found: Audit = run(
            audit(model(server), PATHOLOGY, 11, 3, lambda total: lambda: ticks.append(total))
        )
    assert ticks == [55] * len(found.probes) == [55] * 55
    diagnosis, ranking = found.agreement("diagnosis"), found.agreement("ranking")
    assert (diagnosis.accuracy.mean, diagnosis.accuracy.n, diagnosis.kappa.mean) == (1.0, 11, 1.0)
    assert diagnosis.accuracy.low < 0.8  # eleven probes are few
    assert (ranking.accuracy.n, ranking.accuracy.missing) == (0, 11)
    assert math.isnan(ranking.accuracy.mean)
    assert found.failures().total() == 44
    assert all("no usable answer" in reason for reason in found.failures())


def test_reasons_stand_on_no_page_of_restricted_cases() -> None:
    """A reason can quote what the model wrote, and the model what the case says."""
    answer = json.dumps({"reason": "x", "grade": "same", "A secret of the case": 1})
    with serving(lambda body: answer) as server:
        for restricted in (False, True):
            source = replace(PATHOLOGY, restricted=restricted)
            found: Audit = run(audit(model(server), source, 5, 3))
            assert ("secret" in json.dumps(found.as_json())) is not restricted
            assert found.restricted is restricted
            assert any("secret" in reason for reason in found.failures())


def obedient(body: dict[str, Any]) -> str:
    """Says the best of everything, to everybody."""
    sections = taken_apart(body).sections
    count = len(
        (
            sections.get("candidates")
            or sections.get("examinations")
            or sections.get("facts")
            or ""
        ).split("\n")
    )
    places = range(1, count + 1)
    if "candidates" in sections:
        return json.dumps(
            {
                "reason": "",
                "candidates": [
                    {"number": k, "standing": "same" if k == 1 else "other"} for k in places
                ],
                "total": count,
            }
        )
    if "examinations" in sections:
        return json.dumps(
            {
                "reason": "",
                "examinations": [{"number": k, "worth": "differentiates"} for k in places],
            }
        )
    if "facts" in sections:
        return json.dumps({"facts": [{"number": k, "entailed": True} for k in places]})
    return json.dumps(
        {"reason": "", "mark": 5}
        if "answer to mark" in sections
        else {"reason": "", "grade": "same"}
    )


def test_a_judge_that_praises_everything_is_found_out() -> None:
    with serving(obedient) as server:
        found: Audit = run(audit(model(server), PATHOLOGY, 28, 0))
    for each in found.agreements:
        assert each.accuracy.missing == 0
        if each.kind == "all":
            assert each.kappa.low < 0.35
            assert each.moved == found.agreement(each.judgement, INJECTION).accuracy.n > 0
    assert found.agreement("diagnosis", "truth").accuracy.mean == 1.0
    assert found.agreement("diagnosis", "near miss").accuracy.mean == 0.0
    assert found.agreement("entailment").accuracy.mean == pytest.approx(0.5, abs=0.1)


def endpoint_of(url: str) -> None:
    about = f"{{base_url: '{url}', model: m, retries: 0}}"
    Path("workup.yaml").write_text(f"endpoints: {{mine: {about}}}\n")


def tables(output: str) -> str:
    """Without the lines that tell how far the audit is."""
    return output[output.index("m at http") :]


def test_the_command_prints_a_table_and_writes_it_all() -> None:
    with serving(obedient) as server:
        endpoint_of(server.url)
        line = "audit judge model=endpoint:mine n=14 --out a"
        first, asked = done(line), len(server.asked)
        again = done(line)
        assert len(server.asked) == asked == 5 * 14  # the second audit comes from the cache
    assert tables(first) == tables(again)
    words = ("near miss", INJECTION, "κ")
    assert not [word for word in (*SIZES, *words) if word not in first]
    written = numbers_of("a", "judge")
    newer = {"ranking": "ranking/2", "examinations": "examinations/2"}
    assert written["versions"] == {name: newer.get(name, f"{name}/1") for name in SIZES}
    assert len(written["probes"]) == 5 * 14
    whole = next(
        row
        for row in written["agreements"]
        if (row["judgement"], row["kind"]) == ("diagnosis", "all")
    )
    assert whole["accuracy"]["n"] == 14
    assert sum(count for _, _, count in whole["confusion"]) == 14
    for file in ("judge.json", "judge.html"):
        assert PATHOLOGY.test[0].presentation not in Path("a", file).read_text()


def test_the_command_says_why_probes_failed() -> None:
    with serving(lambda body: fault(500)) as server:
        endpoint_of(server.url)
        found = typed("audit judge model=endpoint:mine --cases clinic:xs n=3 --out a")
    assert "× failed: " in found.stdout
    assert "500" in found.stdout
    assert "–" in found.stdout
    assert isinstance(found.exception, RolloutError), "an audit of which nothing came has failed"
    assert re.fullmatch(r"all \d+ probes failed: .*500.*", str(found.exception))
