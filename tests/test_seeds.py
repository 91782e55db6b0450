"""Runs that differ by their seed alone as one, against brute force over their episodes."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import example_run
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import workup
from workup.core.episode import Ending
from workup.core.errors import UserError
from workup.report import compare
from workup.report.seeds import grouped
from workup.report.sides import compared
from workup.report.tables import gaps, signed
from workup.runs import Outcome, Run
from workup.runs.estimates import difference, estimate, paired_means, pooled, pooled_difference
from workup.runs.summary import describe_seeds, lead

Played = dict[str, list[Outcome]]
VERDICTS = st.sampled_from([True, False, None])  # None: the episode failed


def outcome(case: int, correct: bool | None, sample: int = 0) -> Outcome:
    ending = Ending.FAILED if correct is None else Ending.DIAGNOSED
    about = (f"p{case}", f"disease {case % 2}", "")
    return Outcome(*about, sample, ending, correct, 3, None, {}, {})


def played(seeds: Sequence[str]) -> st.SearchStrategy[Played]:
    rows = st.lists(st.lists(VERDICTS, min_size=2, max_size=2), min_size=4, max_size=4)
    return st.fixed_dictionaries(
        {
            seed: rows.map(
                lambda rows: [
                    outcome(case, verdict, sample)
                    for case, row in enumerate(rows)
                    for sample, verdict in enumerate(row)
                ]
            )
            for seed in seeds
        }
    )


def by_hand(seeds: Played) -> dict[str, dict[str, float]]:
    """patient → seed → the share of its judged episodes that are right."""
    found: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for seed, outcomes in seeds.items():
        for each in outcomes:
            if each.correct is not None:
                found[each.case_id][seed].append(each.correct)
    return {case: {s: fmean(v) for s, v in own.items()} for case, own in found.items()}


def same(found: float, expected: Sequence[float]) -> bool:
    return found == pytest.approx(fmean(expected)) if expected else math.isnan(found)


def own_figures(seeds: Played) -> list[float]:
    """Of each seed that has one: the share of its judged episodes that are right."""
    judged = [[o.correct for o in each if o.correct is not None] for each in seeds.values()]
    return [fmean(each) for each in judged if each]


def own_macros(seeds: Played) -> list[float]:
    found = []
    for outcomes in seeds.values():
        verdicts = defaultdict(list)
        for each in outcomes:
            if each.correct is not None:
                verdicts[each.diagnosis].append(each.correct)
        found += [fmean(map(fmean, verdicts.values()))] if verdicts else []
    return found


@given(played("012"))
@settings(deadline=None, max_examples=50)
def test_a_figure_is_the_mean_of_the_seeds_figures(seeds: Played) -> None:
    found = pooled(seeds, "accuracy")
    assert same(found.mean, own_figures(seeds))
    assert (found.n, found.missing) == (len(by_hand(seeds)), 4 - len(by_hand(seeds)))
    assert same(pooled(seeds, "macro_accuracy").mean, own_macros(seeds))


def own_gaps(ours: Played, theirs: Played) -> list[float]:
    """Of each common seed: the mean difference over the patients that both have a verdict of."""
    mine, other = by_hand(ours), by_hand(theirs)
    gaps = [
        [
            mine[case][seed] - other[case][seed]
            for case in mine
            if seed in mine[case] and seed in other.get(case, {})
        ]
        for seed in ours
        if seed in theirs
    ]
    return [fmean(each) for each in gaps if each]


@given(played("012"), played("124"))
@settings(deadline=None, max_examples=50)
def test_differences_are_paired_by_patient_and_seed(ours: Played, theirs: Played) -> None:
    found = pooled_difference(ours, theirs, "accuracy")
    assert same(found.mean, own_gaps(ours, theirs))
    back = pooled_difference(theirs, ours, "accuracy")
    assert back.mean == pytest.approx(-found.mean, nan_ok=True)
    assert (back.n, back.missing) == (found.n, found.missing)


@given(played("012"), played("012"), st.sampled_from(["accuracy", "macro_accuracy", "questions"]))
@settings(deadline=None, max_examples=20)
def test_a_figure_is_the_mean_of_the_seeds_own(ours: Played, theirs: Played, metric: str) -> None:
    """However many values are undefined, a figure or difference is the mean of the seeds' own."""
    entry, gap = describe_seeds(ours, 0), lead(ours, theirs, metric, 0)
    for told in (entry[metric], gap):
        seeds = [each for each in told["by_seed"].values() if each is not None]
        assert same(math.nan if told["mean"] is None else told["mean"], seeds)


