"""MIMIC-IV-Ext Clinical Decision Making: admissions for four abdominal diseases (credentialed).

`mimiccdm:FOLDER` reads the CSV files of version 1.1, as PhysioNet releases them.
`#cholecystitis,diverticulitis,pancreatitis` keeps some of the diseases (these are CRAFT's, CR-15);
the word `all` holds every case out.

The first sentence of the history opens the encounter. The rest of it, the examination and the
reports are hidden sentence by sentence, under the heading, body part or examination that they
belong to; laboratory values come with their reference range. All four names are withheld in every
case alike. Operations, discharge diagnoses and codes come after the diagnosis and are not read. The
patient is taken from the number of a radiology report; admissions without one count as patients of
their own.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from workup.cases.files import ALL, Split, existing, held_out, read_object, words_of
from workup.cases.findings import parted, sentences
from workup.cases.rows import RowErrors, counted
from workup.cases.tables import RESTRICTED, CsvRow, Filling, TableIndex, indexed, member
from workup.core.case import Case, Fact, Kind, Source, Truth
from workup.core.errors import CaseError, UserError
from workup.core.lazy import Lazy
from workup.core.leaks import WITHHELD, Mask

EXAMPLE = "mimiccdm:~/mimic-iv-ext-cdm-1.1"
FILES = ("history_of_present_illness.csv*",)

_RELEASE = "MIMIC-IV-Ext Clinical Decision Making 1.1"
_GROUPS = "pathology_ids.json"
# the columns that are read; operations, discharge diagnoses and codes are left out, because they
# come after the diagnosis
_COLUMNS = {
    "history_of_present_illness.csv": ("hadm_id", "hpi"),
    "physical_examination.csv": ("hadm_id", "pe"),
    "lab_test_mapping.csv": ("itemid", "label", "fluid"),
    "laboratory_tests.csv": ("hadm_id", "itemid", "valuestr", "ref_range_lower", "ref_range_upper"),
    "microbiology.csv": ("hadm_id", "test_itemid", "valuestr", "spec_itemid"),
    "radiology_reports.csv": ("hadm_id", "note_id", "modality", "region", "text"),
}
_CODES = {
    "appendicitis": "K35",
    "cholecystitis": "K81",
    "diverticulitis": "K57",
    "pancreatitis": "K85",
}
_SCHEMA = """
CREATE TABLE cases (hadm INTEGER PRIMARY KEY, place INTEGER, disease TEXT, subject INTEGER, \
history TEXT);
CREATE TABLE facts (hadm INTEGER, place INTEGER, item TEXT, text TEXT, kind TEXT, PRIMARY KEY \
(hadm, place)) WITHOUT ROWID;
CREATE TABLE counts (what TEXT PRIMARY KEY, n INTEGER);
"""
_Found = tuple[str, str, Kind]  # item, text, how it is obtained
_OPENING = 500  # characters of the history that may open an encounter
_HEADING = re.compile(r"([A-Z][A-Za-z /&-]{1,40}):\s*")
_DENIES = re.compile(r"den(?:ies|ied)|neg(?:ative)?\b|no\b|not\b|without|absent", re.IGNORECASE)
_HISTORY = "History of present illness"
_OF_ALL = (_HISTORY.lower(), "hpi")
# a note says whose it is: subject, kind of note, number
_NOTE = re.compile(r"(\d{1,12})-[A-Z]{2}-\d{1,6}")


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FOLDER` or `FOLDER#WORD,WORD`.

    Raises UserError (which file is missing) and CaseError (file, line, field).
    """
    place, words = words_of(rest, "mimiccdm", [*_CODES, ALL])
    folder = existing(place)
    files = _files(folder)
    index = indexed(
        "mimiccdm", files, _SCHEMA, lambda filling: _AdmissionReader(files, filling).fill(), errors
    )
    wanted = [disease for disease in _CODES if disease in words] or list(_CODES)
    return _source(
        f"mimiccdm:{rest}", index, wanted, errors, held_out_all=ALL in words, split=split
    )


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; mimiccdm takes the folder of {_RELEASE}.")
    if any(folder.glob("*.pkl")) and not any(folder.glob("*.csv*")):
        raise UserError(
            f"{folder} holds pickles, which are never opened here; give the folder of "
            "PhysioNet's CSV files."
        )
    return {name: member(folder, name, _RELEASE) for name in (*_COLUMNS, _GROUPS)}


def _source(
    name: str,
    index: TableIndex,
    wanted: list[str],
    errors: RowErrors,
    *,
    held_out_all: bool,
    split: Split,
) -> Source:
    sides: tuple[array[int], array[int]] = array("Q"), array("Q")
    labels: tuple[array[int], array[int]] = array("H"), array("H")
    for hadm, disease, subject in index.stream(
        "SELECT hadm, disease, subject FROM cases ORDER BY place"
    ):
        if disease in wanted:
            patient = str(subject if subject is not None else f"admission {hadm}")
            side = held_out_all or held_out(split, patient)
            sides[side].append(int(str(hadm)))
            labels[side].append(wanted.index(str(disease)))
    if not any(map(len, sides)):
        raise errors.nothing(
            UserError(f"{name} has no admission with a history and something besides it.")
        )
    train, test = (_lazy(index, rows, marks) for rows, marks in zip(sides, labels, strict=True))
    counts = Counter(
        {str(what): int(str(n)) for what, n in index.stream("SELECT what, n FROM counts")}
    )
    diagnoses = tuple(map(str.capitalize, wanted))
    return Source(
        name,
        train,
        test,
        diagnoses=diagnoses,
        notes=_notes(counts),
        restricted=True,
        undivided=True,
    )


