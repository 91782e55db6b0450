"""A model for the steps of preparation, played by a function.

What it answers depends on the request's words alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving import Server

from workup.cases.jsonl import write
from workup.core.case import Case, Fact, Kind, Source, Truth
from workup.prepare.steps import Aids, StepSettings
from workup.roles.endpoint import Endpoint, EndpointSettings

SECTION = re.compile(
    r"^=== (?!end of )(.+) ([0-9a-f]{24}) ===\n(.*?)\n=== end of \1 \2 ===$",
    re.MULTILINE | re.DOTALL,
)
ENGLISH = Case(
    "en",
    "A man aged 61 reports chest pain.",
    Truth(
        "Aortic dissection",
        aliases=("dissecting aneurysm",),
        record=(
            "A man aged 61 reports chest pain.\nThe pain began suddenly.\nHe has no fever.\n"
            "Troponin is 0.01 ng/mL."
        ),
    ),
    question="What is the most likely diagnosis?",
)
CHINESE = Case(
    "zh",
    "女，24岁，右下腹痛。",
    Truth(
        "急性阑尾炎",
        record="女，24岁，右下腹痛。\n疼痛由脐周转移而来。\n体温38.2℃。\n白细胞14×10⁹/L。",
    ),
    question="最可能的诊断是什么？",
)


def sections(body: dict[str, Any]) -> dict[str, str]:
    """What stands between the marker lines of the first question, by title."""
    return {title: text for title, _, text in SECTION.findall(body["messages"][1]["content"])}


def shape(body: dict[str, Any]) -> set[str]:
    """The fields that are asked for, none for free text."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    return set(schema.get("properties", {}))


def repaired(body: dict[str, Any]) -> bool:
    """Whether the model has been told that its first answer was of no use."""
    return len(body["messages"]) > 2


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def findings(body: dict[str, Any]) -> str:
    """Every line of the record is a finding, stated if the presentation has it."""
    told = sections(body)
    facts = [
        {
            "text": line,
            "item": f"item {n}",
            "kind": "test" if n > 2 else "ask",
            "stated": line in told.get("presentation", ""),
        }
        for n, line in enumerate(lines(told["record"]))
    ]
    return json.dumps({"findings": facts}, ensure_ascii=False)


def endpoint(server: Server, **settings: Any) -> Endpoint:
    return Endpoint(
        EndpointSettings(
            base_url=server.url, model="m", **{"retries": 0, "backoff": 0.01, **settings}
        )
    )


def aids(
    server: Server, settings: StepSettings | None = None, open: Callable[[str], Any] | None = None
) -> Aids:
    model = endpoint(server)
    return Aids(
        "it", settings or StepSettings(), Source("here", (), ()), open or (lambda spec: model)
    )


def many(count: int) -> list[Case]:
    """English and Chinese cases in turn, each with something of its own."""
    return [numbered(CHINESE if number % 2 else ENGLISH, number) for number in range(count)]


def numbered(case: Case, number: int) -> Case:
    record = (
        f"{case.truth.record}\n第{number}床。"
        if case is CHINESE
        else f"{case.truth.record}\nHe lies in bed {number}."
    )
    truth = Truth(case.truth.diagnosis, aliases=case.truth.aliases, record=record)
    return Case(f"{case.id}-{number}", case.presentation, truth, case.question)


def written(folder: Path, cases: list[Case], **more: Any) -> Path:
    path = folder / "cases.jsonl"
    write(cases, path, **more)
    return path


def configured(folder: Path, server: Server, **settings: Any) -> Path:
    """A workup.yaml with the server as `endpoint:it`."""
    path = folder / "workup.yaml"
    endpoints = {
        "it": {"base_url": server.url, "model": "m", "retries": 0, "backoff": 0.01, **settings}
    }
    path.write_text(json.dumps({"endpoints": endpoints}))  # JSON is YAML
    return path


HIDDEN = (
    Fact("a", "onset", "It began suddenly."),
    Fact("b", "troponin", "Troponin is normal.", Kind.LABORATORY),
)
