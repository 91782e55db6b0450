"""Whether a run was still rising when it ended: the statistic, and the command that goes on."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import statsmodels.api as sm
from command_line import TINIEST, forked
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import nct, t

import workup
from workup import report
from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.loops.training.plan import Plan
from workup.report.live import PlainLive
from workup.runs import Run, checked
from workup.runs.onward import command, typed
from workup.runs.rising import (
    BLOCKS,
    FEWEST,
    Learning,
    LearningVerdict,
    learning,
    rise,
    told,
    verdict,
)
from workup.runs.settings import Settings, read, with_user_config
from workup.runs.summary import describe_learning

pytestmark = pytest.mark.long

Curve = NDArray[np.float64]
FREEDOM = 2 * BLOCKS - 3
TRIALS = 4_000
QUIET: dict[str, Any] = {
    **TINIEST,
    "evaluation": {"cases": 2, "anchors": False, "untrained": False},
}
curves = st.lists(st.floats(-10, 10), min_size=FEWEST, max_size=200)


def noise(rng: np.random.Generator, count: int, resemblance: float) -> Curve:
    """Normal noise of variance 1 in which a step is like the one before it (AR(1))."""
    drawn = rng.normal(size=count)
    for step in range(1, count):
        drawn[step] = resemblance * drawn[step - 1] + math.sqrt(1 - resemblance**2) * drawn[step]
    return drawn


def shares(count: int, resemblance: float, gain: float = 0.0) -> tuple[float, float]:
    """How often curves of so many steps are called rising and falling.

    Their means rise by `gain` (in units of the noise) from a quarter to the next.
    """
    rng, line = np.random.default_rng(0), 4 * gain * np.arange(count) / count
    found = [verdict(rise(noise(rng, count, resemblance) + line)) for _ in range(TRIALS)]
    return found.count(LearningVerdict.RISING) / TRIALS, found.count(
        LearningVerdict.FALLING
    ) / TRIALS


# the statistic ------------------------------------------------------------------------------------


@given(curves)
def test_the_interval_is_that_of_a_regression_on_the_means_of_blocks(values: list[float]) -> None:
    found, size = rise(values), len(values) // (4 * BLOCKS)
    assert found is not None
    assume(found.half > 1e-6)
    means = np.array(values[-2 * BLOCKS * size :]).reshape(-1, size).mean(1)
    quarter = np.repeat([0.0, 1.0], BLOCKS)
    within = np.tile(np.arange(BLOCKS, dtype=float), 2)
    model = sm.OLS(means, np.column_stack([1 - quarter, quarter, within])).fit()
    contrast = model.t_test([-1, 1, 0])
    assert found.mean == pytest.approx(contrast.effect[0], abs=1e-9)
    assert [found.low, found.high] == pytest.approx(contrast.conf_int()[0], abs=1e-6)
    assert found.n == 2 * BLOCKS * size


@pytest.mark.parametrize("count", [FEWEST, 300])
def test_level_noise_is_called_rising_in_one_of_forty_cases(count: int) -> None:
    rising, falling = shares(count, 0.0)
    assert rising == pytest.approx(0.025, abs=0.0075)  # three standard errors
    assert falling == pytest.approx(0.025, abs=0.0075)


def test_steps_that_resemble_their_neighbours_do_not_mislead() -> None:
    """Taken for independent, such steps would be called rising in one of eight cases."""
    rising, falling = shares(600, 0.5)
    assert rising == pytest.approx(0.0275, abs=0.009)
    assert falling == pytest.approx(0.0275, abs=0.009)


def test_a_steady_rise_is_found_as_often_as_noise_allows() -> None:
    count, gain = 240, 0.4
    error = math.sqrt(2 / (count / 4))
    expected = nct.sf(t.ppf(0.975, FREEDOM), FREEDOM, gain / error)
    rising, falling = shares(count, 0.0, gain)
    assert 0.4 < expected < 0.6
    assert rising == pytest.approx(expected, abs=0.025)
    assert falling < 0.002


@given(curves, st.floats(-100, 100), st.floats(0.1, 10))
def test_neither_a_constant_nor_the_scale_changes_the_verdict(
    values: list[float], constant: float, scale: float
) -> None:
    found, moved = rise(values), rise([scale * value + constant for value in values])
    assert found is not None
    assert moved is not None
    for name in ("mean", "low", "high"):
        assert getattr(moved, name) == pytest.approx(scale * getattr(found, name), abs=1e-7)


@given(curves)
def test_a_curve_upside_down_falls_as_it_rose(values: list[float]) -> None:
    found, turned = rise(values), rise([-value for value in values])
    assert found is not None
    assert turned is not None
    assert (turned.mean, turned.low, turned.high) == pytest.approx(
        (-found.mean, -found.high, -found.low), abs=1e-12
    )


@given(curves, st.lists(st.floats(-10, 10), min_size=FEWEST // 2, max_size=FEWEST // 2))
def test_the_first_half_does_not_count(values: list[float], others: list[float]) -> None:
    assert rise(values) == rise([*others, *values[FEWEST // 2 :]])


def test_few_steps_do_not_tell() -> None:
    line = [float(step) for step in range(FEWEST)]
    assert rise(line[1:]) is None
    assert verdict(rise(line[1:])) is LearningVerdict.SHORT
    assert verdict(rise(line)) is LearningVerdict.RISING
    assert rise([None, *line[1:]]) is None
    found = rise([*line, None])
    assert found is not None
    assert found.missing == 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7.3])
def test_a_constant_reward_is_level_whatever_its_mean_is_rounded_to(value: float) -> None:
    found = rise([value] * 101)
    assert found is not None
    assert (found.mean, found.low, found.high) == (0, 0, 0)
    assert verdict(found) is LearningVerdict.LEVEL


# which steps are judged ---------------------------------------------------------------------------


def lines(stage: str, rewards: list[float | None], **more: Any) -> list[dict[str, Any]]:
    every = enumerate(rewards, start=1)
    return [{"stage": stage, "step": step, "reward": each, **more} for step, each in every]


def test_the_last_reinforcement_stage_is_judged() -> None:
    up, down = [float(step) for step in range(100)], [-float(step) for step in range(60)]
    searched = lines("tree search", up, kept=1.0)
    staged = [*lines("stage 1", up), *searched, *lines("stage 3", down), *lines("dpo", [None])]
    found = learning(staged)
    assert found is not None
    assert (found.stage, found.stages, found.updates) == ("stage 3", 2, 60)
    assert found.verdict is LearningVerdict.FALLING
    assert found.accuracy is None
    assert str(found).startswith("falling in stage 3, −12.00 [−12.00, −12.00] from the third")
    assert learning(searched) is None
    assert learning([]) is None


@given(curves)
def test_as_json_and_back(values: list[float]) -> None:
    found = learning(lines("grpo", [*values], accuracy=0.5))
    assert found is not None
    entry = json.loads(json.dumps(found.as_json()))
    checked.summary({"learning": entry})
    assert Learning.from_json(entry).as_json() == found.as_json()


def test_a_summary_holds_the_verdicts_that_there_are() -> None:
    field = checked._Learned.model_fields["verdict"]
    assert set(get_args(field.annotation)) == set(map(str, LearningVerdict))
    entry = Learning("grpo", 1, 1, None, None).as_json()
    with pytest.raises(ValueError, match="verdict"):
        checked.summary({"learning": {**entry, "verdict": "up"}})


def test_what_is_told() -> None:
    sure, wide = Estimate(0.0214, 0.0123, 0.0305, 492), Estimate(-0.2, -1.5, 1.1, 24)
    assert str(Learning("grpo", 1, 1_000, sure, wide)) == (
        "still rising, +.021 [.012, .030] from the third quarter of 1,000 updates to the last "
        "(accuracy −.20 [−1.50, 1.10])"
    )
    assert str(Learning("grpo", 1, 60, wide, None)) == (
        "level within the noise, −.20 [−1.50, 1.10] from the third quarter of 60 updates to the "
        "last"
    )
    short = Learning("grpo", 1, 9, None, None)
    assert str(short) == "too short to tell: 9 updates, at least 48 are needed"
    folds = {"1/3": {"verdict": "rising"}, "2/3": {"verdict": "level"}, "3/3": {"verdict": "level"}}
    assert told({**short.as_json(), "folds": folds}).endswith("; fold by fold: 2 level, 1 rising")


# the command that goes on -------------------------------------------------------------------------


def words_of(line: str) -> list[str]:
    """The words behind `workup`, as a shell would pass them on."""
    program, *words = shlex.split(line)
    assert program == "workup"
    return words


def understood(line: str) -> Settings:
    """What `workup train` makes of the line."""
    train, method, *words = words_of(line)
    assert train == "train"
    options = {
        word.removeprefix("--"): words[place + 1]
        for place, word in enumerate(words)
        if word.startswith("--")
    }
    settled = [word for word in words if "=" in word and word not in options.values()]
    given = {name: options[name] for name in ("cases", "policy")}
    return with_user_config(Settings, {**read(settled), "method": method, **given})


def made(folder: Path, settings: Settings, stages: tuple[str, ...] = ("grpo",)) -> Run:
    """A run folder with these settings in full, as a training writes them, that trained nothing."""
    config = Plan.of(settings, "account").config
    run = Run.create(folder, {"account": "account", **config}, {})
    for stage in stages:
        run.log({"stage": stage, "step": 1, "reward": 0.5})
    return run


def in_full(settings: Settings) -> dict[str, Any]:
    """All settings but those of a policy's beginning."""
    plain = Plan.of(settings, "account").config
    return {name: each for name, each in plain.items() if name not in ("tiny", "sft", "anchors")}


