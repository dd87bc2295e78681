# SPDX-License-Identifier: GPL-2.0-or-later
"""A program that is forked is as one that is executed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.daemons import ATFND
from tests.kernel.netns import Net
from tests.serve.asking import ATFNCTL
from tests.wait import until
from tests.zygote import Forked

__all__: list[str] = []


def ok(talker: Forked) -> bool:
    assert talker.stdout is not None
    return bool(talker.stdout.readline() == b"ok\n")


TALKER = [sys.executable, "-m", "tests.talker", "echo", "udp", "127.0.0.1", "0"]


@pytest.mark.parametrize(
    "argv",
    [
        [ATFND, "--help"],
        [ATFND, "no-such-verb"],
        [ATFND, "check", "/no/such/file"],
        [ATFND, "schema"],
        [ATFND, "run", "--run-dir", "here", "--config", "/no/such/file"],
        [ATFNCTL, "status"],
        [sys.executable, "-m", "tests.talker", "echo"],
    ],
    ids=lambda argv: " ".join(Path(word).name for word in argv),
)
def test_it_says_and_ends_as_if_executed(argv: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"ATFND_SOCKET": str(tmp_path / "none"), "COLUMNS": "90"}
    done = []
    for start in (subprocess.Popen, Forked):
        with start(argv, cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE) as process:
            said = [stream.splitlines()[-1:] for stream in process.communicate(timeout=60)]
            done.append((process.returncode, said))
    assert done[0] == done[1]


def test_it_is_our_child_with_what_it_was_given(tmp_path: Path) -> None:
    with ExitStack() as stack:
        net = Net(stack)
        cpu = min(os.sched_getaffinity(0))
        with Forked(TALKER, netns=net.name, cpu=cpu, cwd=tmp_path, stdin=PIPE, stdout=PIPE) as made:
            assert ok(made)
            of = Path(f"/proc/{made.pid}")
            stat = (of / "stat").read_text().rpartition(")")[2].split()
            assert int(stat[1]) == os.getpid()
            assert os.getsid(made.pid) == os.getsid(0)
            assert os.getpgid(made.pid) == os.getpgrp()
            assert (of / "comm").read_text() == f"{Path(sys.executable).name}\n"
            assert (of / "cmdline").read_text().rstrip("\0").split("\0") == TALKER
            assert os.readlink(of / "cwd") == str(tmp_path)
            assert os.sched_getaffinity(made.pid) == {cpu}
            assert (of / "ns/net").stat().st_ino == Path(f"/run/netns/{net.name}").stat().st_ino
            files = {os.readlink(each).partition(":")[0] for each in (of / "fd").iterdir()}
            assert files <= {"pipe", os.readlink("/proc/self/fd/2"), "socket", "anon_inode"}
            made.send_signal(signal.SIGKILL)
            assert made.wait(30) == -signal.SIGKILL
        assert not of.exists()


def test_signals_are_taken_as_python_takes_them() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with Forked(TALKER, stdin=PIPE, stdout=PIPE, stderr=PIPE) as made:
            assert ok(made)
            made.send_signal(number)
            assert made.wait(30) == -number


def test_other_limits_are_inherited_by_an_exec() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with Forked(TALKER, stdin=PIPE, stdout=PIPE) as made:
            assert ok(made)
            assert resource.prlimit(made.pid, resource.RLIMIT_NOFILE) == (soft - 1, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_zygote_ends_with_who_asked_it() -> None:
    words = "from tests.serve.asking import atfnctl; from pathlib import Path\n"
    words += "import tests.zygote as z\n"
    words += "atfnctl(Path('/none'), 'status'); print(z._zygotes[0]._process.pid)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    until(lambda: not Path(f"/proc/{done.stdout.strip()}").exists(), "it is gone")
