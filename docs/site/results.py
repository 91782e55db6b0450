"""Tables of measured figures, rendered from `results/*.json` into the pages that show them.

    python -m docs.site.results                      renders every table anew (`make results`)
    python -m docs.site.results NAME RUN…            keeps the figures of run folders first
    python -m docs.site.results NAME FOLDER          the same of `workup claims` or `workup exam`
    python -m docs.site.results NAME FILE.json       the same of a study, an audit, the bench
    python -m docs.site.results NAME FOLDER --add    of claims: adds those that it decided, and
                                                     keeps the verdicts that they replace

Runs that are named together differ by their seed alone, and are pooled. A page shows a table where
it has two comments; what stands between them is rendered:

    <!-- result NAME doctors accuracy questions -->  the doctors of runs, with these measures
    <!-- result NAME+NAME doctors accuracy -->       one measure of several, beside each other
    <!-- result NAME+NAME table 1 -->                the first table of studies, below each other
    <!-- result NAME verdicts -->                    the claims that have a figure
    <!-- result NAME table 1 columns 1 3 4 -->       some of its columns
    <!-- result NAME table 1 wide 4 -->              column 4, by rows and columns of the first two
    <!-- result NAME table 2 again -->               without the line on its origin, told above
    <!-- result claims -->                           all papers, with the number of each verdict
    <!-- result claims headlines -->                 the claims that each paper is read for
    <!-- end of result -->

The result of a paper's claims, `claims-PAPER-SCALE`, has a page that is rendered whole.
A test compares the pages with what is rendered here.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from workup.core.crossed import Crossed, Decision, adjusted
from workup.core.errors import UserError, WorkupError
from workup.core.statistics import Estimate
from workup.metrics.known import metric
from workup.report.scorecard import Scorecard, is_exam
from workup.report.seeds import grouped
from workup.report.suite import opened
from workup.report.tables import chance, gap_of, gap_text, signed
from workup.runs import Run
from workup.runs.machine import origin
from workup.runs.summary import describe_seeds
from workup.runs.words import DASH, cell, finer, number, plus_minus
from workup.studies import claims
from workup.studies.claims.decided import CANNOT, FEWEST, NOT_RUN
from workup.studies.claims.deciding import NAME as CLAIMS
from workup.studies.claims.deciding import without_means
from workup.studies.claims.page import EACH, each_seed, notes_on, rising_text

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results"
MARK = re.compile(
    r"(?P<head><!-- result (?P<words>[^>\n]+) -->\n).*?(?P<end><!-- end of result -->)", re.DOTALL
)
VERDICTS = (*map(str, Decision), CANNOT)
ADD = "--add"
HEADLINE = ("claim", "verdict", "compared", "difference", "in the paper", "seeds", "adjusted p")
DECIDED = ("verdict", "reason", "compared", "written_as", "difference", "by_seed", "setup")
"""What is kept of a verdict that another one replaces."""
FEWER = "(others "


def take(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    """What is kept of runs, of a folder of claims, of an exam, or of a study's file.

    Raises UserError for anything else.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise UserError(f"'{name}': name a result in small letters, digits and hyphens")
    if len(folders) == 1 and (file := folders[0] / f"{CLAIMS}.json").exists():
        found = dict(json.loads(file.read_text(encoding="utf-8")))
        return {key: value for key, value in found.items() if key != "tables"}
    if len(folders) == 1 and folders[0].suffix == ".json":
        return _of_study(folders[0])
    runs = [Run.open(folder) for folder in folders]
    for run in runs:
        if not run.summary:
            raise UserError(f"{run.path} has not ended")
    if len(runs) == 1 and is_exam(runs[0]):
        return _of_exam(runs[0])
    groups, notes = grouped(runs)
    if len(groups) > 1:
        raise UserError(" ".join(["these runs differ by more than their seed.", *notes]))
    return {"kind": "runs", **_pooled(runs)}


