"""BM25 on tantivy: an inverted index on disk, opened by memory map, or in memory.

score(q, d) = Σ_t idf(t) · tf (k1 + 1) / (tf + k1 (1 − b + b |d| / avg|d|)), idf(t) = ln(1 + (N −
n_t + ½) / (n_t + ½)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workup.core.case import Passage
from workup.core.errors import UserError

if TYPE_CHECKING:
    from tantivy import Index, Occur, Query, TextAnalyzer

K1, B = 1.2, 0.75
"""Constants compiled into tantivy (its issue 2924).

Its index stores the best score of each block of a posting list, computed with these values."""

MEMORY = 64_000_000
"""Bytes that the writer collects before it writes a segment."""

BATCH = 50_000
"""Passages between two commits; an interrupted build continues from a commit."""

LANGUAGES = (
    *("english", "none", "danish", "dutch", "finnish", "french", "german", "hungarian"),
    *("italian", "norwegian", "portuguese", "russian", "spanish", "swedish"),
)

Ranking = list[tuple[int, float]]
"""Rows of the store with their scores, best first."""


def analyzer(language: str) -> TextAnalyzer:
    """Words in lower case, without accents, and without `language`'s stop words and endings.

    "none" keeps stop words and endings. Each Chinese character is a word of its own, in any
    language. Stop words are left out as their language writes them and without accents too.
    """
    import tantivy

    builder = tantivy.TextAnalyzerBuilder(
        tantivy.Tokenizer.regex(r"\p{Han}|[\p{L}\p{N}--\p{Han}]+")
    )
    kept = tantivy.Filter
    builder = builder.filter(kept.remove_long(100)).filter(kept.lowercase())
    if language == "none":
        return builder.filter(kept.ascii_fold()).build()
    builder = builder.filter(kept.stopword(language)).filter(kept.ascii_fold())
    return builder.filter(kept.stopword(language)).filter(kept.stemmer(language)).build()


def indexed(passage: Passage) -> str:
    """What of a passage is searched."""
    return f"{passage.title}\n{passage.text}"


def build(
    folder: Path | None,
    passages: Callable[[int], Iterable[Passage]],
    language: str,
    progress: Callable[[int], None] = lambda done: None,
) -> Index:
    """Indexes the passages of `passages(start)`, from the first row that `folder` does not hold.

    With None as folder the index is in memory. `progress` is called with the number committed.
    """
    from tantivy import Document

    index = _create(folder, language)
    done = start = index.searcher().num_docs
    # One thread: rows reach the index in their order, so the number of committed ones says where to
    # go on.
    writer = index.writer(MEMORY, 1)
    for done, passage in enumerate(passages(start), start + 1):
        entry = Document()
        entry.add_unsigned("row", done - 1)
        entry.add_text("body", indexed(passage))
        writer.add_document(entry)
        if done % BATCH == 0:
            writer.commit()
            progress(done)
    writer.commit()
    progress(done)
    writer.wait_merging_threads()
    index.reload()
    return index


def _create(folder: Path | None, language: str) -> Index:
    import tantivy

    schema = tantivy.SchemaBuilder()
    schema.add_unsigned_field("row", fast=True)
    schema.add_text_field("body", tokenizer_name="words", index_option="freq")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with _damage(folder):
        index = tantivy.Index(schema.build(), None if folder is None else str(folder))
    index.register_tokenizer("words", analyzer(language))
    return index


class Bm25:
    """Finds rows by words."""

    def __init__(self, index: Index, language: str, folder: Path | None = None) -> None:
        import tantivy

        self._tantivy, self._schema, self._folder = tantivy, index.schema, folder
        self._searcher = index.searcher()
        self._analyzer = analyzer(language)

    @classmethod
    def open(cls, folder: Path, language: str) -> Bm25:
        """Opens what `build` wrote. Raises UserError for what is damaged."""
        from tantivy import Index

        with _damage(folder):
            index = Index.open(str(folder))
            index.register_tokenizer("words", analyzer(language))
            return cls(index, language, folder)

    def find(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """At most `k` rows for each query, none for one of stop words alone.

        Equal scores: the earlier row first.
        """
        with _damage(self._folder):
            return [self._find(query, k) for query in queries]

    def _find(self, query: str, k: int) -> Ranking:
        terms = Counter(self._analyzer.analyze(query))
        if not terms:
            return []
        should, made = self._tantivy.Occur.Should, self._tantivy.Query
        wanted: list[tuple[Occur, Query]] = []
        for term, times in terms.items():
            one = made.term_query(self._schema, "body", term, "freq")
            # A word that the query says several times counts as often.
            wanted.append((should, one if times == 1 else made.boost_query(one, times)))
        hits = self._best(made.boolean_query(wanted), k)
        rows = self._searcher.fast_field_values("row", [address for _, address in hits])
        return sorted(
            ((int(row or 0), score) for row, (score, _) in zip(rows, hits, strict=True)),
            key=lambda hit: (-hit[1], hit[0]),
        )[:k]

    def _best(self, query: Query, k: int) -> list[Any]:
        """Scores and addresses of the best `k`, and of all that score as the last of them.

        Of equal scores tantivy gives those of its earlier segments, which need not be the earlier
        rows. So more are asked for until one scores less.
        """
        most = k + 1
        while True:
            hits = self._searcher.search(query, most, count=False).hits
            if len(hits) < most or hits[-1][0] < hits[k - 1][0]:
                return list(hits)
            most *= 2


@contextmanager
def _damage(folder: Path | None) -> Iterator[None]:
    """tantivy's message about a damaged file as one line with a remedy.

    Its panics are no Exception; they are caught too.
    """
    try:
        yield
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"
        if folder is None or not (panic or isinstance(error, ValueError | OSError)):
            raise
        raise UserError(
            f"{folder}: cannot be read as an index; `workup index check` tells which file is "
            "damaged"
        ) from error