def _notes(counts: Mapping[str, int]) -> tuple[str, ...]:
    skipped = {
        "ungrouped": f"{{}} admissions skipped: {_GROUPS} does not list them.",
        "bare": "{} admissions skipped: no history, or nothing besides it.",
        "strange": "{} rows of other admissions skipped.",
        "unnamed": "{} results skipped: lab_test_mapping.csv does not name their test.",
        "unowned": (
            "{} admissions have no report that names their patient: each counts as its own patient."
        ),
    }
    return (
        RESTRICTED,
        f"{counts['leaking']:,} of {counts['cases']:,} admissions name one of the four diseases "
        f"in history, examination or reports: {counts['withheld']:,} places read '{WITHHELD}', "
        "all four names in every case alike.",
        *counted(counts, skipped),
        (
            "Patients, not admissions, are split. Operations, discharge diagnoses and codes are "
            "not read."
        ),
        f"{_RELEASE}: PhysioNet Credentialed Health Data License.",
    )


class _AdmissionReader:
    """Fills the index from the files, in one pass each, with the names of the diseases withheld."""

    def __init__(self, files: Mapping[str, Path], filling: Filling) -> None:
        self.files, self.filling, self.database = files, filling, filling.database
        self.mask = Mask(_CODES)
        self.counts: Counter[str] = Counter()
        self.known: dict[int, int] = {}  # admission → facts so far
        self.leaking: set[int] = set()
        self.silent: set[int] = set()  # without a history
        self.owners: dict[int, int] = {}

    def fill(self) -> None:
        groups = _groups(self.files[_GROUPS])
        self._each("history_of_present_illness.csv", lambda row: self._admit(row, groups))
        self._facts("physical_examination.csv", _examination)
        labels: dict[str, str] = {}
        self._each("lab_test_mapping.csv", lambda row: labels.update(_label(row)))
        self._facts("laboratory_tests.csv", lambda row: self._laboratory(row, labels))
        self._facts("microbiology.csv", lambda row: self._culture(row, labels))
        self._facts("radiology_reports.csv", self._report)
        self._finish()

    def _each(self, name: str, read: Callable[[CsvRow], None]) -> None:
        for _ in self.filling.rows(self.files[name], _COLUMNS[name], read):
            pass

    def _admit(self, row: CsvRow, groups: Mapping[int, str]) -> None:
        hadm = row.number("hadm_id")
        if hadm in self.known:
            raise row.wrong("this admission has a history already.", "hadm_id")
        if hadm not in groups:
            self.counts["ungrouped"] += 1
            return
        self.known[hadm] = 0
        if next(_history(row.text("hpi")), None) is None:
            self.silent.add(hadm)
        values = (hadm, len(self.known), groups[hadm], self._masked(hadm, row.text("hpi")))
        self.database.execute(
            "INSERT INTO cases (hadm, place, disease, history) VALUES (?, ?, ?, ?)", values
        )

    def _masked(self, hadm: int, text: str) -> str:
        before = self.mask.found
        masked = self.mask(text)
        if self.mask.found > before:
            self.leaking.add(hadm)
        return masked

    def _facts(self, name: str, read: Callable[[CsvRow], Iterator[_Found]]) -> None:
        def keep(row: CsvRow) -> None:
            hadm = row.number("hadm_id")
            if hadm not in self.known:
                self.counts["strange"] += 1
                return
            for item, text, kind in list(read(row)):
                self.known[hadm] += 1
                values = (hadm, self.known[hadm], item, self._masked(hadm, text), kind.value)
                self.database.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?)", values)

        self._each(name, keep)

    def _report(self, row: CsvRow) -> Iterator[_Found]:
        if owner := _NOTE.fullmatch(row.text("note_id")):
            self.owners[row.number("hadm_id")] = int(owner[1])
        item = f"{row.text('modality')} {row.text('region')}".strip() or "Imaging"
        yield from (
            (item, f"{item}: {sentence}", Kind.IMAGING) for sentence in sentences(row.text("text"))
        )

    def _laboratory(self, row: CsvRow, labels: Mapping[str, str]) -> Iterator[_Found]:
        value, low, high = (
            row.text(column) for column in ("valuestr", "ref_range_lower", "ref_range_upper")
        )
        if value and (item := self._named(row, "itemid", labels)):
            reference = f" (reference {low or '…'} to {high or '…'})" if low or high else ""
            yield item, f"{item}: {value}{reference}.", Kind.LABORATORY

    def _culture(self, row: CsvRow, labels: Mapping[str, str]) -> Iterator[_Found]:
        value, specimen = row.text("valuestr"), labels.get(_plain(row.text("spec_itemid")), "")
        if value and (test := self._named(row, "test_itemid", labels)):
            item = f"{test}, {specimen}" if specimen else test
            yield item, f"{item}: {value.rstrip('.')}.", Kind.LABORATORY

    def _named(self, row: CsvRow, column: str, labels: Mapping[str, str]) -> str:
        name = labels.get(_plain(row.text(column)), "")
        self.counts["unnamed"] += not name
        return name

    def _finish(self) -> None:
        bare = {hadm for hadm, facts in self.known.items() if not facts} | self.silent
        kept = set(self.known) - bare
        self.database.executemany("DELETE FROM cases WHERE hadm = ?", ((hadm,) for hadm in bare))
        owned = ((owner, hadm) for hadm, owner in self.owners.items())
        self.database.executemany("UPDATE cases SET subject = ? WHERE hadm = ?", owned)
        self.counts.update(
            cases=len(kept),
            bare=len(bare),
            leaking=len(self.leaking - bare),
            withheld=self.mask.found,
            unowned=len(kept - set(self.owners)),
        )
        self.database.executemany("INSERT INTO counts VALUES (?, ?)", self.counts.items())


