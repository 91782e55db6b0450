"""The run_models: whose models a run gets, what they may see, and what they cost it."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
from asking import question
from serving import Server, serving
from test_chat import save

from workup.core.errors import BudgetError, UserError
from workup.roles.config import Config
from workup.roles.endpoint import EndpointSettings, Price
from workup.roles.replies import FILE
from workup.roles.run_models import RunModels


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


def config(server: Server, *, trusted: bool = False, budget: float | None = None) -> Config:
    price = Price(input=1_000, output=2_000)
    return Config(
        endpoints={
            "cheap": EndpointSettings(base_url=server.url, model="m", price=price, trusted=trusted)
        },
        budget=budget,
    )


def ask(run_models: RunModels, spec: str, *numbers: int) -> list[str]:
    async def all_of_them() -> list[str]:
        return [
            reply.text
            for reply in await asyncio.gather(
                *(run_models.open(spec).complete(question(i)) for i in numbers)
            )
        ]

    return asyncio.run(all_of_them())


def test_a_model_is_opened_once_and_answers_through_the_cache(home: Path) -> None:
    with serving(lambda body: f"answer {len(server.asked)}") as server:
        run_models = RunModels(config(server), "a")
        assert run_models.open("endpoint:cheap") is run_models.open("endpoint:cheap")
        assert run_models.open("endpoint:cheap").name == f"m at {server.url}"
        first = ask(run_models, "endpoint:cheap", 1, 2)
        run_models.close()
        other = RunModels(config(server), "b")
        assert ask(other, "endpoint:cheap", 2, 1) == first[::-1]
        assert ask(RunModels(config(server), "c", fresh=True), "endpoint:cheap", 1) == ["answer 3"]
        other.close()
    assert (home / FILE).exists()


def test_costs_are_the_runs_by_role_and_model_and_fit_into_json(home: Path) -> None:
    with serving(lambda body: "yes") as server:
        assert RunModels(config(server), "a").costs() == []
        assert not home.exists()  # nothing is made before it is needed
        run_models = RunModels(config(server), "a")
        ask(run_models, "endpoint:cheap", 1, 2, 2, 3)
        row = {
            "role": "judge",
            "model": f"m at {server.url}",
            "calls": 3,
            "hits": 1,
            "prompt_tokens": 21,
            "completion_tokens": 9,
        }
        (found,) = json.loads(json.dumps(run_models.costs()))
        assert found.pop("cost") == pytest.approx((21 * 1_000 + 9 * 2_000) / 1e6)
        assert found == row
        run_models.close()
        resumed = RunModels(config(server), "a")
        ask(resumed, "endpoint:cheap", 3, 4)
        assert [(each["calls"], each["hits"]) for each in resumed.costs()] == [(4, 2)]
        assert RunModels(config(server), "b").costs() == []


def test_the_budget_of_the_configuration_holds(home: Path) -> None:
    with serving(lambda body: "yes") as server:
        with pytest.raises(
            BudgetError,
            match=r"the budget of 1 does not allow the next call.*raise `budget` and resume",
        ):
            ask(RunModels(config(server, budget=1.0), "a"), "endpoint:cheap", 1)
        assert not server.asked
        assert ask(RunModels(config(server, budget=3.0), "a"), "endpoint:cheap", 1) == ["yes"]


def test_restricted_text_goes_to_trusted_endpoints_alone(home: Path) -> None:
    with serving(lambda body: "yes") as server:
        with pytest.raises(
            UserError, match=r"restricted.*endpoint 'cheap' \(http.*say `trusted: true`"
        ):
            RunModels(config(server), "a", restricted=True).open("endpoint:cheap")
        assert not server.asked
        assert not home.exists()
        run_models = RunModels(config(server, trusted=True), "a", restricted=True)
        assert ask(run_models, "endpoint:cheap", 1) == ["yes"]
        run_models.close()
        assert not (home / FILE).exists()
        assert stat.S_IMODE((home / "restricted").stat().st_mode) == 0o700
        # What was answered about restricted cases answers nobody else.
        ask(RunModels(config(server, trusted=True), "a"), "endpoint:cheap", 1)
        assert len(server.asked) == 2


def test_restricted_text_is_not_kept_where_others_can_look(home: Path, tmp_path: Path) -> None:
    with serving(lambda body: "yes") as server:
        (tmp_path / "open").mkdir(mode=0o755)
        run_models = RunModels(
            config(server, trusted=True), "a", restricted=True, cache=tmp_path / "open"
        )
        with pytest.raises(UserError, match="is open to other users: type `chmod 700"):
            ask(run_models, "endpoint:cheap", 1)
        assert list((tmp_path / "open").iterdir()) == []
        assert not server.asked
        (tmp_path / "open").chmod(0o700)
        assert ask(run_models, "endpoint:cheap", 1) == ["yes"]


def test_a_replay_sends_nothing(home: Path) -> None:
    with serving(lambda body: "yes") as server:
        recording = RunModels(config(server), "a")
        ask(recording, "endpoint:cheap", 1)
        recording.close()
        replay = RunModels(config(server), "b", replay=True)
        assert ask(replay, "endpoint:cheap", 1) == ["yes"]
        with pytest.raises(UserError, match=r"^replay: no answer"):
            ask(replay, "endpoint:cheap", 2)
        assert len(server.asked) == 1


@pytest.mark.long
def test_local_weights_sit_behind_the_same_cache(home: Path, tmp_path: Path) -> None:
    folder = save(tmp_path / "weights")
    run_models = RunModels(Config(), "a", restricted=True)
    first = ask(run_models, str(folder), 1, 1, 2)
    run_models.close()
    again = RunModels(Config(), "b", restricted=True, replay=True)
    assert ask(again, str(folder), 1, 1, 2) == first
    (row,) = again.costs()
    assert (row["calls"], row["hits"], row["cost"]) == (0, 3, 0.0)
    assert row["model"].startswith("weights@")


def test_what_does_not_exist_is_named(home: Path) -> None:
    with (
        serving(lambda body: "yes") as server,
        pytest.raises(UserError, match=r"no endpoint 'cheep'\. Did you mean 'cheap'"),
    ):
        RunModels(config(server), "a").open("endpoint:cheep")
    with pytest.raises(UserError, match="no weights 'no/such/model'"):
        RunModels(Config(), "a").open("no/such/model")
