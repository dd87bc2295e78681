# SPDX-License-Identifier: GPL-2.0-or-later
"""What the documents tell a reader to type, typed: on a lab, with a daemon, page by page."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from atfnd.nic.lab.nic import LabNic
from tests.applications import Application, Applications
from tests.daemons import ATFND, EVERYTHING, STOP_S, Daemon
from tests.labs import Lab, unique_name
from tests.serve.asking import ATFNCTL, environment, forked
from tests.tree.documented import by_page, runs
from tests.wait import until
from tests.zygote import Forked

TYPED = {page: typed for page, lines in by_page().items() if (typed := [*filter(runs, lines)])}
PROGRAMS = {"atfnd": ATFND, "atfnctl": ATFNCTL}


class Reader:
    """Types commands, and sees to it that what they need is there: a lab that is up, a daemon that
    watches it, a flow. Their names are this test's own."""

    def __init__(self, folder: Path) -> None:
        self.name, self.folder = unique_name(), folder
        self.daemon = Daemon(folder)
        self.lab: Lab | None = None
        self.apps: Applications | None = None
        self.flow: Application | None = None
        self.beside: list[subprocess.Popen[bytes]] = []
        self.seen: set[str] = set()
        (folder / "other.yaml").write_text(EVERYTHING)

    def types(self, command: str) -> None:
        """AssertionError: it does not end as the documents say. What only asks or orders a daemon
        is typed once."""
        asks = command.startswith(("atfnctl ", "curl ", "atfnd doctor"))
        if asks:
            self._ready()
        here = self._here(command)
        if asks and here in self.seen:
            return
        self.seen.add(here)
        match here.split():
            case ["atfnd", "run", *words, "&"]:
                self._end_daemon()
                self.daemon.start(*words)
            case ["kill", "%1"]:
                assert self.daemon.end() == 0, self.daemon.said()
            case ["wait", "%1"]:
                assert not self._daemon_runs()
            case ["atfnd", "restore", *_]:
                self._end_daemon()
                self._run(here)
            case ["atfnd", "lab", "down", *_]:
                self.leave()
                self._run(here)
            case ["atfnctl", "measure", *_]:
                self._measure(here)
            case [*_, "&"]:
                words = ["bash", "-c", f"exec {here.removesuffix('&')}"]
                self.beside.append(subprocess.Popen(words))
            case _:
                self._run(here)
        if " iperf3 -s " in here:
            sockets = f"ip netns exec {self.name}-host ss -Hltn sport = 5201".split()
            until(lambda: subprocess.check_output(sockets), "iperf3 listens")

    def leave(self) -> None:
        """Nothing uses the lab any more."""
        self._end_daemon()
        self.daemon.restore()
        for process in self.beside:
            with process:
                process.kill()
        self.beside.clear()
        if self.apps is not None:
            self.apps.close()
        if self.lab is not None:
            self.lab.close()
        self.lab = self.apps = self.flow = None

    def _ready(self) -> None:
        if self.lab is None:
            forked([ATFND, "lab", "up", "--name", self.name])
            self.lab = Lab(self.name, LabNic(self.name))
            self.apps = Applications(self.lab)
        if not self._daemon_runs():
            self.daemon.start("--nic", self.lab.nic.name)
        if self.flow is None:
            assert self.apps is not None
            self.flow = self.apps.tcp()
        key = self.flow.key
        until(lambda: self.daemon.flow(key), f"{key} is in the table")

    def _daemon_runs(self) -> bool:
        return self.daemon.process is not None and self.daemon.process.poll() is None

    def _end_daemon(self) -> None:
        if self._daemon_runs():
            assert self.daemon.end() == 0, self.daemon.said()

    def _here(self, command: str) -> str:
        """With names of this test, and done within seconds."""
        key = None if self.flow is None else self.flow.key
        local, remote = (0, 0) if key is None else (key.local_port, key.remote_port)
        for pattern, instead in (
            (r"lab:lab|\$NIC\b|\beth[02]\b", f"lab:{self.name}"),
            (r"\blab-(?=host|peer)", f"{self.name}-"),
            (r"^atfnd lab \w+", rf"\g<0> --name {self.name}"),
            (r" --run-dir /run/atfnd-lab", ""),
            (r"^atfnd restore", rf"\g<0> --run-dir {self.daemon.run_dir}"),
            (r"^atfnd check", rf"\g<0> --config {self.daemon.config}"),
            (r"/run/atfnd(-lab)?/atfnd\.sock", f"{self.daemon.socket}"),
            (r"(/etc/atfnd/)?\b(other\.yaml|seen\.jsonl)", rf"{self.folder}/\2"),
            (r"(?<= ):(40112|443)\b", f":{remote}"),
            (r":5201 <- 10\.8\.0\.1:PORT", f":{local} <- 10.8.0.1:{remote}"),
            (r"^atfnctl gain.*", r"\g<0> --for 1s"),
            (r"^atfnctl pairs.*", r"\g<0> --for 1s"),
            (r"^atfnctl record.*", r"\g<0> --seconds 1"),
            (r"iperf3 -c", "iperf3 -t 1 -c"),
            (r"^curl", "curl --fail --silent --show-error"),
        ):
            command = re.sub(pattern, instead, command)
        return command

    def _run(self, command: str) -> None:
        """A command of ours is forked, every other one, and the rest of a pipe, is the shell's."""
        if command.startswith("atfnctl record "):
            (self.folder / "seen.jsonl").unlink(missing_ok=True)
        program = PROGRAMS.get(command.split()[0])
        if program is None:
            self._shell(command, "")
            return
        ours, _, rest = command.partition(" | ")
        done = forked([program, *shlex.split(ours)[1:]], environment(self.daemon))
        finds = "doctor" in ours and re.search(r"^ +(warning|blocker) ", done.stdout, re.MULTILINE)
        assert done.returncode == (1 if finds else 0), done.stdout + done.stderr
        if rest:
            self._shell(rest, done.stdout)

    def _shell(self, command: str, asked: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], input=asked, capture_output=True, text=True, timeout=60
        )
        found = done.returncode == 0 or (command.startswith("grep ") and done.returncode == 1)
        assert found, done.stdout + done.stderr

    def _measure(self, command: str) -> None:
        """Ctrl-C ends it once it has begun."""
        assert self.lab is not None
        self.daemon.order("arm", self.lab.nic.name)
        before = len(self.daemon.events("measure"))
        with Forked(
            [ATFNCTL, *shlex.split(command)[1:]], env=environment(self.daemon),
            stdout=PIPE, stderr=PIPE, text=True,
        ) as process:  # fmt: skip
            until(
                lambda: len(self.daemon.events("measure")) > before or process.poll() is not None,
                "it has begun",
            )
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=STOP_S)
        assert process.returncode == 1, stdout + stderr
        assert "ended early, and the interface is as it was" in stderr
        until(lambda: len(self.daemon.events("measure")) > before + 1, "it has ended")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("reader"))
    try:
        yield made
    finally:
        made.daemon.reap()
        made.leave()
        forked([ATFND, "lab", "down", "--name", made.name])


@pytest.mark.parametrize("page", TYPED)
def test_every_command_of_a_page_does_what_it_says(reader: Reader, page: str) -> None:
    failed = []
    for command in TYPED[page]:
        try:
            reader.types(command)
        except AssertionError as why:
            failed.append(f"{command}\n{why}")
    assert failed == []


def test_they_are_many() -> None:
    """What cuts the pages up finds them."""
    assert sum(map(len, TYPED.values())) > 100
    assert {"README.md", "docs/tutorial.md", "atfnctl.1"} <= TYPED.keys()