def _groups(path: Path) -> dict[int, str]:
    """Admission → disease.

    Raises CaseError for a file of another form, or for an admission in two groups.
    """
    groups: dict[int, str] = {}
    for disease, admissions in read_object(path).items():
        if disease not in _CODES:
            raise CaseError(f"the diseases are {', '.join(_CODES)}.", file=path, field=disease[:40])
        if not isinstance(admissions, list) or not all(
            str(hadm).isascii() and str(hadm).isdigit() for hadm in admissions
        ):
            raise CaseError("must be a list of admissions' numbers.", file=path, field=disease)
        for hadm in map(int, admissions):
            if groups.setdefault(hadm, disease) != disease:
                raise CaseError(
                    "lists an admission that another disease lists too.", file=path, field=disease
                )
    return groups


def _label(row: CsvRow) -> dict[str, str]:
    """Number of a test → its name with its fluid; nothing for synonyms, which have no number."""
    if not row.text("itemid"):
        return {}
    fluid = f" ({row.text('fluid').lower()})" if row.text("fluid") else ""
    return {_plain(row.text("itemid")): row.text("label") + fluid}


def _plain(number: str) -> str:
    # written by a library that keeps numbers with gaps as floating-point ones
    return number.removesuffix(".0")


def _examination(row: CsvRow) -> Iterator[_Found]:
    """Sentences by body part, as the heading before them says ("Abd: soft")."""
    item = "Physical examination"
    for sentence in sentences(row.text("pe")):
        if heading := _HEADING.match(sentence):
            item = f"Physical examination, {heading[1].strip()}"
        yield item, sentence, Kind.EXAMINATION


def _lazy(index: TableIndex, admissions: array[int], labels: array[int]) -> Lazy[Case]:
    return Lazy(len(admissions), lambda i: _case(index, admissions[i]), labels)


def _case(index: TableIndex, hadm: int) -> Case:
    """The case of an admission; the first sentence of the history opens the encounter.

    The rest of the record is hidden, except what that sentence states.
    """
    [(disease, history)] = index.select(
        "SELECT disease, history FROM cases WHERE hadm = ?", (hadm,)
    )
    sections = list(_history(str(history)))
    presentation = sections[0][1][:_OPENING]
    facts = [
        Fact(f"h{number}", item, text)
        for number, (item, text) in enumerate(sections)
        if text != presentation
    ]
    query = "SELECT place, item, text, kind FROM facts WHERE hadm = ? ORDER BY place"
    facts += [
        Fact(f"f{p}", str(item), str(text), Kind(str(kind)))
        for p, item, text, kind in index.stream(query, (hadm,))
    ]
    given, hidden = parted(facts, presentation)
    truth = Truth(
        diagnosis=str(disease).capitalize(),
        codes=(_CODES[str(disease)],),
        aliases=(f"Acute {disease}",),
        facts=hidden,
        record="\n".join([presentation, *(fact.text for fact in facts)]),
    )
    return Case(str(hadm), presentation, truth, given=given, category=str(disease))


def _history(text: str) -> Iterator[tuple[str, str]]:
    """(item, sentence): a sentence has its heading, without which "Denies: fever" is a fever.

    A heading holds up to the next one; one that denies, for its own sentence alone. A heading alone
    is no sentence.
    """
    above = ""
    for sentence in sentences(text):
        heading = _HEADING.match(sentence)
        if heading and len(heading[1].split()) <= 5:
            own, rest = heading[1].strip(), sentence[heading.end() :]
            of_all = own.lower() in _OF_ALL
            above = "" if of_all or (_DENIES.match(own) and rest) else own
            if rest:
                yield (_HISTORY, rest) if of_all else (own, sentence)
        else:
            yield (above, f"{above}: {sentence}") if above else (_HISTORY, sentence)