def test_a_seed_that_found_little_weighs_as_much() -> None:
    """Ten patients have a value in seed 0, and one of the others has one in seed 1."""

    def noise(case: int, share: float | None) -> Outcome:
        return outcome(case, True)._replace(measures={"noise": share})

    seeds = {
        "0": [noise(case, 0.1 if case < 10 else None) for case in range(20)],
        "1": [noise(case, 1.0 if case == 10 else None) for case in range(20)],
    }
    found = pooled(seeds, "noise")
    assert found.mean == pytest.approx((0.1 + 1.0) / 2)
    assert (found.n, found.missing) == (11, 9)
    assert found.low <= found.mean <= found.high


@given(played("01"), played("23"))
@settings(deadline=None, max_examples=30)
def test_without_a_common_seed_differences_are_paired_by_patient(
    ours: Played, theirs: Played
) -> None:
    """Each seed counts as much, over the patients that both sides have a verdict of."""
    hands = [by_hand(side) for side in (ours, theirs)]
    both = hands[0].keys() & hands[1].keys()
    means = []
    for side, hand in zip((ours, theirs), hands, strict=True):
        own = [[hand[case][seed] for case in both if seed in hand[case]] for seed in side]
        means.append([fmean(values) for values in own if values])
    found = pooled_difference(ours, theirs, "accuracy").mean
    if all(means):
        assert found == pytest.approx(fmean(means[0]) - fmean(means[1]))
    else:
        assert math.isnan(found)


@given(
    st.sampled_from(["012", "0", "3"]).flatmap(played),
    st.sampled_from(["012", "124", "56", "0", "7"]).flatmap(played),
    st.sampled_from(["accuracy", "macro_accuracy", "questions"]),
)
@settings(deadline=None, max_examples=60)
def test_levels_stand_on_the_cases_that_the_difference_is_paired_over(
    ours: Played, theirs: Played, metric: str
) -> None:
    mine, other = paired_means(ours, theirs, metric)
    gap = pooled_difference(ours, theirs, metric).mean
    assert mine - other == pytest.approx(gap, nan_ok=True, abs=1e-9)


def test_levels_and_difference_do_not_contradict_each_other() -> None:
    """Many cases are judged on one side alone, and some are met more often than others."""
    ours = {"": [outcome(k, k != 7, s) for k in range(10) for s in range(2)]}
    theirs = {
        "": [
            *(outcome(k, None if k < 5 else True) for k in range(10)),
            *(outcome(9, False, s) for s in range(1, 6)),
        ]
    }
    (change,) = gaps(ours, theirs, ["accuracy"], 0)
    assert (change.before, change.after, change.by) == (".83", ".80", "−.03")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.07, "+.07"), (-0.07, "−.07"), (-0.001, ".00"), (0.001, ".00"), (0, ".00"), (1, "+1.00")],
)
def test_a_difference_has_its_sign_unless_it_is_rounded_to_nothing(value: float, text: str) -> None:
    assert signed("accuracy", value) == text


def test_sides_with_different_cases_in_every_seed_stand_with_their_own() -> None:
    ours = {"0": [outcome(0, True), outcome(1, False)], "1": [outcome(2, True), outcome(3, True)]}
    theirs = {
        "0": [outcome(2, False), outcome(3, False)],
        "1": [outcome(0, True), outcome(1, False)],
    }
    assert paired_means(ours, theirs, "accuracy") == (0.75, 0.25)
    assert pooled_difference(ours, theirs, "accuracy").mean == pytest.approx(0.5)


def test_one_seed_has_the_figures_of_its_run() -> None:
    ours = [outcome(k, verdict) for k, verdict in enumerate([True, False, None, True] * 5)]
    theirs = [outcome(k, k % 3 == 0) for k in range(15)]
    for metric in ("accuracy", "macro_accuracy", "questions"):
        assert str(pooled({"7": ours}, metric)) == str(estimate(ours, metric))
        of_runs = pooled_difference({"7": ours}, {"8": theirs}, metric)
        assert str(of_runs) == str(difference(ours, theirs, metric))


