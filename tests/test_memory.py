"""Too little memory, for real: the process may not have more address space than it has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment
from test_local_policy import letters, qwen

from workup.cli.mistakes import out_of_memory

resource = pytest.importorskip("resource")  # a system without it has no such limit
SCRIPT = """
import resource, sys
import workup.cli.mistakes, workup.loops.evaluation.loop, workup.models.local
import workup.report.plotting
from workup.models.weights import load
load({folder!r})  # libraries that are imported with too little memory fail in ways of their own
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + {room},) * 2)
from workup.cli.app import main
sys.argv = ["workup", *sys.argv[1:]]
main()
"""


@pytest.mark.long
def test_out_of_memory_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("the size of the process is read from /proc")
    tokenizer = letters()
    folder = tmp_path / "tiny"
    qwen(len(tokenizer), context=4_096, head_dim=128).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    words = [
        *("evaluate", str(folder), "--cases", "clinic:xs", "--out", "run", "max_tokens=3"),
        *("evaluation.cases=16", "concurrency=16", "evaluation.anchors=false"),
        "environment.max_turns=2",
    ]

    def call(words: list[str], room: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT.format(room=room, folder=str(folder)), *words],
            cwd=tmp_path,
            env=environment(tmp_path / "cache"),
            capture_output=True,
            text=True,
            check=False,
        )

    stopped = call(words, room=50_000_000)
    assert stopped.returncode == 1, stopped.stderr
    (line,) = [each for each in stopped.stderr.splitlines() if "error:" in each]
    assert line.startswith("error: out of memory (")
    assert "`workup resume FOLDER concurrency=N`" in line
    assert "Traceback" not in stopped.stderr
    assert not (tmp_path / "run" / "summary.json").exists()
    done = call(["resume", "run", "concurrency=1"], room=3_000_000_000)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
    versions = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert versions["weights"]["policy"].startswith("tiny@")


@pytest.mark.parametrize(("left", "told"), [(10 << 20, True), (30 << 30, False)])
def test_a_full_gpu_makes_other_libraries_errors_one_of_memory(
    left: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with six runs on one GPU: cuDNN does not say that memory is what it lacks."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (left, 80 << 30))
    said = out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"))
    assert (said is not None) == told
    assert out_of_memory(ValueError("something else")) is None
