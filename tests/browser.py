"""Debian's chromium, driven through the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import until

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
KEYS = {"Enter": "\r", "Escape": "", "Tab": ""}  # key → the text that it types


class Tab:
    """One page, in a profile of its own: tabs share no cookies."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        return self.browser.call(method, self.session, **parameters)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, address: str) -> None:
        """Returns when the page has loaded, scripts included."""
        self.js("window.before = true")
        self.call("Page.navigate", url=address)
        self.loaded()

    def loaded(self) -> None:
        """Returns when another page has taken the place of the one that `window.before` marks."""
        until(lambda: bool(self.js("!window.before && document.readyState === 'complete'")))

    def js(self, expression: str) -> Any:
        """The value of an expression in the page; None while there is no page to ask."""
        try:
            found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        except LookupError:
            return None
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        for key in keys:
            text = KEYS.get(key, key)
            down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
            code = {"Enter": 13, "Escape": 27, "Tab": 9}.get(key, ord(key[0].upper()))
            about = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", **down, **about)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def press_and_load(self, key: str) -> None:
        """Presses a key that leads to another page."""
        self.js("window.before = true")
        self.press(key)
        self.loaded()

    def text(self) -> str:
        return str(self.js("document.body.innerText"))

    def picture(self, file: Path) -> None:
        """The whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self) -> list[str]:
        """What the browser has logged of this page: errors, and what its policy has blocked."""
        own = [each for each in self.browser.events if each.get("sessionId") == self.session]
        return [
            json.dumps(each["params"])
            for each in own
            if each["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]


class Browser:
    """A chromium process; `events` are those that it has told since it was started."""

    def __init__(self, writing: int, reading: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._writing, self._reading = writing, os.fdopen(reading, "rb")
        self._number, self._rest = 0, b""

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Raises LookupError where the browser refuses, as while a page is being left."""
        self._number += 1
        sent: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            sent["sessionId"] = session
        os.write(self._writing, json.dumps(sent).encode() + b"\0")
        while (told := self._next()).get("id") != self._number:
            self.events.append(told)
        if "error" in told:
            raise LookupError(told["error"])
        return told["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._reading.fileno(), 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def running() -> Iterator[Browser]:
    """A browser for as long as the block lasts; skips the test where none is installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The pipe is at 3 and 4, wherever ours happen to be.
        words = " ".join((program, *FLAGS, f"--user-data-dir={profile}", "about:blank"))
        script = f"exec 3<&{theirs_in} 4>&{theirs_out}; exec {words}"
        process = subprocess.Popen(
            ["bash", "-c", script],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        browser = Browser(ours_out, ours_in)
        try:
            yield browser
        finally:
            process.kill()
            process.wait()