def test_the_same_verdicts_in_every_seed_add_no_certainty() -> None:
    once = [outcome(k, k % 3 > 0) for k in range(40)]
    one, three = (pooled(dict.fromkeys(seeds, once), "accuracy") for seeds in ("0", "012"))
    assert three.sd == pytest.approx(math.sqrt(26 / 40 * 14 / 40 / 39))
    assert (one.low, one.high) == pytest.approx((three.low, three.high), abs=0.03)


# ---- which runs belong together


def made(path: Path, **config: Any) -> Run:
    settings = {"method": "craft", "cases": "clinic:s", "split": 0, "policy": "tiny", "seed": 0}
    return Run.create(path, {**settings, **config}, {})


def names(runs: Sequence[Run], **how: Any) -> dict[str, list[str]]:
    return {
        group.label: [f"{seed}:{run.name}" for seed, run in group.runs.items()]
        for group in grouped(runs, **how)[0]
    }


def test_runs_of_one_method_and_several_seeds_are_one_group(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / f"{method}-{seed}", method=method, seed=seed, budget=float(seed) or None)
        for seed in (10, 2, 0)
        for method in ("craft", "outcome")
    ]
    assert names(runs) == {
        "craft": ["0:craft-0", "2:craft-2", "10:craft-10"],
        "outcome": ["0:outcome-0", "2:outcome-2", "10:outcome-10"],
    }
    assert names(runs, apart=True) == {run.name: [f"{run.seed}:{run.name}"] for run in runs}


def test_groups_are_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    def three(name: str, **config: Any) -> list[Run]:
        return [made(tmp_path / f"{name}{seed}", seed=seed, **config) for seed in (0, 1)]

    one = three("a", reward={"recipe": "1>2", "without": []}, steps=45)
    two = three("b", reward={"recipe": "3", "without": ["searches"]}, steps=45)
    lone = made(tmp_path / "lone", reward={"recipe": "3", "without": []}, steps=45, seed=5)
    assert list(names([*one, *two, lone])) == [
        "reward.recipe=1>2, reward.without=[]",
        "reward.recipe=3, reward.without=[searches]",
        "lone",
    ]
    assert list(names([*one, made(tmp_path / "other", method="outcome")])) == ["craft", "other"]
    many = three("c", reward={str(k): k for k in range(9)}, steps=45)
    assert list(names([*one, *many]))[1] == "c*"
    apart = [
        made(tmp_path / n, seed=k, reward=many[0].config["reward"]) for k, n in enumerate("xy")
    ]
    assert list(names([*one, *apart]))[1] == "x and 1 more"  # names that share nothing


def test_what_started_from_runs_of_several_seeds_belongs_together(tmp_path: Path) -> None:
    for seed in (0, 1):
        for name, steps in (("long", 9), ("short", 3)):
            looked = {"cases": 30 + seed}  # changes no policy
            made(
                tmp_path / f"{name}-{seed}",
                method="sft",
                seed=seed,
                steps=steps,
                evaluation=looked,
            )
    runs = [
        made(tmp_path / f"on-{name}-{seed}", policy=str(tmp_path / f"{name}-{seed}"), seed=seed)
        for name in ("long", "short")
        for seed in (0, 1)
    ]
    assert names(runs) == {
        "policy.steps=9": ["0:on-long-0", "1:on-long-1"],
        "policy.steps=3": ["0:on-short-0", "1:on-short-1"],
    }
    looks = [
        Run.create(
            tmp_path / f"look-{name}-{seed}",
            {"cases": "clinic:s", "split": 0, "policy": f"{name}-{seed}", "seed": 0},
            {},
        )
        for name, seed in (("long", 0), ("long", 1), ("short", 1))
    ]
    assert names(looks) == {
        "policy.steps=9": ["0:look-long-0", "1:look-long-1"],
        "look-short-1": ["1:look-short-1"],
    }, "an evaluation goes by the seed of what it evaluated, also where it stands alone"
    plain = made(tmp_path / "plain", method="outcome", seed=5)
    beside = [*names([*looks, plain]).values()]
    assert beside[0] == ["0:look-long-0", "1:look-long-1"]
    assert beside[-1] == ["5:plain"], "it started from no run"
    (tmp_path / "far").mkdir()
    made(tmp_path / "far" / "long", method="sft", seed=1, split=1, steps=9)
    far = made(tmp_path / "far" / "on", policy=str(tmp_path / "far" / "long"), seed=1, split=1)
    (note,) = grouped([runs[0], far])[1]
    assert "their patients are others" in note, "the split of the run before is another one too"