SETTINGS: Mapping[str, dict[str, Any]] = {
    "defaults": {"method": "craft"},
    "falling": {"method": "outcome", "lr": 4e-3, "lr_schedule": "cosine", "warmup": 0.1},
    "own": {
        "method": "craft",
        "cases": "clinic:xs",
        "split": 3,
        "seed": 7,
        "steps": 12,
        "epsilon_high": 0.28,
        "sft": {"steps": 9},
        "tiny": {"width": 32},
        "evaluation": {"cases": 9, "measures": ["kg:who", "rouge"]},
        "environment": {"max_turns": 4},
        "reward": {"variant": "info-recall", "alpha": 0.25},
        "report_to": ["tensorboard"],
    },
    "adapters": {"method": "outcome", "lora": {"r": 4, "targets": ["q_proj", "v_proj"]}},
    "another environment": {"method": "outcome", "environment": {"name": "questioning"}},
    "the paper's": {"method": "craft", "preset": "paper", "steps": 8, "group": 4},
    "a number as a text": {"method": "medr3", "reward": {"recipe": "3"}},
}


@pytest.mark.parametrize("given", SETTINGS.values(), ids=SETTINGS)
def test_the_line_has_the_settings_of_the_run(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = Settings(**given)
    run = made(tmp_path / "a run's folder", begun)
    policy = tmp_path / "a run's folder"
    (policy / "policy").mkdir()
    (policy / "policy" / "config.json").write_text("{}")
    constant = begun.lr_schedule == "constant"
    rate = {"lr_schedule": "linear"} if constant else {"lr": begun.lr / 2}
    changed = {"policy": str(policy), **rate}
    found = in_full(understood(command(run, "grpo")))
    assert found == {**in_full(begun), **changed, "warm_start": None}
    assert shlex.split(command(run, "grpo"))[-2:] == ["--out", f"{policy}-on"]


def test_only_what_differs_from_the_defaults_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = made(Path("runs/demo"), Settings(method="craft", policy="tiny", max_tokens=8))
    assert command(run, "grpo") == (
        "workup train craft --policy runs/demo --cases clinic:s lr=0.0005 lr_schedule=linear "
        "entropy=0.003 steps=1000 batch=8 max_tokens=8 evaluation.cases=1000 --out runs/demo-on"
    )


def test_what_workup_yaml_defines_is_not_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    defined = "endpoints:\n  a: {base_url: 'http://a/v1', model: m}\nroles: {judge: 'endpoint:a'}\n"
    Path("workup.yaml").write_text(f"{defined}budget: 3\n")
    settings = with_user_config(Settings, {"method": "craft"})
    assert "endpoint" not in command(made(Path("one"), settings), "grpo")
    Path("workup.yaml").unlink()
    typed_out = understood(command(Run.open("one"), "grpo"))
    assert typed_out.endpoints == settings.endpoints
    assert (typed_out.roles, typed_out.budget) == (settings.roles, 3)


def test_folders_are_numbered(tmp_path: Path) -> None:
    def next_of(name: str) -> str:
        run = Run.open(tmp_path / name)
        return Path(shlex.split(command(run, "grpo"))[-1]).name

    for name in ("a", "a-on", "a-on-2", "b-on"):
        made(tmp_path / name, Settings(method="craft"))
    assert [next_of(name) for name in ("a", "a-on", "a-on-2")] == ["a-on-3"] * 3
    assert next_of("b-on") == "b-on-2"


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8", exclude_characters="$")),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    )
)
def test_a_value_is_read_as_it_was(value: Any) -> None:
    assert read([f"name={typed(value)}"])["name"] == value


