"""The terms of the Human Phenotype Ontology, read from its released `hp.obo`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from workup.cases.files import scan
from workup.core.errors import CaseError

ROOT = "HP:0000001"
ABNORMALITY = "HP:0000118"
"""Phenotypic abnormality: the root of what a patient can have."""

_SYNONYM = re.compile(r'"((?:[^"\\]|\\.){1,300})" EXACT ?(\S{0,40}) ?\[')
_LEFT_OUT = ("obsolete_synonym", "plural_form", "abbreviation")
_KEPT = frozenset(("id", "name", "is_a", "alt_id", "is_obsolete", "replaced_by", "synonym"))


@dataclass(slots=True)
class Term:
    """A term: its name, its exact synonyms in the file's order, and the terms that it is a kind of.

    Synonyms that the file calls obsolete, a plural or an abbreviation are left out.
    """

    id: str
    name: str = ""
    synonyms: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)


class Ontology:
    """All terms that are not obsolete, by id. `version` is what the release calls itself."""

    def __init__(
        self, terms: Mapping[str, Term], elsewhere: Mapping[str, str], version: str
    ) -> None:
        self.terms, self.version = terms, version
        self._elsewhere = elsewhere
        self.ancestors = lru_cache(maxsize=None)(self._ancestors)

    @classmethod
    def open(cls, path: Path) -> Ontology:
        """Reads `hp.obo`.

        Raises CaseError (file, line) for what is no such file, for a kind of an unknown term, and
        for a circle of terms.
        """
        terms: dict[str, Term] = {}
        elsewhere: dict[str, str] = {}
        version = ""
        for line, tags in _stanzas(path):
            if not line:
                version = next(iter(tags.get("data-version", [])), "")
                continue
            if "id" not in tags:
                raise CaseError("a [Term] without an id.", file=path, line=line)
            id = tags["id"][0]
            if tags.get("is_obsolete") == ["true"]:
                for successor in tags.get("replaced_by", [])[:1]:
                    elsewhere[id] = successor
                continue
            terms[id] = _term(id, tags)
            elsewhere |= dict.fromkeys(tags.get("alt_id", []), id)
        if not terms:
            raise CaseError("holds no [Term] of an ontology.", file=path)
        made = cls(terms, elsewhere, version)
        made._connect(path)
        return made

    @cached_property
    def abnormalities(self) -> tuple[str, ...]:
        """The ids of all kinds of ABNORMALITY but itself, in the file's order."""
        below = (id for id in self.terms if ABNORMALITY in self.ancestors(id))
        return tuple(id for id in below if id != ABNORMALITY)

    @cached_property
    def by_name(self) -> Mapping[str, str]:
        """The abnormalities' ids by name, in the file's order; of two with one name the first."""
        found: dict[str, str] = {}
        for id in self.abnormalities:
            found.setdefault(self.terms[id].name, id)
        return found

    def resolve(self, id: str) -> str:
        """The present id of a term.

        That of an alternative id is its term's, that of an obsolete one its successor's. "" where
        the ontology has no such term, or an obsolete one without a successor.
        """
        for _ in range(len(self._elsewhere) + 1):
            if id in self.terms or id not in self._elsewhere:
                break
            id = self._elsewhere[id]
        return id if id in self.terms else ""

    def _ancestors(self, id: str) -> frozenset[str]:
        """The term and everything that it is a kind of."""
        known = (self.ancestors(parent) for parent in self.terms[id].parents)
        return frozenset((id,)).union(*known)

    def _connect(self, path: Path) -> None:
        """Replaces earlier ids of parents, and fills the cache of ancestors from the top down.

        The terms are visited so that no parent comes after its child: nothing recurses deeply.
        Raises CaseError for an unknown parent, and where a term is a kind of itself.
        """
        for id, term in self.terms.items():
            present = {parent: self.resolve(parent) for parent in term.parents}
            if unknown := next((parent for parent in present if not present[parent]), ""):
                raise CaseError(f"{id} is a kind of {unknown}, an unknown term (is_a).", file=path)
            term.parents = sorted({*present.values()})
        parents = {id: term.parents for id, term in self.terms.items()}
        try:
            for id in TopologicalSorter(parents).static_order():
                self.ancestors(id)
        except CycleError as error:
            raise CaseError(f"{error.args[1][0]} is a kind of itself (is_a).", file=path) from None


def _stanzas(path: Path) -> Iterator[tuple[int, dict[str, list[str]]]]:
    """The tags of the header, then those of every [Term]; other stanzas are skipped.

    With each comes the line of its [Term], 0 for the header.
    """
    tags: dict[str, list[str]] = {}
    begun, read = 0, True
    for line in scan(path):
        if line.text.startswith("["):
            if read:
                yield begun, tags
            tags, begun, read = {}, line.number, line.text == "[Term]"
        elif read:
            tag, colon, value = line.text.partition(": ")
            if tag in _KEPT or tag == "data-version":
                tags.setdefault(tag, []).append(_value(tag, value, path, line.number))
            elif not colon and not line.text.endswith(":"):
                raise CaseError("no line of an ontology (TAG: VALUE).", file=path, line=line.number)
    if read:
        yield begun, tags


def _value(tag: str, value: str, path: Path, line: int) -> str:
    """A tag's value without the comment behind " ! "."""
    plain = value if tag in ("name", "synonym") else value.partition(" ! ")[0]
    plain = plain.partition(" {")[0].strip() if tag == "is_a" else plain.strip()
    if tag in ("id", "is_a", "alt_id", "replaced_by") and (not plain or " " in plain):
        raise CaseError("is no id of a term.", file=path, line=line, field=tag, got=plain[:60])
    return plain


def _term(id: str, tags: Mapping[str, list[str]]) -> Term:
    name = next(iter(tags.get("name", [])), id)
    found = (_SYNONYM.match(text) for text in tags.get("synonym", []))
    texts = (each[1].replace("\\", "") for each in found if each and each[2] not in _LEFT_OUT)
    synonyms = [text for text in dict.fromkeys(texts) if text.lower() != name.lower()]
    return Term(id, name, synonyms, list(tags.get("is_a", [])))