def test_copies_and_other_patients_stand_apart(tmp_path: Path) -> None:
    copies = [made(tmp_path / name) for name in ("one", "two")]
    assert len(grouped(copies)[0]) == 2
    third = made(tmp_path / "three", seed=1)
    with pytest.raises(UserError, match=r"one and .*two have the same settings .* seed, 0: .*apa"):
        grouped([*copies, third])
    assert len(grouped([*copies, third], apart=True)[0]) == 3
    older = made(tmp_path / "older", seed=3, split=3)
    groups, (note,) = grouped([third, older])
    assert len(groups) == 2
    assert "three and" in note
    assert "their patients are others" in note
    assert grouped([third, older], apart=True)[1] == []


# ---- what is shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Methods a, seeds 0 to 2, one episode of them failed, and b, seeds 1 to 3."""
    path = tmp_path_factory.mktemp("seeds")
    for method, skill, seeds in (("a", "warm start", (0, 1, 2)), ("b", "trained", (1, 2, 3))):
        for seed in seeds:
            run = made(path / f"{method}-{seed}", method=method, seed=seed)
            records = [
                replace(example_run.record(k, skill, 0, seed), doctor="trained") for k in range(24)
            ]
            if (method, seed) == ("a", 1):
                lost = replace(records[4].episode, ending=Ending.FAILED, reason="gone")
                records[4] = replace(records[4], episode=lost, correct=None, score=None)
            run.write(records)
            for step in (1, 2, 3):
                run.log({"stage": method, "step": step, "reward": seed + step, "accuracy": 0.5})
    return path


def opened(folder: Path) -> list[Run]:
    return [Run.open(path) for path in sorted(folder.iterdir())]


def shown(runs: Sequence[Run], html: Path | None = None, **how: Any) -> str:
    stream = StringIO()
    compare(runs, html, Console(file=stream, width=140), **how)
    return stream.getvalue()


def verdicts(folder: Path, method: str) -> Played:
    runs = sorted(folder.glob(f"{method}-*"))
    return {path.name[2:]: Run.open(path).outcomes("trained") for path in runs}


def test_the_figures_are_those_of_the_episodes(folder: Path) -> None:
    found = workup.compare(sorted(folder.iterdir()))
    assert (found["first"], list(found["groups"])) == ("a", ["a", "b"])
    hands = {method: by_hand(verdicts(folder, method)) for method in "ab"}
    for method in hands:
        told, seeds = found["groups"][method], verdicts(folder, method)
        own = {s: fmean(bool(o.correct) for o in seeds[s] if o.ending != "failed") for s in seeds}
        assert told["accuracy"]["mean"] == pytest.approx(fmean(own.values()))
        assert told["accuracy"]["by_seed"] == pytest.approx(own)
        assert told["accuracy"]["seeds"] == 3
        assert told["accuracy"]["spread"] == pytest.approx(variance(own.values()))
    lead = found["groups"]["b"]["lead"]["accuracy"]
    gaps = {
        seed: fmean(
            hands["b"][case][seed] - hands["a"][case][seed]
            for case in hands["a"]
            if seed in hands["a"][case]
        )
        for seed in "12"
    }
    assert lead["by_seed"] == pytest.approx(gaps)
    assert lead["spread"] == pytest.approx(variance(gaps.values()))
    assert lead["n"] == 24
    assert lead["low"] < 0 < lead["high"]
    assert lead["verdict"].startswith("undecided, about")
    assert lead["detectable"] > lead["mean"]
    assert lead["mean"] == pytest.approx(fmean(gaps.values()))
    assert "lead" not in found["groups"]["a"]


