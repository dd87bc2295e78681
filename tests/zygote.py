# SPDX-License-Identifier: GPL-2.0-or-later
"""Starts Python programs in processes that have imported them before: a fork instead of an exec.
Imports are most of a start, and in the emulated guest ten seconds of it.

`Forked` is a Popen whose child a zygote has forked. It is our child as after an exec, with its own
arguments, environment, folder, files, CPUs and network namespace. Control groups, other namespaces
and limits it has of the zygote: where ours are others by now, `Forked` executes the program as
Popen does.

    python -m tests.zygote SOCKET ROOM   # the zygote: ends when nobody has the other end
"""

from __future__ import annotations

import array
import atexit
import ctypes
import importlib
import json
import os
import platform
import resource
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Forked", "start"]

CLONE_PARENT = 0x00008000  # linux/sched.h: a child of the zygote's parent, which asks
CLONE_NEWNET = 0x40000000
SYS_CLONE = 56  # of x86-64
PR_SET_NAME = 15
ROOM = "-" * 4096  # for the arguments of a child, which are as many bytes at most
REQUEST_BYTES = 1 << 17
NETNS = Path("/run/netns")
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE)
C = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL over a call: the child has it, too
COMMANDS = {"atfnd": "atfnd.cli.commands", "atfnctl": "atfnd.ctl"}
IMPORTED = (
    *COMMANDS.values(),
    "atfnd.cli.daemon",
    "atfnd.ctl.verbs",
    "tests.daemon.faulty",
    "tests.move.moving",
)


class Request(NamedTuple):
    """`argv` is `atfnd ...`, `atfnctl ...` or `python -m MODULE ...`."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    cpus: list[int]
    netns: str | None


class _Zygote:
    """The process that forks."""

    def __init__(self) -> None:
        self.inherits = _inherited()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.zygote", str(theirs.fileno()), ROOM],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[1],
            )
        atexit.register(self._end)

    def fork(self, request: Request, files: Sequence[int]) -> int:
        """The child's process id; its files 0, 1 and 2 are these."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        self._socket.sendmsg([json.dumps(request).encode()], rights)
        pid = int(self._socket.recv(64))
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


_zygotes: list[_Zygote] = []


def start() -> None:
    """Have it import what it needs, before the first request."""
    if not _zygotes:
        _zygotes.append(_Zygote())


def _inherited() -> tuple[object, ...]:
    """What a child has of its parent and no request names."""
    namespaces = [os.readlink(f"/proc/self/ns/{each}") for each in ("mnt", "net", "user", "uts")]
    groups, limits = Path("/proc/self/cgroup").read_text(), list(map(resource.getrlimit, LIMITS))
    return groups, namespaces, limits, os.sched_getscheduler(0), os.geteuid(), os.getpid()


class Forked(subprocess.Popen[Any]):
    """Popen of a `Request`'s kinds of programs. `netns`: the name of a network namespace; `cpu`:
    where it may run, if not where we may."""

    def __init__(
        self, argv: Sequence[str], *, netns: str | None = None, cpu: int | None = None, **more: Any
    ) -> None:
        self._netns, self._cpu = netns, cpu
        super().__init__(argv, **more)

    def _execute_child(self, *words: Any) -> None:
        """CPython's own step that starts the child and sets `pid`; `words` are as in 3.11."""
        argv, folder, environment = words[0], words[5], words[6]
        to_child, from_child, errors = (words[10:12], words[13:11:-1], words[15:13:-1])
        if platform.machine() != "x86_64":
            return self._execute_program(*words)
        start()
        if _zygotes[-1].inherits != _inherited():
            return self._execute_program(*words)
        request = Request(
            list(map(str, argv)),
            dict(os.environ if environment is None else environment),
            str(folder or Path.cwd()),
            sorted(os.sched_getaffinity(0)) if self._cpu is None else [self._cpu],
            self._netns,
        )
        files = [to_child[0], from_child[0], errors[0]]
        files = [number if file == -1 else file for number, file in enumerate(files)]
        self.pid = _zygotes[-1].fork(request, files)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *to_child, *reversed(from_child), *reversed(errors)
        )
        return None

    def _execute_program(self, argv: Sequence[str], *words: Any) -> None:
        netns = [] if self._netns is None else ["ip", "netns", "exec", self._netns]
        cpus = [] if self._cpu is None else ["taskset", "-c", str(self._cpu)]
        program = [*netns, *cpus, *argv]
        super()._execute_child(program, program[0], *words[1:])  # type: ignore[misc]


def _serve(asked: socket.socket) -> Request | None:
    """Fork for each request. Returns the request in each child, None in the zygote at its end."""
    while True:
        data, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 3)
        if not data:
            return None
        C.PyOS_BeforeFork()
        pid = C.syscall(SYS_CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            C.PyOS_AfterFork_Child()
            asked.close()
            return _become(Request(*json.loads(data)), files)
        C.PyOS_AfterFork_Parent()
        asked.send(str(pid if pid > 0 else -ctypes.get_errno()).encode())
        for file in files:
            os.close(file)


def _become(request: Request, files: Sequence[int]) -> Request:
    """Take over what the request names."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    if os.sched_getaffinity(0) != set(request.cpus):  # else it has no mask of its own
        os.sched_setaffinity(0, request.cpus)
    if request.netns is not None:
        there = os.open(NETNS / request.netns, os.O_RDONLY)
        if C.setns(there, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), request.netns)
        os.close(there)
    _name(request.argv)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115, as long as the process
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    return request


def _name(argv: Sequence[str]) -> None:
    """/proc/PID/comm and cmdline, as after an exec but for zeros at the end of it (proc(5):
    arg_start, arg_end)."""
    C.prctl(PR_SET_NAME, Path(argv[0]).name.encode(), 0, 0, 0)
    script = [] if argv[1:2] == ["-m"] else [sys.executable]
    words = "".join(f"{word}\0" for word in (*script, *argv)).encode()
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    ctypes.memmove(start, words[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _run(argv: Sequence[str]) -> None:
    """As the interpreter and the installed scripts do."""
    if argv[1:2] == ["-m"]:
        sys.argv = list(argv[2:])
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        sys.exit(importlib.import_module(COMMANDS[Path(argv[0]).name]).main())


if __name__ == "__main__":
    for each in IMPORTED:
        importlib.import_module(each)
    taken = _serve(socket.socket(fileno=int(sys.argv[1])))
    if taken is not None:
        _run(taken.argv)
