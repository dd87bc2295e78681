# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes started inside namespaces, always reaped: killed when their `with` ends, and by the
kernel when we die without getting there (prctl(2) PR_SET_PDEATHSIG).

They get a session of their own, so a Ctrl-C at the terminal reaches us alone and we stop them in
order. Start them from the main thread only: the death signal follows the thread that forked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from atfnd.errors import OperatorError
from atfnd.observe.processes.cpu_time import ran_ns

__all__ = ["Child", "child", "cpu_ns", "pin", "program", "until"]

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, deadline_s: float = 10.0) -> T:
    """Poll `condition` every 10 ms until truthy; OperatorError naming `what` at the deadline."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise OperatorError(f"not within {deadline_s:g} s: {what}", exit_code=1)
        time.sleep(0.01)
    return value


def program(name: str, *arguments: object) -> tuple[str, ...]:
    """Command line of one of our workload programs, `bench.traffic.<name>`."""
    return (sys.executable, "-m", f"bench.traffic.{name}", *(str(a) for a in arguments))


def pin(pid: int, cpus: Iterable[int]) -> None:
    """Confine every thread of a process (sched_setaffinity(2)); a thread that ended is skipped."""
    wanted = set(cpus)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), wanted)


def cpu_ns(pid: int) -> int:
    """CPU time of every thread of a process; finer than stat's ticks."""
    return sum((ran_ns([pid]) or {}).values())


def _content(file: IO[bytes]) -> str:
    """All of a file, without moving the offset its writer shares with us."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


class Child:
    """One running process; its standard output is kept in a file and read as it grows."""

    def __init__(self, command: tuple[str, ...], output: IO[bytes], errors: IO[bytes]) -> None:
        self.command = command
        self._output, self._errors = output, errors
        self._process = subprocess.Popen(
            ("setpriv", "--pdeathsig", "KILL", *command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        """What it has printed so far."""
        return _content(self._output)

    def failure(self) -> OperatorError:
        """Its last words as one line."""
        words = _content(self._errors).splitlines() + self.text().splitlines()
        last = next((line for line in reversed(words) if line.strip()), "it said nothing")
        code = self._process.returncode
        return OperatorError(f"{' '.join(self.command)} exited with {code}: {last}", exit_code=1)

    def check(self) -> None:
        """OperatorError if it is no longer running."""
        if self._process.poll() is not None:
            raise self.failure()

    def said(self, word: str, deadline_s: float = 60.0) -> None:
        """Wait until `word` is in its output; OperatorError when it ends or the deadline passes."""

        def seen() -> bool:
            ended = self._process.poll() is not None  # asked first: what it says last counts
            found = word in self.text()
            if ended and not found:
                raise self.failure()
            return found

        until(seen, f"{' '.join(self.command)} says {word!r}", deadline_s)

    def wait(self, deadline_s: float) -> str:
        """Its output once it has ended by itself; OperatorError if it failed or did not end."""
        until(lambda: self._process.poll() is not None, f"{self.command[0]} ends", deadline_s)
        if self._process.returncode:
            raise self.failure()
        return self.text()

    def stop(self, deadline_s: float = 10.0) -> str:
        """SIGTERM, then SIGKILL at the deadline; its output. A second call only returns that."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        return self.text()

    def result(self) -> Any:
        """Stop it and decode the JSON on its last line of output."""
        lines = self.stop().strip().splitlines()
        if not lines:
            raise self.failure()
        return json.loads(lines[-1])


@contextlib.contextmanager
def child(
    *command: str, netns: str | None = None, cpus: Iterable[int] | None = None
) -> Iterator[Child]:
    """Run a command, in namespace `netns` and confined to `cpus`, as long as the `with` lasts."""
    prefix = ("nsenter", f"--net=/run/netns/{netns}") if netns else ()
    confined = ("taskset", "-c", ",".join(map(str, cpus))) if cpus is not None else ()
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        running = Child((*prefix, *confined, *command), output, errors)
        try:
            yield running
        finally:
            running.stop()