def test_terminal_page_and_json_tell_the_same(folder: Path, tmp_path: Path) -> None:
    text = shown(opened(folder), tmp_path / "c.html", json=tmp_path / "c.json")
    page, found = (tmp_path / "c.html").read_text(), json.loads((tmp_path / "c.json").read_text())
    assert found == workup.compare(sorted(folder.iterdir()))
    note = "a: 1 of 24 patients have no verdict in some of the seeds (1 episode failed)"
    assert all(note in told for told in (text, page, found["notes"][0]))
    each = " ".join(
        f"{value:.2f}".removeprefix("0")
        for value in found["groups"]["a"]["accuracy"]["by_seed"].values()
    )
    assert each in text
    assert f"<td>{each}" in page
    assert "b − a, paired over 24 cases, seeds 1, 2" in text
    assert "b, 24 common cases, seeds 1, 2" in page
    assert "a, seed 1 · b, seed 1" in page, "transcripts of a seed that both have"
    assert "page  " in text
    assert "json  " in text


def test_every_run_by_itself_on_request(folder: Path) -> None:
    text = shown(opened(folder)[:2], apart=True)
    assert "a-1 − a-0, paired over 23 cases" in text
    assert "by seed" not in text


def test_another_measure_is_shown_seed_by_seed(folder: Path) -> None:
    text = shown(opened(folder), measure="coverage")
    assert "coverage, and the difference to a" in text
    with pytest.raises(UserError, match=r"no measure 'coverag'\. Did you mean 'coverage'"):
        shown(opened(folder), measure="coverag")


def test_one_group_alone_has_no_differences(folder: Path, tmp_path: Path) -> None:
    text = shown(opened(folder)[:3], tmp_path / "c.html")
    assert "difference" not in text
    assert "Differences to" not in (tmp_path / "c.html").read_text()


def test_a_run_that_was_interrupted_is_not_pooled(folder: Path, tmp_path: Path) -> None:
    late = made(tmp_path / "late", method="a", seed=9)
    late.write([example_run.record(k, "warm start", 0, 9) for k in range(3)])
    with pytest.raises(UserError, match=r"late got as far as 'warm start', and .*resume .*late`"):
        shown([*opened(folder), late])
    assert "late: warm start" in shown([*opened(folder), late], apart=True)


def test_learning_curves_are_means_over_the_seeds(folder: Path) -> None:
    from workup.report.curves import averaged

    runs = [list(run.metrics()) for run in opened(folder)[:3]]
    curve = averaged("a", [*runs[:2], runs[2][:2]])
    assert [line["reward"] for line in curve.lines] == [2.0, 3.0], "as far as all have got"
    assert curve.values("accuracy") == [0.5, 0.5]
    assert averaged("a", runs[:1]).lines == runs[0]


def eighty(runs: Sequence[Run], **how: Any) -> list[str]:
    stream = StringIO()
    compare(runs, None, Console(file=stream, width=80), **how)
    return stream.getvalue().splitlines()


def test_it_fits_eighty_columns(folder: Path) -> None:
    """Every verdict stands under its heading, beside the interval that it is of."""
    lines = eighty(opened(folder))
    assert max(map(cell_len, lines)) <= 80
    said = r"undecided, (about \d+ more seeds?|needs more patients)"
    found = [k for k, line in enumerate(lines) if re.search(said, line)]
    (head,) = {max(j for j in range(k) if "──" in lines[j]) for k in found}
    assert "verdict" in lines[head - 1]
    for k in found:
        assert re.search(rf" to [+−]\S+ +{said} *$", lines[k]), lines[k]


# ---- how sure one may be


def skilled(path: Path, right: Sequence[bool], questions: int = 3, **config: Any) -> Run:
    """A run, a training by default, that is right for these patients after so many questions."""
    settings = {"method": "craft", "cases": "clinic:s", "split": 0, "policy": "tiny", "seed": 0}
    known = {key: each for key, each in {**settings, **config}.items() if each is not None}
    run = Run.create(path, known, {})
    records = [example_run.record(k, "trained", 0, 0) for k in range(len(right))]
    measures = {"questions": float(questions)}
    run.write(
        replace(each, correct=verdict, measures=measures)
        for each, verdict in zip(records, right, strict=True)
    )
    return run


