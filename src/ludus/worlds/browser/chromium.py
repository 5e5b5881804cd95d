"""A headless Chromium and one page in it, over the DevTools pipe.

Promise: if it dies or hangs, every call fails, named. The browser ends when the pipe is closed, so
also when this process is killed, and no port is open to others. Every request of the page goes to
`answer`, which serves a file, lets it through, or refuses it: nothing else is ever fetched.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.errors import EnvironmentFailed
from ludus.sandboxes.scratch import Scratch

NAMES = ("chromium", "chromium-browser", "google-chrome")
CALL_S = 20.0
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio", "--window-size=800,800",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost", "--force-renderer-accessibility",
)  # fmt: skip
_LAUNCH = """
import os, sys
theirs_in, theirs_out = map(int, sys.argv[1:3])
os.dup2(theirs_in, 103), os.dup2(theirs_out, 104)
os.dup2(103, 3), os.dup2(104, 4), os.close(103), os.close(104)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads from descriptor 3 and writes to 4. Setting them after a fork here is not safe."""
Answer = Callable[[str], Path | bool]
"""Maps a URL to the file to serve, True (let it through to the network) or False (refuse it)."""


def binary() -> str:
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise EnvironmentFailed("browser needs Chromium, which is not installed: apt-get install chromium")


class Chromium:
    def __init__(self) -> None:
        self._profile = Scratch()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={self._profile.path}"]
        command = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), binary(), *flags, "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), start_new_session=True, **quiet)  # type: ignore[call-overload]
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._rest = 0, b""
        self._answer: Answer = lambda _: False
        self._answers: dict[int, dict[str, Any]] = {}
        self._page = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._page = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "DOM", "Accessibility", "Runtime", "Fetch"):
            self.call(f"{domain}.enable")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def visit(self, url: str, *, answer: Answer) -> None:
        self._answer = answer
        told = self.call("Page.navigate", url=url)
        if told.get("errorText"):
            raise EnvironmentFailed(f"the browser cannot open {url}: {told['errorText']}")
        until = time.monotonic() + CALL_S
        while self.evaluate("document.readyState") != "complete":
            if time.monotonic() > until:
                raise EnvironmentFailed(f"the browser did not load {url} within {CALL_S:.0f} s")

    def evaluate(self, expression: str) -> Any:
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in told:
            raise EnvironmentFailed(f"the page failed at {expression[:60]}: {told['exceptionDetails'].get('text')}")
        return told["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Raises LookupError if the browser refuses, EnvironmentFailed if it is gone."""
        number = self._send(method, parameters)
        until = time.monotonic() + CALL_S
        while number not in self._answers:
            self._receive(until, method=method)
        told = self._answers.pop(number)
        if "error" in told:
            raise LookupError(str(told["error"].get("message")))
        return dict(told["result"])

    def end(self) -> None:
        if self.alive:
            self.process.kill()
        self.process.wait()
        for end in (self._in, self._out):
            os.close(end)
        self._in = self._out = -1
        self._profile.close()

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._page:
            message["sessionId"] = self._page
        data = json.dumps(message).encode() + b"\0"
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            raise EnvironmentFailed(f"the browser died before {method}") from None
        return self._number

    def _receive(self, until: float, *, method: str) -> None:
        ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise EnvironmentFailed(f"the browser did not answer {method} within {CALL_S:.0f} s")
        data = os.read(self._in, 1 << 20)
        if not data:
            raise EnvironmentFailed(f"the browser died during {method}")
        *messages, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            elif message["method"] == "Fetch.requestPaused":
                self._give(message["params"])
            elif message["method"] == "Page.javascriptDialogOpening":
                self._send("Page.handleJavaScriptDialog", {"accept": True})

    def _give(self, paused: dict[str, Any]) -> None:
        request, given = {"requestId": paused["requestId"]}, self._answer(paused["request"]["url"])
        if given is True:
            self._send("Fetch.continueRequest", request)
        elif isinstance(given, Path) and given.is_file():
            kind = mimetypes.guess_type(given.name)[0] or "application/octet-stream"
            headers = [{"name": "Content-Type", "value": kind}]
            body = base64.b64encode(given.read_bytes()).decode()
            served = {"responseCode": 200, "responseHeaders": headers, "body": body}
            self._send("Fetch.fulfillRequest", request | served)
        else:
            self._send("Fetch.failRequest", request | {"errorReason": "BlockedByClient"})
