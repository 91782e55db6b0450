"""Our ranker as a runner of PhEval, where PhEval is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hpo_world import release

from workup.core.errors import UserError


def written(path: Path) -> None:
    terms = [("HP:0000011", "Red spot"), ("HP:0000021", "Focal seizure")]
    disease = {"term": {"id": "OMIM:1", "label": "Spotted fever 1"}}
    features = [{"type": {"id": id, "label": label}} for id, label in terms]
    packet = {"id": path.stem, "phenotypicFeatures": features, "diseases": [disease]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(packet))


@pytest.mark.parametrize("files", [("a.json", "b.json"), ("A/x.json", "B/x.json")])
def test_every_patient_has_a_result_or_none_has(tmp_path: Path, files: tuple[str, str]) -> None:
    pytest.importorskip("pheval")
    from pheval.implementations import get_implementation_resolver

    from workup.interop.adapters.pheval import WorkupPhEvalRunner

    for file in files:
        written(tmp_path / "corpus" / file)
    options = {"release": str(release(tmp_path / "hpo"))}
    how = {"tool": "workup", "tool_version": "1", "variant_analysis": False}
    how |= {"gene_analysis": False, "disease_analysis": True}
    (tmp_path / "in").mkdir()
    config = {**how, "tool_specific_configuration_options": options}
    (tmp_path / "in" / "config.yaml").write_text(json.dumps(config))
    folders = (tmp_path / name for name in ("in", "corpus", "tmp", "out"))
    runner = WorkupPhEvalRunner(*folders, config_file=None, version="1")
    assert type(runner) is get_implementation_resolver().lookup("workup")
    runner.raw_results_dir.mkdir(parents=True)
    if files[0] == "a.json":
        runner.run()
        results = {each.name: each.read_text() for each in runner.raw_results_dir.iterdir()}
        assert {*results} == {"a.csv", "b.csv"}
        assert results["a.csv"].splitlines()[1].startswith("OMIM:1,")
    else:
        with pytest.raises(UserError, match=r"corpus: 2 files are called x\.json"):
            runner.run()
        assert not [*runner.raw_results_dir.iterdir()]
