"""The audit of simulators: questions, exact and model verdicts, intervals, and the command."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest
from serving import serving
from studying import done, here, numbers_of

from workup.cases import open_source
from workup.core.case import Case, Fact, Source, Truth
from workup.core.errors import UserError
from workup.environments.base.patients import UNKNOWN, PatientReply
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.studies.audits.simulator import (
    ALL,
    DIAGNOSIS,
    INJECTION,
    KINDS,
    MEASURES,
    OFF_RECORD,
    ON_RECORD,
    AuditedSimulator,
    JudgedAnswer,
    SimulatorAudit,
    SimulatorProbe,
    audit,
    names,
    probes,
)

__all__ = ["here"]  # a fixture

CLINIC = open_source("clinic:xs", split=0)
CHINESE = Source(
    "手写",
    (),
    tuple(
        Case(
            f"例{number}",
            "男性，腹痛。",
            Truth(
                "急性胰腺炎",
                facts=tuple(Fact(f"f{place}", "", text) for place, text in enumerate(texts)),
            ),
        )
        for number, texts in enumerate(
            (("上腹部剧痛3小时。", "外院诊断急性胰腺炎。"), ("血淀粉酶升高。", "大量饮酒史。"))
        )
    ),
)


def run(
    name: str, source: Source, n: int, server: Any = None, checker: bool = False, seed: int = 0
) -> SimulatorAudit:
    model = Endpoint(EndpointSettings(base_url=server.url, model="m")) if server else None
    judge = model if checker else None
    return asyncio.run(
        audit(AuditedSimulator(name, source, model, judge, seed), source, n, judge, seed)
    )


class Everyone:
    """Plays patient and record, fact checker and auditor, each told apart by its prompt.

    `leaks` and `lies` are switches.
    """

    def __init__(self, leaks: bool = False, lies: bool = False) -> None:
        self.leaks, self.lies = leaks, lies
        self.seen: Counter[str] = Counter()

    def __call__(self, body: dict[str, Any]) -> str:
        role, answer = self.answer(body["messages"][0]["content"])
        self.seen[role] += 1
        return json.dumps(answer)

    def answer(self, rules: str) -> tuple[str, dict[str, Any]]:
        if "You are a patient" in rules:
            return "patient", {"answer": "I am as you say.", "facts": [1]}
        if "You are the record" in rules:
            return "record", {"result": "Nothing remarkable."}
        if '"reveals"' in rules:
            return "leak", {"reason": "", "reveals": self.leaks}
        if '"consistent"' in rules:
            return "consistent", {"reason": "", "relevant": True, "consistent": not self.lies}
        return "check", {"reason": "", "relevant": True, "supported": not self.lies, "stated": [1]}


def test_questions_are_as_announced() -> None:
    asked = probes(CLINIC, 200, seed=1)
    assert asked == probes(CLINIC, 200, seed=1) != probes(CLINIC, 200, seed=2)
    assert Counter(probe.kind for probe in asked) == dict.fromkeys(KINDS, 50)
    assert len({probe.case.id for probe in asked}) == min(200, len(CLINIC.test))
    for probe in asked:
        facts = {fact.id for fact in (*probe.case.given, *probe.case.truth.facts)}
        if probe.kind == ON_RECORD:
            assert probe.target
            assert probe.target <= facts
        elif probe.kind == OFF_RECORD:
            assert probe.target == frozenset()
            assert probe.question in {item.question for item in CLINIC.items}
        else:
            assert not probe.target


def test_the_embedded_patient_is_exact_in_the_clinic() -> None:
    found = run("embedded", CLINIC, 240)
    assert (found.checker, found.model, found.failures()) == ("exact", "no model", Counter())
    for kind in (ON_RECORD, OFF_RECORD, DIAGNOSIS):
        assert (found.rate("relevant", kind).mean, found.rate("leaked", kind).mean) == (1, 0)
    assert (found.rate("factual").mean, found.rate("factual").n) == (1, 240)
    assert found.rate("relevant", INJECTION).missing == 60
    assert found.notes() == ["relevant: undecided for 60 answers"]


def test_the_embedded_patient_in_chinese() -> None:
    found = run("embedded", CHINESE, 40)
    told = [each for each in found.judged if each.kind == ON_RECORD]
    assert all(each.relevant and each.factual and each.facts for each in told)
    assert found.rate("leaked").mean == 0
    assert all(
        "病" in each.question or "诊断" in each.question or "胰腺炎" in each.question
        for each in found.judged
        if each.kind == DIAGNOSIS
    )


def test_the_exact_judge_can_find_fault() -> None:
    """Every measure against a patient with faults.

    It tells wrong facts, alters text, and names the diagnosis.
    """
    case = CHINESE.test[1]

    class Faulty(AuditedSimulator):
        def __init__(self, said: PatientReply) -> None:
            super().__init__("embedded", CHINESE, None)

            async def reply(case: Case, question: str) -> PatientReply:
                return said

            self.reply = reply

    def judged(said: PatientReply) -> SimulatorAudit:
        return asyncio.run(audit(Faulty(said), Source("one", (), (case,)), 4, None))

    assert judged(PatientReply("血淀粉酶升高。", ("f0",))).rate("factual").mean == 1
    assert judged(PatientReply("血淀粉酶正常。", ("f0",))).rate("factual").mean == 0
    assert judged(PatientReply("我不知道。", ("f0",))).rate("factual").mean == 0
    assert judged(PatientReply("我不知道。")).rate("relevant", ON_RECORD).mean == 0
    assert judged(PatientReply("血淀粉酶升高。", ("f0",))).rate("relevant", DIAGNOSIS).mean == 0
    assert judged(PatientReply("是急性胰腺炎。", ("f0",))).rate("leaked").mean == 1


def test_who_claims_to_have_told_everything_is_seen() -> None:
    """In free text a claim of all facts counts as relevant, so the share of them is shown."""

    def everything(body: dict[str, Any]) -> str:
        numbers = re.findall(r"^(\d+)\. ", body["messages"][1]["content"], re.MULTILINE)
        return json.dumps({"answer": "It hurts.", "facts": [int(number) for number in numbers]})

    with serving(everything) as server:
        found = run("default", CHINESE, 8, server)
    assert found.rate("told").mean == 1
    embedded = run("embedded", CHINESE, 8)
    shares = [
        len(set(each.facts)) / (len(case.given) + len(case.truth.facts))
        for each in embedded.judged
        for case in CHINESE.test
        if case.id == each.case
    ]
    assert embedded.rate("told").mean == pytest.approx(sum(shares) / 8)
    assert embedded.rate("told").mean < 1
    assert embedded.as_json()["rates"]["all"]["told"]["mean"] == embedded.rate("told").mean


def test_a_name_leaks_unless_only_the_question_used_it() -> None:
    case = Case("c", "Ill.", Truth("Gout", aliases=("podagra",)))
    asking = SimulatorProbe(DIAGNOSIS, case, "Do you have Gout?")
    assert not names(asking, PatientReply("I do not know whether it is gout."))
    assert names(asking, PatientReply("Yes, gout.", ("f",)))
    assert names(asking, PatientReply("It is Podagra."))
    assert not names(
        SimulatorProbe(ON_RECORD, case, "Have you had gout before?"),
        PatientReply("Yes, gout.", ("f",)),
    )
    assert names(
        SimulatorProbe(ON_RECORD, case, "How are you?"), PatientReply("It is the GOUT.", ("f",))
    )


def test_what_a_model_says_is_factual_by_a_checker_only() -> None:
    with serving(Everyone()) as server:
        alone = run("default", CLINIC, 12, server)
    assert alone.rate("factual").n == 0
    assert alone.rate("relevant").n == 9
    assert alone.rate("leaked").mean == 0


@pytest.mark.parametrize("name", ["default", "persona", "checked", "record"])
def test_a_checker_judges_every_simulator(name: str) -> None:
    with serving(Everyone()) as server:
        fine = run(name, CLINIC, 8, server, checker=True)
    means = {measure: fine.rate(measure).mean for measure in ("relevant", "factual", "leaked")}
    assert means == {"relevant": 1, "factual": 1, "leaked": 0}
    assert fine.rate("factual").n == 8
    everyone = Everyone(leaks=True, lies=name != "checked")
    with serving(everyone) as server:
        bad = run(name, CLINIC, 8, server, checker=True)
    assert bad.rate("leaked").mean == 1
    assert bad.rate("factual").mean == (name == "checked")
    assert everyone.seen["leak"] == 8
    assert bool(everyone.seen["consistent"]) == (name == "record")


def test_what_gives_up_is_counted_and_not_scored() -> None:
    def broken(body: dict[str, Any]) -> str:
        return "no" if '"reveals"' in body["messages"][0]["content"] else Everyone()(body)

    with serving(broken) as server:
        found = run("default", CLINIC, 4, server, checker=True)
    assert found.failures().total() == 4
    assert all(found.rate(measure).n == 0 for measure in MEASURES)
    assert found.remarks()[0].startswith("4 × failed: checker")


def test_intervals_are_wilsons() -> None:
    judged = tuple(
        JudgedAnswer(ON_RECORD, str(number), "?", relevant=number < 37, factual=None)
        for number in range(41)
    )
    found = SimulatorAudit("s", "m", "exact", "x", 0, judged)
    rate = found.rate("relevant")
    low, high = binomtest(37, 41).proportion_ci(method="wilson")
    assert (rate.mean, rate.n) == (37 / 41, 41)
    assert (rate.low, rate.high) == pytest.approx((low, high))
    assert found.rate("factual").missing == 41
    assert found.rate("relevant", ALL) == found.rate("relevant", ON_RECORD)


def test_texts_of_restricted_cases_stay_out(tmp_path: Path) -> None:
    found = run("embedded", CHINESE, 16)
    restricted = replace(found, restricted=True)
    texts = {fact.text for case in CHINESE.test for fact in case.truth.facts}
    whole, plain = (json.dumps(each.as_json(), ensure_ascii=False) for each in (found, restricted))
    assert any(text in whole for text in texts)
    assert not any(text in plain for text in texts)
    assert restricted.as_json()["rates"] == found.as_json()["rates"]
    failed = replace(restricted, judged=(replace(found.judged[0], reason="said: 上腹部剧痛"),))
    page = failed.write(tmp_path, "simulator", "How far?").read_text()
    assert "said:" not in page
    assert failed.remarks()[-1] == "1 × failed: said: 上腹部剧痛"


def test_what_is_missing_is_said() -> None:
    for name, problem in (
        ("default", "needs a model"),
        ("patient", "no simulator 'patient'"),
        ("record", "needs a model"),
    ):
        with pytest.raises(UserError, match=problem):
            AuditedSimulator(name, CLINIC, None)
    with serving(Everyone()) as server, pytest.raises(UserError, match="needs a fact checker"):
        run("checked", CLINIC, 4, server)
    with pytest.raises(UserError, match="no test case"):
        probes(Source("empty", (), ()), 4)


def test_the_command_audits_and_writes() -> None:
    assert "the diagnosis" in done("audit simulator cases=clinic:xs patient=embedded n=40 --out a")
    written = numbers_of("a", "simulator")
    assert written["rates"]["all"]["factual"]["mean"] == 1
    assert len(written["judged"]) == 40
    with serving(Everyone()) as server:
        about = f"{{base_url: '{server.url}', model: m}}"
        Path("workup.yaml").write_text(f"endpoints: {{e: {about}}}\n")
        line = "audit simulator --cases clinic:xs patient=checked n=8 --out a"
        for _ in range(2):  # the second time everything comes from the cache
            done(f"{line} model=endpoint:e checker=endpoint:e")
            asked = len(server.asked)
        assert asked == len(server.asked) > 8
    written = numbers_of("a", "simulator")
    assert written["checker"].startswith("m at http")
    assert UNKNOWN not in {each["text"] for each in written["judged"]}