def test_the_same_difference_in_every_seed_is_no_undecided_one(tmp_path: Path) -> None:
    """Always wrong against always right, and two questions more for every patient."""
    runs = [
        skilled(tmp_path / f"{method}-{seed}", [right] * 12, asked, method=method, seed=seed)
        for method, right, asked in (("a", True, 3), ("b", False, 5))
        for seed in (0, 1, 2)
    ]
    (side,) = compared(runs)[0][1:]
    told = {each.metric: each for each in side.changes}
    accuracy, questions = told["accuracy"], told["questions"]
    assert (accuracy.by, accuracy.seeds) == ("−1.00", "−1.00 −1.00 −1.00")
    assert (accuracy.verdict, accuracy.detectable) == ("lower", "–")
    assert (questions.by, questions.verdict) == ("+2.0", "constant")
    text = shown(runs, tmp_path / "c.html")
    sense = "constant: all have the same difference, so that there is no interval"
    assert "undecided" not in text
    assert sense in " ".join(text.split())
    assert sense in (tmp_path / "c.html").read_text()
    alone = compared([runs[0], *runs[3:]])[0][1].changes[0]
    assert alone.verdict == "lower"
    assert "other seeds are not covered" in shown([runs[0], *runs[3:]])


def notes(runs: Sequence[Run], **how: Any) -> list[str]:
    return compared(runs, **how)[1]


def test_single_seeds_are_told(tmp_path: Path) -> None:
    verdicts = [k % 3 > 0 for k in range(12)]

    def run(name: str, **config: Any) -> Run:
        return skilled(tmp_path / name, verdicts, **config)

    a0, a1, a2 = (run(f"a{seed}", seed=seed) for seed in (0, 1, 2))
    b0, b1, b2 = (run(f"b{seed}", seed=seed, method="outcome") for seed in (0, 1, 2))
    (apart,) = notes([a0, b1])
    assert "with one seed each, and not with the same: a0 (seed 0), b1 (seed 1)" in apart
    assert "cannot be told apart" in apart
    assert apart in " ".join(shown([a0, b1]).split())
    (same,) = notes([a0, b0])
    assert same.startswith("trained with one seed: a0 (seed 0), b0 (seed 0). The intervals are")
    (alone,) = notes([a0, a1, b0])
    assert alone.startswith("trained with one seed: b0 (seed 0)")
    assert notes([a0, a1, a2, b0, b1, b2]) == []
    (own,) = notes([a0, a1], apart=True)
    assert own == (
        "a0 (seed 0), a1 (seed 1): they differ by their seed alone, so their differences are the "
        "seeds'"
    )
    looks = [
        skilled(
            tmp_path / f"look-{name}",
            verdicts,
            method=None,
            policy=str(tmp_path / name),
            seed=7,
        )
        for name in ("a0", "b1")
    ]
    (evaluated,) = notes(looks)
    assert "not with the same: look-a0 (seed 0), look-b1 (seed 1)" in evaluated
    plain = [
        skilled(tmp_path / f"hub-{k}", verdicts, method=None, policy=f"hub/{k}", seed=k)
        for k in (0, 1)
    ]
    assert notes(plain) == [], "no seed stands behind what these can do"


# ---- other rows of the evaluation, and diseases


def test_another_row_of_every_run_is_compared(tmp_path: Path) -> None:
    """A hybrid bears the name of the policy that gathers, which differs from run to run."""
    runs = []
    for method, right in (("a", 3), ("b", 2)):
        for seed in (0, 1):
            run = made(tmp_path / f"{method}-{seed}", method=method, seed=seed)
            gatherer = f"{method}-{seed}"
            for doctor, chosen in ((gatherer, 5), (f"{gatherer}, bayes concludes", right)):
                records = [example_run.record(k, "trained", 0, seed) for k in range(12)]
                run.write(
                    replace(each, doctor=doctor, correct=k % chosen > 0)
                    for k, each in enumerate(records)
                )
            runs.append(run)
    sides, _ = compared(runs, doctor="bayes concludes")
    assert [side.row for side in sides] == ["a: bayes concludes", "b: bayes concludes"]
    assert sides[0].doctors == {"0": "a-0, bayes concludes", "1": "a-1, bayes concludes"}
    assert sides[0].entry["accuracy"]["mean"] == pytest.approx(8 / 12)
    assert "b: bayes concludes − a: bayes concludes" in shown(runs, doctor="bayes concludes")
    assert workup.compare([run.path for run in runs], doctor="bayes concludes")["groups"]["b"][
        "doctors"
    ] == {"0": "b-0, bayes concludes", "1": "b-1, bayes concludes"}
    with pytest.raises(UserError, match=r"no evaluated row 'bayes conclude' in .* 'a-0', 'a-"):
        compared(runs, doctor="bayes conclude")
    with pytest.raises(UserError, match=r"a-1 has no row 'a-0': name one that .* it has 'a-1'"):
        compared(runs, doctor="a-0")


