"""Builds the library of rare diseases: an index like any other, with its sources' attribution."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workup.core.disk import new_parents, whole_folder
from workup.core.errors import UserError
from workup.retrieval import JOINED, index
from workup.retrieval.hpo.documents import ORPHANET, as_line, documents, naming, orphanet_diseases
from workup.retrieval.hpo.release import INSTALLED, HpoRelease, mark


def build(
    sources: Sequence[str],
    out: Path,
    settings: index.IndexSettings,
    progress: index.Progress = lambda stage, done, total: None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Writes the index of a release of the HPO, and of Orphanet's files of JSON lines.

    `sources` names one release (a folder, or INSTALLED) and any number of `.jsonl` files. The
    folder appears whole, or not at all. Returns the manifest, and what the reader should know.
    Raises UserError and CaseError.
    """
    if out.exists():
        raise UserError(f"{out} exists; choose another --out, or delete it")
    files = [Path(source).expanduser() for source in sources if source.endswith(".jsonl")]
    places = [source for source in sources if not source.endswith(".jsonl")]
    if len(places) != 1:
        raise UserError(
            f"--kind hpo needs one release of the HPO, and {len(places)} are named: a folder with "
            f"its files, or '{INSTALLED}'"
        )
    if missing := [file for file in files if not file.is_file()]:
        raise UserError(f"no file {missing[0]}")
    release = HpoRelease.open(places[0])
    orphanet = [disease for file in files for disease in orphanet_diseases(file)]
    told = (release.attribution, *([ORPHANET] if orphanet else []))
    place = INSTALLED if places[0] == INSTALLED else str(Path(places[0]).expanduser().resolve())
    place = JOINED.join((place, *(str(file.resolve()) for file in files)))
    kept = {"attribution": told, "release": (place, mark(place))}
    settings = settings.model_copy(update=kept)
    try:
        with (
            TemporaryDirectory(prefix="workup-hpo-") as drafts,
            new_parents(out),
            whole_folder(out) as draft,
        ):
            corpus = Path(drafts) / "rare_diseases.jsonl"
            with corpus.open("w", encoding="utf-8") as file:
                for document in documents(release, orphanet):
                    file.write(json.dumps(as_line(document), ensure_ascii=False) + "\n")
            made = index.build([corpus], draft, settings, progress)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    return made, (*release.notes, *naming(release, orphanet).notes)
