"""Names of weights: what is a path, what is taken from the cache, and how often the hub is asked.

The hub is a server of the test's own; every connection to it is counted.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command_line import environment, workup
from command_line import told as told_by
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from workup.cases import open_source
from workup.core.errors import UserError
from workup.environments.consultation import Consultation
from workup.models import hub
from workup.models.tiny import TinySettings, build

told = partial(told_by, start=workup)  # the hub's library reads HF_ENDPOINT when it is imported

COMMIT = "0123456789" * 4
EVALUATE = (
    "--cases",
    "clinic:xs",
    "evaluation.cases=2",
    "evaluation.anchors=false",
    "--out",
    "run",
)


@dataclass
class Hub:
    """What came to it: the lines of the requests, or one empty line for each silent connection."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def answering(status: int, body: bytes = b"", **headers: str) -> Iterator[Hub]:
    """A hub that gives this answer to everything."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.requestline)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Hub(f"http://127.0.0.1:{server.server_port}", asked)
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hanging_up() -> Iterator[Hub]:
    """A hub that takes a connection and closes it without a word."""
    asked: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            asked.append("")
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Hub(f"http://127.0.0.1:{listener.getsockname()[1]}", asked)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def refusing() -> Hub:
    """A hub at a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return Hub(f"http://127.0.0.1:{taken.getsockname()[1]}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for commands, with an empty cache of the hub and no proxy in between."""
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HF_HUB_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


Uses = Callable[[str], tuple[str, ...]]
USES: dict[str, Uses] = {
    "evaluated": lambda name: ("evaluate", name, *EVALUATE),
    "trained": lambda name: ("train", "craft", "--policy", name, *EVALUATE),
    "judging": lambda name: ("train", "craft", f"roles.judge={name}", *EVALUATE),
    "concluding": lambda name: ("evaluate", "random doctor", f"conclude={name}", *EVALUATE),
}


@pytest.mark.long
@pytest.mark.parametrize("use", USES)
def test_a_hub_that_does_not_answer_is_asked_once_and_told_in_one_line(
    use: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging_up() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        line = told(*USES[use]("Qwen/Qwen9-0.1B"), cwd=home)
    assert len(server.asked) == 1
    assert line.startswith("no weights 'Qwen/Qwen9-0.1B': no such folder, not in the hub's cache, ")
    assert f"and asking {server.url} failed (" in line
    assert not (home / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "said"),
    [
        (
            answering(404, X_Error_Code="RepoNotFound"),
            r"not on http://127.0.0.1:\d+ \(a private one needs",
        ),
        (
            answering(401, X_Error_Code="RepoNotFound"),
            r"not on http://127.0.0.1:\d+ \(a private one needs",
        ),
        (answering(403, X_Error_Code="GatedRepo"), r"accept their terms on the hub"),
        (answering(503), r"asking http.* failed \(.*503"),
        (answering(429), r"asking http.* failed \(.*429"),
    ],
)
def test_what_the_hub_says_is_told(
    server: Iterator[Hub], said: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server as opened:  # type: ignore[attr-defined]
        monkeypatch.setenv("HF_ENDPOINT", opened.url)
        line = told("evaluate", "some/model", *EVALUATE, cwd=home)
    assert re.search(said, line), line
    assert opened.asked == ["HEAD /some/model/resolve/main/config.json HTTP/1.1"]


def test_a_hub_s_model_that_names_a_compiled_attention_is_not_fetched(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = b'{"model_type": "qwen3", "attn_implementation": "some/kernel"}'
    monkeypatch.setattr(hub, "weights", lambda name, forms: name)
    with answering(200, settings, X_Repo_Commit=COMMIT, ETag='"e"') as server:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "kept"))
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        with pytest.raises(UserError, match="code that comes with a model is never run"):
            hub.opened("some/model", lambda place: pytest.fail("it was loaded"))
    of_model = {line.split()[1] for line in server.asked if "/some/model/" in line}
    assert of_model == {"/some/model/resolve/main/config.json"}


@pytest.mark.long
def test_no_hub_at_all_and_no_hub_wanted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", refusing().url)
    assert "Connection refused" in told("evaluate", "some/model", *EVALUATE, cwd=home)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in told("evaluate", "some/model", *EVALUATE, cwd=home)


@pytest.mark.parametrize(
    "name",
    ["./model", "../model", "~/model", "/no/model", "a/b/c", "model.gguf", "runs/mine", "a\\b"],
)
def test_a_path_never_goes_to_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_ask", lambda name: pytest.fail(f"the hub was asked for {name}"))
    with pytest.raises(UserError, match=r"no weights '.*': there is no such folder"):
        hub.weights(name)


@pytest.mark.long
@pytest.mark.parametrize("use", USES)
def test_no_use_of_a_path_reaches_the_hub(
    use: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging_up() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        assert "there is no such folder" in told(*USES[use]("./model"), cwd=home)
    assert server.asked == []


@pytest.fixture
def kept(home: Path) -> Path:
    """`some/model`: the tiny policy of a clinic, in the cache layout of the hub's library."""
    source = open_source("clinic:xs")
    said = Consultation(source.items, source.diagnoses).phrases
    repository = home / "huggingface" / "hub" / "models--some--model"
    for part in build(source, said, TinySettings(width=16, heads=2), 0):
        part.save_pretrained(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


@pytest.mark.long
def test_weights_in_the_cache_need_no_hub(
    home: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging_up() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        done = workup("evaluate", "some/model", *EVALUATE, "max_tokens=8", cwd=home)
        assert done.returncode == 0, done.stderr
        assert server.asked == []
        # A download that was broken off: the hub is asked for the rest, once.
        (kept / "model.safetensors").unlink()
        shutil.rmtree(home / "run")
        line = told("evaluate", "some/model", *EVALUATE, cwd=home)
        assert f"asking {server.url} failed (" in line
        assert len(server.asked) == 1


@pytest.mark.long
def test_a_model_from_the_cache_is_known_by_its_commit(home: Path, kept: Path) -> None:
    code = "from workup.models.chat import LocalChat; print(LocalChat.load('some/model').name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"some/model@{COMMIT}"]


def test_near_names_are_offered(tmp_path: Path) -> None:
    (tmp_path / "craft-clinic-s").mkdir()
    with pytest.raises(
        UserError, match=r"there is no such folder\. Did you mean '.*/craft-clinic-s'\?"
    ):
        hub.weights(str(tmp_path / "craft-clinc-s"))


@pytest.mark.parametrize("name", ["", "a--b", "a..b", "gpt2-", "org/na--me", "x" * 97, "modèle"])
def test_a_name_that_no_repository_can_have_is_told_in_one_line(name: str) -> None:
    with pytest.raises(UserError, match=f"no weights '{name}' "):
        hub.weights(name)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "./" + "a" * 300])
def test_a_path_that_cannot_be_is_no_folder(name: str) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        hub.weights(name)


def test_hub_ids_are_no_paths() -> None:
    for name in (
        "gpt2",
        "Qwen/Qwen2.5-1.5B-Instruct",
        "openai/whisper-tiny.en",
        "a/b.c",
        "x_y/z-1",
    ):
        assert not hub.is_path(name)
        assert hub.ID.fullmatch(name)


@given(st.from_regex(hub.ID, fullmatch=True))
def test_a_hub_id_becomes_a_path_by_what_is_put_before_it(name: str) -> None:
    assert all(
        hub.is_path(f"{before}{name}") for before in ("./", "../", "~/", "/", "runs/", "a/b/")
    )


@pytest.mark.long
def test_checking_names_loads_no_torch(home: Path) -> None:
    code = (
        "import sys; from workup.cli import app as cli; sys.argv = ['workup', 'evaluate', "
        "'./none', '--cases', 'clinic:xs']\ntry: cli.main()\nfinally: print(sorted({'torch', "
        "'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (2, "[]")