def test_only_the_last_stage_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases are not searched again, and what they came to is not imitated again."""
    monkeypatch.chdir(tmp_path)
    staged = ("warm start", "tree search", "sft", "grpo")
    run = made(Path("run"), Settings(method="promed", cases="clinic:xs"), staged)
    following = understood(command(run, "grpo"))
    assert following.begin == "grpo"
    tiny = following.model_copy(update={"policy": "tiny"})
    assert [stage.name for stage in Plan.of(tiny, "account").stages] == ["grpo"]
    assert Plan.of(tiny, "account").warm_steps == 0


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        ("grppo", "no stage 'grppo'. Did you mean 'grpo'?"),
        ("sft", "stage 'sft' learns what 'tree search' keeps: begin with that one, or after 'sft'"),
    ],
)
def test_a_stage_to_begin_with_is_one_that_can_begin(begin: str, why: str) -> None:
    with pytest.raises(UserError) as error:
        Plan.of(Settings(method="promed", cases="clinic:xs", begin=begin), "account")
    assert str(error.value) == why


@pytest.fixture(scope="module")
def rising(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two steps in a folder with blanks, in whose metrics the reward rises."""
    folder = tmp_path_factory.mktemp("a place") / "my 'own' run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(folder.parent / "cache"))
        run = workup.train("craft", cases="clinic:xs", out=folder, seed=3, split=1, **QUIET)
    rng = np.random.default_rng(0)
    rewards = np.linspace(0, 1, 100) + rng.normal(size=100) / 10
    run.log_anew(lines("grpo", rewards.tolist(), accuracy=0.5))
    run.write_summary({**run.summary, "learning": describe_learning(run)})
    return run


