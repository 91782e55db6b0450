"""What Tab offers: asked for through the script that the command itself gives to bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SCRIPT, environment
from waiting import HANG

from workup import cases, environments, methods
from workup.cli import complete
from workup.doctors import strategies

BASH = shutil.which("bash")


def offers(*words: str, cwd: Path) -> list[str]:
    """What bash offers for the last word of `workup WORDS`."""
    script = """
    export PATH="$1:$PATH"; shift
    source <(_WORKUP_COMPLETE=source_bash workup)
    COMP_WORDS=(workup "$@"); COMP_CWORD=$#
    _workup_completion workup
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = [BASH or "", "--norc", "-c", script, "bash", str(SCRIPT.parent), *words]
    env = environment(cwd)
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    )
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_commands_methods_sources_and_settings(tmp_path: Path) -> None:
    assert offers("ev", cwd=tmp_path) == ["evaluate"]
    assert offers("train", "autorefine-h", cwd=tmp_path) == [
        "autorefine-harddoc",
        "autorefine-hardsearch",
    ]
    assert offers("train", "craft", "--cas", cwd=tmp_path) == ["--cases"]
    assert offers("train", "craft", "--cases", "ddx", cwd=tmp_path) == ["ddxplus:"]
    assert offers("train", "craft", "save_", cwd=tmp_path) == [
        "save_every=50",
        "save_total_limit=1",
    ]
    assert offers("settings", "mcts", cwd=tmp_path) == ["mcts-bt", "mcts-mv"]
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert offers("evaluate", "ru", cwd=tmp_path) == ["runs/"]
    assert offers("evaluate", "", cwd=tmp_path) == ["runs/mine/"]


@pytest.mark.long
def test_completion_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from workup.cli import app as cli; sys.argv = ['workup']\ntry: cli.main()\n"
        "finally: print(sorted({'torch', 'transformers', 'trl', 'scipy'} & sys.modules.keys()), "
        "file=sys.stderr)"
    )
    for typed, offered in (
        ("train cr", "craft"),
        ("train craft st", "steps=500"),
        ("cases clin", "clinic:"),
    ):
        more = {
            "_WORKUP_COMPLETE": "complete_bash",
            "COMP_WORDS": f"workup {typed}",
            "COMP_CWORD": str(len(typed.split())),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(tmp_path, **more),
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        assert (done.stderr.strip(), offered in done.stdout.split()) == ("[]", True), typed


def test_everything_is_offered_for_nothing_typed() -> None:
    assert [name for name, _ in complete.methods("")] == methods.names()
    offered = [*methods.names(), *strategies.names(), *environments.names()]
    assert [name for name, _ in complete.choices("")] == offered
    assert [name for name, _ in complete.sources("")] == [
        f"{each.name}:" for each in cases.schemes()
    ]
    offered = [typed for typed, _ in complete.settings("")]
    assert {"steps=500", "sft.steps=200", "budget=null"} <= {*offered}
    assert not [typed for typed in offered if typed.endswith(("=…", "=", "]", "}"))]


def test_paths_are_completed_behind_a_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.jsonl").touch()
    (tmp_path / ".hidden").touch()
    assert [typed for typed, _ in complete.sources("jsonl:")] == ["jsonl:data/"]
    assert [typed for typed, _ in complete.sources("jsonl:data/o")] == ["jsonl:data/one.jsonl"]
    assert [typed for typed, _ in complete.sources("jsonl:none/o")] == []
