# SPDX-License-Identifier: GPL-2.0-or-later
"""A headless Chromium, told what to do by the DevTools protocol over a pipe
(https://chromedevtools.github.io/devtools-protocol/). It resolves no name and tells what it loads.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["Tab", "chromium"]

PROGRAM = "chromium-headless-shell"
ANSWER_S, END_S = 60.0, 30.0
OPTIONS = (
    "--remote-debugging-pipe",
    "--no-sandbox",  # it is root's, as the tests are
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)

Message = dict[str, Any]


class Tab:
    """One page in the browser. `seen` is every event of it, `asked` every address it asked for."""

    def __init__(self, commands: int, says: int) -> None:
        self._commands, self._says = commands, says
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self.seen: list[Message] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> Message:
        """One command and its answer. AssertionError: the browser refused it."""
        self._count += 1
        message: Message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_S
        while True:
            for each in self._read(max(end - time.monotonic(), 0)):
                if each.get("id") == self._count:
                    assert "error" not in each, (method, each["error"])
                    result: Message = each["result"]
                    return result
                self.seen.append(each)
            assert time.monotonic() < end, f"no answer to {method}"

    def _read(self, wait_s: float) -> list[Message]:
        if not select.select([self._says], [], [], wait_s)[0]:
            return []
        data = os.read(self._says, 1 << 20)
        assert data, "the browser has ended"
        *whole, self._rest = (self._rest + data).split(b"\0")
        return [json.loads(each) for each in whole]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript comes to in the page. AssertionError: it raised."""
        made = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=False,
        )  # fmt: skip
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def events(self, method: str) -> list[Message]:
        """What was reported so far, of this kind."""
        self.value("0")
        return [each["params"] for each in self.seen if each.get("method") == method]

    @property
    def asked(self) -> list[str]:
        return [each["request"]["url"] for each in self.events("Network.requestWillBeSent")]

    def faults(self) -> list[str]:
        """What the page raised, and what the browser complained of."""
        raised = [str(each["exceptionDetails"]) for each in self.events("Runtime.exceptionThrown")]
        said = [each["entry"] for each in self.events("Log.entryAdded")]
        logged = self.events("Runtime.consoleAPICalled")
        return [
            *raised,
            *(str(each) for each in said if each["level"] in ("error", "warning")),
            *(str(each["args"]) for each in logged if each["type"] in ("error", "warning")),
        ]

    def scheme(self, name: str) -> None:
        """`light` or `dark`, as the system's user wants it."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": name}],
        )

    def width(self, pixels: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=pixels, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def picture(self, file: Path) -> None:
        """Write the whole page to it, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "width": self.value("innerWidth"), "scale": 1}  # the scrollbar is left out
        made = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(made["data"]))

    def key(self, name: str) -> None:
        """Press a key: `Tab`, `Enter`."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name,
                windowsVirtualKeyCode=codes[name], **more,
            )  # fmt: skip


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """Its profile is in `folder`."""
    commands, tells = _pipe()
    hears, says = _pipe()
    begin = 'exec "${@:3}" 3<&"$1" 4>&"$2"'
    words = [PROGRAM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", begin, "bash", str(commands), str(says), *words],
        pass_fds=(commands, says), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(commands)
    os.close(says)
    try:
        yield Tab(tells, hears)
    finally:
        os.close(tells)  # it ends with the pipe
        os.close(hears)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _pipe() -> tuple[int, int]:
    """Its ends, to read from and to write to, both above the numbers that they are given there."""
    first = os.pipe()
    ends = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in first]
    for each in first:
        os.close(each)
    return ends[0], ends[1]