def added(found: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The `earlier` result of a paper's claims; those that `found` decided are taken from it.

    They have a figure, or a check spoke against their set-up; where its command chose some with
    --only, they are among these. A set-up of other runs than the earlier one of its name stands
    beside it, as in "stages, later". Adjusted p, counts and notes are made anew. `later` says by
    which command each claim was added, and `before` of a claim which verdicts were replaced, the
    oldest first. Raises UserError where `found` decided no claim, or the two list other claims.
    """
    words = shlex.split(found["command"])
    only = {word for option, word in pairwise(words) if option == "--only"}
    ran = {
        each["id"]: each
        for each in found["claims"]
        if not only or only & {each["id"], each.get("setup")}
        if each["difference"] or (each["verdict"] == CANNOT and "cannot" not in each)
    }
    both = [[each["id"] for each in one["claims"]] for one in (found, earlier)]
    if not ran or both[0] != both[1]:
        raise UserError("these claims cannot be added: they are others, or none is decided")
    setups = {each["setup"] for each in ran.values()} & {*found["setups"]}
    told = [each for each in earlier["claims"] if each["id"] not in ran or each["difference"]]
    told += [each for row in earlier["claims"] for each in row.get("before", ())]
    used = {each.get("setup") for each in told}
    kept = {name: one for name, one in earlier["setups"].items() if name in used}
    names = {name: _free(name, found["setups"][name], kept) for name in setups}
    rows = [dict(ran.get(each["id"], each)) for each in earlier["claims"]]
    for row, old in zip(rows, earlier["claims"], strict=True):
        if row["id"] in ran:
            row["setup"] = names.get(row["setup"], row["setup"])
        if before := _before(row, old, earlier):
            row["before"] = before
    gaps = [Crossed.from_json(each["difference"]) if each["difference"] else None for each in rows]
    chances = [gap.p if gap and gap.seeds >= FEWEST else math.nan for gap in gaps]
    for row, p in zip(rows, adjusted(chances), strict=True):
        row["adjusted_p"] = None if math.isnan(p) else p
    papers = [each["verdict"].partition(",")[0] for each in rows if not _is_ours(each)]
    own = {"command": without_means(found["command"]), "made": found["made"], "claims": [*ran]}
    return {
        **earlier,
        "counts": dict(Counter(papers).most_common()),
        "claims": rows,
        "notes": notes_on(rows),
        "setups": {
            **kept,
            **{names[name]: one for name, one in found["setups"].items() if name in names},
        },
        "later": [*earlier.get("later", ()), own],
    }


def _before(
    row: Mapping[str, Any], old: Mapping[str, Any], earlier: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The verdicts that a claim had before the `row` of today, with what made their figures."""
    known = list(old.get("before", ()))
    same = all(old[key] == row[key] for key in ("verdict", "difference"))
    if same or old["verdict"] == NOT_RUN:
        return known
    makers = [earlier, *(own for own in earlier.get("later", ()) if row["id"] in own["claims"])]
    kept = {key: old[key] for key in DECIDED if key in old}
    return [*known, {**kept, "made": makers[-1]["made"]}]


def _free(name: str, setup: Any, taken: Mapping[str, Any]) -> str:
    """The name of a set-up beside those `taken`: its own, unless other runs have it."""
    names = chain([name, f"{name}, later"], (f"{name}, later {count}" for count in range(2, 99)))
    return next(each for each in names if each not in taken or taken[each] == setup)


def _of_study(file: Path) -> dict[str, Any]:
    """The tables of a study or an audit as it printed them, and what made them."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {"kind": "study", **{key: found[key] for key in ("command", "made", "tables")}}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{file} is no result of a study or an audit ({error!r})") from None


def _of_exam(run: Run) -> dict[str, Any]:
    """The parts of its scorecard, each a table of the models between the anchors."""
    card = Scorecard(opened(run), run.path)
    tables = [
        {
            "title": part.title,
            "headings": ["", *card.heads],
            "words": 1,
            "rows": [[row.name, *(each.text for each in row.figures)] for row in part.rows],
        }
        for part in card.parts()
    ]
    first = run.versions
    return {"kind": "exam", "command": first["command"], "made": origin(first), "tables": tables}


def _pooled(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of every doctor, how learning ended, and what made them."""
    seeds = {str(run.seed): run for run in runs}
    doctors = {}
    for doctor in runs[0].doctors():
        if len(runs) == 1:
            doctors[doctor] = (runs[0].summary or {})["doctors"][doctor]
        else:
            each = {seed: run.outcomes(doctor) for seed, run in seeds.items()}
            doctors[doctor] = describe_seeds(each, runs[0].seed)
    first = runs[0].versions
    return {
        "command": first["command"],
        "made": origin(first),
        "seeds": [run.seed for run in runs],
        "learning": [(run.summary or {}).get("learning", {}).get("verdict") for run in runs],
        "doctors": doctors,
    }


def table(words: str, beside: Path) -> str:
    """The table that a mark in the page `beside` asks for. Raises UserError for one without."""
    name, *rest = words.split()
    if name == CLAIMS and rest in ([], ["headlines"]):
        return _headlines(beside) if rest else _papers(beside)
    results = []
    for each in name.split("+"):
        if not (file := KEPT / f"{each}.json").exists():
            raise UserError(f"{beside}: 'result {words}': there is no results/{each}.json")
        results.append(json.loads(file.read_text(encoding="utf-8")))
    match rest:
        case ["doctors", _, *_] if len(results) == 1:
            return _doctors(results[0], rest[1:])
        case ["doctors", measure]:
            return _doctors_beside(results, measure)
        case ["verdicts"] if len(results) == 1:
            return f"{_verdicts(results[0])}\n\n`{results[0]['command']}`: {_by(results[0])}."
        case ["table", place, *how] if place.isdigit():
            return _tables(results, int(place), how)
    raise UserError(
        f"{beside}: 'result {words}': write NAME doctors MEASURE…, NAME table 1 or claims"
    )


def _tables(results: Sequence[Mapping[str, Any]], place: int, how: Sequence[str]) -> str:
    """The table number `place`, from 1, of studies that have the same columns there."""
    tables = [each["tables"][place - 1] for each in results]
    headings, words = tables[0]["headings"], tables[0]["words"]
    if any(each["headings"] != headings for each in tables):
        raise UserError(f"table {place} has other columns in one of these results")
    rows = [row for each in tables for row in each["rows"]]
    told_above = how[-1:] == ["again"]
    how = how[: len(how) - told_above]
    if how[:1] == ["wide"]:
        across = list(dict.fromkeys(row[1] for row in rows))
        cells = {(row[0], row[1]): row[int(how[1]) - 1] for row in rows}
        down = dict.fromkeys(row[0] for row in rows)
        rows = [[name, *(cells.get((name, each), DASH) for each in across)] for name in down]
        headings, words = [f"{headings[int(how[1]) - 1]} of", *across], 1
    elif how[:1] == ["columns"]:
        kept = [int(each) - 1 for each in how[1:]]
        headings, rows = [headings[k] for k in kept], [[row[k] for k in kept] for row in rows]
        words = sum(k < words for k in kept)
    notes = [] if told_above else [f"`{each['command']}`, {_by(each)}." for each in results]
    return "\n\n".join([_markdown(headings, rows, words), *notes])


def _doctors(found: Mapping[str, Any], measures: Sequence[str]) -> str:
    rows = []
    for doctor, entry in found["doctors"].items():
        cells = [_level(doctor, entry, name) for name in measures]
        shown = f"**{doctor}**" if doctor == "trained" else doctor
        rows.append([shown, *(f"**{each}**" if doctor == "trained" else each for each in cells)])
    cases = next(iter(found["doctors"].values()))["cases"]
    seeds = ", ".join(map(str, found["seeds"]))
    note = f"{cases:,} patients, seed{'s' if len(found['seeds']) > 1 else ''} {seeds}; {_by(found)}"
    note = f"`{found['command']}`: {note}" if "command" in found else note
    return f"{_markdown(['', *(metric(name).title for name in measures)], rows)}\n\n{note}."


def _doctors_beside(results: Sequence[Mapping[str, Any]], measure: str) -> str:
    """One measure of the doctors of several results; each column has what only its command says.

    A doctor that has the measure in none of them has no row.
    """
    split = [claims.settings_in(shlex.split(each["command"])) for each in results]
    typed = [[word for word in words if word[0][:5] != "seed="] for words in split]  # told below
    common = [word for word in typed[0] if all(word in words for words in typed)]
    own = [" ".join(chain(*(word for word in words if word not in common))) for words in typed]
    names = dict.fromkeys(chain(*(each["doctors"] for each in results)))
    rows = [
        [doctor, *(_level(doctor, each["doctors"].get(doctor, {}), measure) for each in results)]
        for doctor in names
    ]
    rows = [row for row in rows if {*row[1:]} != {DASH}]
    seeds = ", ".join(map(str, dict.fromkeys(chain(*(each["seeds"] for each in results)))))
    cases = next(iter(results[0]["doctors"].values()))["cases"]
    by = "; ".join(dict.fromkeys(map(_by, results)))
    title = metric(measure).title
    note = f"`{_joined(common)}`: {cases:,} patients, seeds {seeds}; {by}"
    head = [f"{title[0].upper()}{title[1:]}", *(words or "default" for words in own)]
    return f"{_markdown(head, rows)}\n\n{note}."


def _level(doctor: str, entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, Mapping) or cell(doctor, entry, name) == DASH:
        return DASH
    found = (Crossed if "df" in value else Estimate).from_json(value)
    mean, *ends = (number(name, each) for each in (found.mean, found.low, found.high))
    return plus_minus(name, found) if metric(name).share and {*ends} != {mean} else mean


def _verdicts(found: Mapping[str, Any]) -> str:
    """The claims that have a figure as a table."""
    every = found["claims"]
    told = [_told(each, every) for each in every if each["difference"] is not None]
    return _markdown([*told[0]] if told else [], [[*each.values()] for each in told], words=3)


def _told(claim: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What was found of one claim of `every`, by the headings of its columns."""
    name, gap, expected = claim["written_as"], claim["difference"], claim["expected"]
    more = 0 if gap is None else finer(name, gap_of(gap).half)
    return {
        "claim": f"{claim['says']} ({claim['place']})",
        "verdict": f"**{claim['verdict']}**",
        "compared": claim["compared"],
        "difference": DASH if gap is None else gap_text(name, gap_of(gap)),
        "detectable": number(name, claim["detectable"], more),
        "in the paper": DASH if expected is None else signed(name, expected, more),
        "seeds": DASH if gap is None else _seeds(claim, every),
        "still rising": rising_text(*_still(claim)),
        "adjusted p": DASH if claim["adjusted_p"] is None else chance(claim["adjusted_p"]),
    }


def _seeds(claim: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """ "10 (others 3 and 8)": its number of seeds, and those of its set-up's claims with fewer"""
    kin = [each for each in every if each["difference"] and each["setup"] == claim["setup"]]
    counts = sorted({each["difference"]["seeds"] for each in kin})
    own = claim["difference"]["seeds"]
    fewer = " and ".join(str(count) for count in counts if count < own)
    return f"{own} {FEWER}{fewer})" if fewer else str(own)


def _still(claim: Mapping[str, Any]) -> tuple[int, int]:
    """How many of the compared runs were still rising, and of how many this can be told."""
    counts = claim["rising"].values()
    return sum(count for count, _ in counts), sum(told for _, told in counts)


def _without(lacking: Sequence[Mapping[str, Any]]) -> list[str]:
    """The claims without a figure, those of one verdict and reason together."""
    told: dict[tuple[str, str], list[str]] = {}
    for each in lacking:
        if each["difference"] is None:
            whose = told.setdefault((each["verdict"], each["reason"]), [])
            whose.append(f"{each['says']} ({each['place']})")
    lines = [
        f"- **{verdict}**, {reason}:\n" + "\n".join(f"  - {said}" for said in says)
        for (verdict, reason), says in told.items()
    ]
    return ["Claims without a figure:\n\n" + "\n".join(lines)] if lines else []


def _arms(found: Mapping[str, Any]) -> str:
    """Every set-up's arms: the means over seeds, each seed's accuracy, how many still rose."""
    parts = []
    for name, setup in found["setups"].items():
        common, own = _typed(setup["commands"])
        measures = list(
            dict.fromkeys(key for arm in setup["arms"].values() for key in arm["by_seed"])
        )
        rows = [
            [
                arm,
                *(_mean(entry["by_seed"].get(name, {}), name) for name in measures),
                each_seed(entry["by_seed"]),
                " ".join(number("accuracy", each) for each in entry.get("learned", ())) or DASH,
                f"{entry['updates']:,}" if entry.get("updates") else DASH,
                DASH if entry["rising"] is None else str(entry["rising"]),
                *(f"`{words}`" if words else DASH for words in own[arm]),
            ]
            for arm, entry in setup["arms"].items()
        ]
        titles = [metric(name).title for name in measures]
        ends = ["still rising", "METHOD", "WORDS"]
        headings = ["arm", *titles, EACH, "while training", "updates", *ends]
        told = f"### {name}\n\n{setup['about']} Each arm's first seed is trained by `{common}`."
        parts.append(f"{told}\n\n{_markdown(headings, rows)}")
    return "\n\n".join(parts)


def _typed(commands: Mapping[str, str]) -> tuple[str, dict[str, tuple[str, str]]]:
    """What is typed for all arms, with METHOD and WORDS in it, and what these are for each arm.

    Own words stand last, as in the commands: the last word for a setting counts.
    """
    split = {arm: shlex.split(typed) for arm, typed in commands.items()}
    settings = {arm: list(claims.settings_in(each[3:])) for arm, each in split.items()}
    first = next(iter(commands))
    common = [each for each in settings[first] if all(each in own for own in settings.values())]
    own = {
        arm: (split[arm][2], _joined(each for each in every if each not in common))
        for arm, every in settings.items()
    }
    return f"{shlex.join(split[first][:2])} METHOD {_joined(common)} WORDS", own


def _joined(settings: Iterable[tuple[str, ...]]) -> str:
    return shlex.join(chain(*settings))


def _mean(by_seed: Mapping[str, float], name: str) -> str:
    return number(name, fmean(by_seed.values())) if by_seed else DASH


def claimed() -> dict[Path, dict[str, Any]]:
    """The page of every paper's claims, with its result."""
    return {
        ROOT / f"docs/results/{file.stem}.md": json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(KEPT.glob(f"{CLAIMS}-*.json"))
    }


def _papers(beside: Path) -> str:
    rows = []
    for page, found in claimed().items():
        counts = found["counts"]
        others = sum(count for key, count in counts.items() if key not in VERDICTS)
        link = f"[{found['paper']}]({os.path.relpath(page, beside.parent)})"
        cells = [str(counts.get(key, 0)) for key in VERDICTS]
        cells += [str(others), str(sum(map(_early, found["claims"])))]
        rows.append([link, found["scale"], str(sum(counts.values())), *cells])
    if not rows:
        return "No paper has been decided yet."
    early = "held or refuted while still learning"
    headings = ["paper", "scale", "claims", *VERDICTS, NOT_RUN, early]
    return _markdown(headings, rows, words=2)


def _headlines(beside: Path) -> str:
    """What was found of the claims that each paper is read for."""
    rows = []
    for page, found in claimed().items():
        link = f"[{found['paper']}]({os.path.relpath(page, beside.parent)})"
        _, paper = _today()[found["paper"]]
        wanted = {claim.id for claim in paper.claims if claim.headline}
        every = found["claims"]
        told = [_told(each, [each]) for each in every if each["id"] in wanted]
        rows += [[link, *(each[column] for column in HEADLINE)] for each in told]
    return _markdown(["paper", *HEADLINE], rows, words=4)


@cache
def _today() -> dict[str, tuple[str, claims.Paper]]:
    """The claims files of today: {"Med-R³": ("medr3", what its file holds)} and so on."""
    papers = {name: claims.read(name) for name in claims.names()}
    return {paper.paper: (name, paper) for name, paper in papers.items()}


def _is_ours(claim: Mapping[str, Any]) -> bool:
    """Whether we made the claim: a row's field "ours" is the figure of the better side."""
    return str(claim["place"]).startswith("ours")


def _early(claim: Mapping[str, Any]) -> bool:
    """Whether a paper's claim was held or refuted while half of its runs or more still rose."""
    sure = claim["verdict"].partition(",")[0] in (Decision.HELD, Decision.REFUTED)
    if _is_ours(claim) or not sure:
        return False
    still, of = _still(claim)
    return of > 0 and 2 * still >= of


def claims_page(found: Mapping[str, Any]) -> str:
    """The whole page of a paper's claims."""
    table, notes = _verdicts(found), list(found["notes"])
    if FEWER in table:
        notes.append(
            "*Others* in the column of seeds are claims of the same set-up that have fewer. Where "
            "seeds were added because of a verdict, a direction is found more often than the "
            "interval says."
        )
    parts = [
        f"# {found['paper']}: its claims, decided at the scale {found['scale']}",
        "This page is rendered from `results/` by `make results`. Do not edit it. "
        "[How claims are decided](deciding.md).",
        "With the commits named below, these commands decide the claims that have a figure, each "
        "with its seeds:",
        f"```\n{_commands(found)}\n```",
        table,
        f"{_by(found)[0].upper()}{_by(found)[1:]}.",
        *_later(found),
        *_replaced(found),
        *_since(found),
        *_without(found["claims"]),
        *(["\n".join(f"- {note}" for note in notes)] if notes else []),
        "## The arms",
        "Means over seeds of the trained policies, and each seed's accuracy. *While training*: the "
        "accuracy of the training episodes in each fifth of the updates. *Still rising* counts the "
        "runs whose reward rose to the end.",
        _arms(found),
    ]
    return "\n\n".join(parts) + "\n"


def _commands(found: Mapping[str, Any]) -> str:
    """What decides the claims that have a figure: a command for those with the same seeds.

    It is what was typed where no file of today has the paper.
    """
    if found["paper"] not in _today():
        return str(found["command"])
    name, paper = _today()[found["paper"]]
    settings = claims.settings_in(shlex.split(found["command"].splitlines()[0])[3:])
    typed = ["workup", "claims", name, *(word for word, *_ in settings if word[:2] != "--")]
    if found["scale"] != claims.SCALES[0]:
        typed += ["--scale", found["scale"]]
    setups = {claim.id: claim.setup for claim in paper.claims}
    groups: dict[tuple[int, ...], list[str]] = {}
    for each in found["claims"]:
        if each["difference"] is not None:
            groups.setdefault(tuple(map(int, each["by_seed"])), []).append(each["id"])
    lines = []
    for seeds, ids in groups.items():
        others = {setups.get(each) for each in chain(*groups.values()) if each not in ids}
        counts = Counter(setups.get(each) for each in ids)
        whole = {each for each, count in counts.items() if count > 1} - {None, *others}
        only = dict.fromkeys(setups[each] if setups.get(each) in whole else each for each in ids)
        first = ["--first", str(min(seeds))] if min(seeds) else []
        count = ["--seeds", str(max(seeds) - min(seeds) + 1)]
        chosen = chain(*(("--only", each) for each in only))
        lines.append(shlex.join([*typed, *first, *count, *chosen]))
    return "\n".join(lines)


def _later(found: Mapping[str, Any]) -> list[str]:
    """Which claims were decided later than the others, and not again after that."""
    rows = {each["id"]: each for each in found["claims"]}
    last = {name: own for own in found.get("later", ()) for name in own["claims"]}
    told = []
    for own in found.get("later", ()):
        kept = [rows[name] for name in own["claims"] if last[name] is own]
        if figures := [each for each in kept if each["difference"]]:
            setups = dict.fromkeys(each["setup"] for each in figures)
            arms = f"by the arms of *{'* and *'.join(setups)}* below"
            says = "; ".join(each["says"] for each in figures)
            told.append(f"Decided later, {_by(own)}, {arms}: {says}.")
        if says := "; ".join(each["says"] for each in kept if not each["difference"]):
            told.append(f"Left out later, {_by(own)}, by a check: {says}.")
    return told


def _replaced(found: Mapping[str, Any]) -> list[str]:
    """The earlier verdicts of claims that were decided again, by what decided them."""
    told: dict[str, list[str]] = {}
    for claim in found["claims"]:
        for each in claim.get("before", ()):
            gap, setup = each["difference"], each.get("setup")
            by = f"by the set-up *{setup}*, {_by(each)}" if setup else _by(each)
            says = f"{claim['says']} ({claim['place']}): **{each['verdict']}**"
            if gap is None:
                says += f", {each['reason']}"
            else:
                figure = gap_text(each["written_as"], gap_of(gap))
                says += f", {each['compared']} {figure}, {gap['seeds']} seeds"
            told.setdefault(by, []).append(says)
    lines = [f"- {by}:\n" + "\n".join(f"  - {each}" for each in own) for by, own in told.items()]
    return ["Decided before by other runs:\n\n" + "\n".join(lines)] if lines else []


def _since(found: Mapping[str, Any]) -> list[str]:
    """Which set-ups the claims file of today changes, lacks or adds, a line each."""
    if found["paper"] not in _today():
        return []
    (_, paper), scale = _today()[found["paper"]], found["scale"]
    here = {name: one.commands(scale) for name, one in paper.setups.items() if scale in one.scales}
    now = {each.id: each for each in paper.claims if not each.cannot and each.setup in here}
    changed: dict[str, list[str]] = {}
    new: dict[str, list[str]] = {}
    for row in found["claims"]:
        claim = now.get(row["id"])
        if row["difference"] is not None:
            commands = found["setups"][row["setup"]]["commands"]
            typed = {arm: shlex.split(words)[2:] for arm, words in commands.items()}
            today = _trained(claim.sides, here[claim.setup]) if claim else None
            if _trained((row["better"], row["than"]), typed) != today:
                changed.setdefault(row["setup"], []).append(row["says"])
        elif row["verdict"] != NOT_RUN and "cannot" not in row:
            continue  # a check spoke against its set-up
        elif claim and claim.setup not in found["setups"]:
            new.setdefault(claim.setup, []).append(row["says"])
    gone = {name for name in changed if name.partition(",")[0] not in here}
    lines = [
        f"- The set-up *{name}* has {'gone' if name in gone else 'changed'} since. Today's command "
        f"does not train its runs. It decided: {'; '.join(says)}."
        for name, says in changed.items()
    ]
    lines += [
        f"- The set-up *{name}* has come to this scale since. These claims have no runs yet: "
        f"{'; '.join(says)}."
        for name, says in new.items()
    ]
    return ["\n".join(lines)] if lines else []


def _trained(
    sides: Iterable[str | float], commands: Mapping[str, Sequence[str]]
) -> list[tuple[str, dict[str, str]]]:
    """The method and settings of each arm of a claim's sides, whatever the seed and the start."""
    parts = chain(*(claims.parted(side) for side in sides if isinstance(side, str)))
    every = [claims.meaning(commands[arm]) for arm, _ in parts]
    own = ("seed", "--policy")
    return [
        (method, {key: each for key, each in settings.items() if key not in own})
        for method, settings in every
    ]


def _by(found: Mapping[str, Any]) -> str:
    """What made the figures: commit, machine, day."""
    made = found["made"]
    where = made.get("accelerator") or made.get("processor", "a processor")
    day = str(made.get("ended", made.get("started", "")))[:10]
    commits = [each[:9] for each in str(made.get("commit", DASH)).split(", ")]
    return f"measured {day} on {where}, commit {', '.join(commits)}"


def _markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    escaped = r"\|"
    lines = [
        f"| {' | '.join(each.replace('|', escaped) for each in row)} |" for row in (headings, *rows)
    ]
    rule = ["---"] * words + ["---:"] * (len(headings) - words)
    return "\n".join([lines[0], f"| {' | '.join(rule)} |", *lines[1:]])


def rendered(page: Path) -> str:
    """The page's text with every table that it marks."""
    return MARK.sub(
        lambda found: f"{found['head']}{table(found['words'], page)}\n{found['end']}",
        page.read_text(encoding="utf-8"),
    )


def written() -> dict[Path, str]:
    """Every page that shows results, with its text."""
    own = {page: claims_page(found) for page, found in claimed().items()}
    marked = [ROOT / "README.md", *sorted((ROOT / "docs/results").rglob("*.md"))]
    return {**{page: rendered(page) for page in marked if page not in own}, **own}


def main(words: Sequence[str]) -> None:
    if words:
        name, *folders = [word for word in words if word != ADD]
        if not folders:
            raise UserError("name the runs, or the folder of claims, behind the result's name")
        kept = take(name, [Path(folder) for folder in folders])
        kept["command"] = without_means(kept["command"])
        if ADD in words:
            kept = added(kept, json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8")))
        KEPT.mkdir(exist_ok=True)
        text = json.dumps(kept, ensure_ascii=False, indent=1)
        (KEPT / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    for page, text in written().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except WorkupError as error:
        sys.exit(f"error: {error}")