def test_the_line_that_is_printed_goes_on(rising: Run) -> None:
    shown = StringIO()
    PlainLive(shown).table(rising.summary)
    reward, going = (
        next(line for line in shown.getvalue().splitlines() if line.startswith(label))
        for label in ("reward  ", "go on   ")
    )
    assert reward.startswith("reward  still rising, +.2")
    line = going.removeprefix("go on   ")
    done = forked(*words_of(line), cwd=rising.path.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    with Run.open(shlex.split(line)[-1]) as after:
        trained = {each["stage"] for each in after.metrics()}
        assert trained == {"grpo"}
        assert after.config["trained_before"] == [
            {"run": str(rising.path), "cases": "clinic:xs", "split": 1}
        ]
        assert (after.seed, after.config["steps"], after.config["lr"]) == (3, 2, 5e-4)
        tested = [{each.case_id for each in run.outcomes("trained")} for run in (rising, after)]
        assert tested[0] == tested[1]
        assert after.summary["learning"]["verdict"] == LearningVerdict.SHORT


def test_the_report_has_the_line(rising: Run) -> None:
    from markupsafe import escape

    from workup.report import build as written

    page = written(rising).read_text()
    assert "Reward: still rising, +.2" in page
    assert str(escape(rising.summary["learning"]["go_on"])) in page


# beside others ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Runs of three seeds whose rewards rose, fell and rose, and an evaluation of the first."""
    folder = tmp_path_factory.mktemp("ended")
    up, found, own = np.linspace(0, 1, 96).tolist(), [], {**QUIET, "cases": "clinic:xs"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(folder / "cache"))
        for seed, rewards in enumerate((up, up[::-1], up)):
            run = workup.train("craft", out=folder / f"{seed}", seed=seed, **own)
            run.log_anew(lines("grpo", rewards))
            run.write_summary({**run.summary, "learning": describe_learning(run)})
            found.append(run)
        settings = {"cases": 2, "anchors": False}
        out = folder / "played"
        found.append(workup.evaluate(folder / "0", out=out, quiet=True, evaluation=settings))
    return found


def compared(runs: list[Run], folder: Path, *, apart: bool = False) -> tuple[str, str]:
    """What `compare` prints, and its page."""
    console = Console(file=StringIO(), width=200)
    report.compare(runs, folder / "page.html", console, apart=apart)
    printed = console.file
    assert isinstance(printed, StringIO)
    return printed.getvalue(), (folder / "page.html").read_text()


def test_a_comparison_says_who_was_still_rising(ended: list[Run], tmp_path: Path) -> None:
    printed, page = compared(ended, tmp_path, apart=True)
    head, _, *rows = [line.split() for line in printed.splitlines() if line.strip()]
    assert head[:5] == ["reward", "at", "the", "end", "accuracy"]
    assert [row[: row.index(".00")] for row in rows[3:7]] == [
        ["0", "rising"],
        ["1", "falling"],
        ["2", "rising"],
        ["played:", "0", "rising"],  # of the run that trained its policy
    ]
    assert "<small>+.25 [.25, .25]</small>" in page


def test_seeds_that_differ_are_counted(ended: list[Run], tmp_path: Path) -> None:
    printed, page = compared(ended[:3], tmp_path)
    assert "2 of 3 rising" in printed
    assert "rising, falling, rising" in page
    (group,) = workup.compare([run.path for run in ended[:3]])["groups"].values()
    assert {seed: entry["verdict"] for seed, entry in group["learning"].items()} == {
        "0": "rising",
        "1": "falling",
        "2": "rising",
    }
    assert "go_on" in group["learning"]["0"]
    assert "go_on" not in group["learning"]["1"]


def test_where_nothing_was_reinforced_there_is_no_such_column(tmp_path: Path) -> None:
    still = {**QUIET, "steps": 0}
    runs = [workup.train("craft", cases="clinic:xs", out=tmp_path / name, **still) for name in "ab"]
    assert "learning" not in runs[0].summary
    printed, page = compared(runs, tmp_path)
    assert "reward at the end" not in printed + page