def test_nothing_is_compared_without_a_common_case(tmp_path: Path) -> None:
    for method, start in (("a", 0), ("b", 100)):
        for seed in (0, 1):
            run = made(tmp_path / f"{method}-{seed}", method=method, seed=seed)
            run.write(example_run.record(k, "trained", 0, seed) for k in range(start, start + 12))
    told = workup.compare(sorted(tmp_path.iterdir()))
    assert told["groups"]["b"]["accuracy"]["n"] == 12
    assert not {"lead", "lead_by_disease"} & told["groups"]["b"].keys()
    assert "b and a have no case in common: no paired difference." in told["notes"]
    text = shown(opened(tmp_path))
    assert "b and a were evaluated on different cases: no paired difference." in text


def test_one_common_case_makes_no_paired_difference(tmp_path: Path) -> None:
    for method, start in (("a", 0), ("b", 9)):
        run = made(tmp_path / method, method=method, seed=0)
        run.write(example_run.record(k, "trained", 0, 0) for k in range(start, start + 10))
    text = " ".join(shown(opened(tmp_path)).split())
    assert "b and a have one case in common: a paired difference takes two." in text


def test_an_evaluation_of_an_anchor_is_about_that_anchor(tmp_path: Path) -> None:
    for name in ("greedy information", "random doctor"):
        config = {"cases": "clinic:s", "policy": name, "seed": 0, "anchors": [name]}
        run = Run.create(tmp_path / name, config, {})
        run.write(example_run.record(k, name, 0, 0) for k in range(12))
    sides, _ = compared([Run.open(path) for path in sorted(tmp_path.iterdir())])
    assert [side.doctor for side in sides] == ["greedy information", "random doctor"]


def test_accuracy_by_disease_is_that_of_its_patients(tmp_path: Path) -> None:
    """Some diseases have fewer than ten patients, and are not shown."""
    for method, skill in (("a", "warm start"), ("b", "trained")):
        for seed in (0, 1):
            run = made(tmp_path / f"{method}-{seed}", method=method, seed=seed)
            run.write(
                replace(example_run.record(k, skill, 0, seed), doctor="trained") for k in range(68)
            )
    (side,) = compared(opened(tmp_path))[0][1:]
    hands = {method: verdicts(tmp_path, method) for method in "ab"}
    diseases = {each.case_id: each.diagnosis for each in hands["a"]["0"]}
    many = {name for name, count in Counter(diseases.values()).items() if count >= 10}
    assert {each.disease for each in side.diseases} == many
    assert 0 < len(many) < len(set(diseases.values()))
    gaps = [abs(each.found.mean) for each in side.diseases]
    assert gaps == sorted(gaps, reverse=True)
    for each in side.diseases:
        own = {
            method: {
                seed: [o for o in outcomes if diseases[o.case_id] == each.disease]
                for seed, outcomes in played.items()
            }
            for method, played in hands.items()
        }
        assert each.found.mean == pytest.approx(fmean(own_gaps(own["b"], own["a"])))
        assert each.after - each.before == pytest.approx(each.found.mean)
        assert each.adjusted >= each.p
    told = workup.compare(sorted(tmp_path.iterdir()))["groups"]["b"]["lead_by_disease"]
    assert list(told) == [each.disease for each in side.diseases]
    assert f"Accuracy by disease, {side.row} − a" in shown(opened(tmp_path))
