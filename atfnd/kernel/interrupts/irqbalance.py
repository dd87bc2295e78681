# SPDX-License-Identifier: GPL-2.0-or-later
"""irqbalance's socket (irqbalance(1), "Socket API"): which interrupts it leaves alone.

By irqbalance.c of 1.9.2 and 1.9.5: it reads one message of at most 500 bytes, or of less than
16,384 since 1.9.5, wants SCM_CREDENTIALS of root, and takes `settings ban irqs N N ...` for its
whole list, which ends at an interrupt 0. It follows the list from its next look at the interrupts
on, and answers no client while it sleeps after that, for its interval (10 s). `setup` answers
`SLEEP s IRQ n LOAD l DIFF d CLASS c ... BANNED cpus`, with an `IRQ n` for each interrupt that it
was asked to leave alone, by `--banirq` or since, but not for those of `--banmod`. A client that
hangs up before the answer kills it, by SIGPIPE. So we ask only while it waits for a message, and
then do not hang up.

How long a message may be is seen by the question: it is longer than 500 bytes, and one that does
not read it to its end resets the connection when it closes it (net/unix/af_unix.c,
unix_release_sock()).
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

__all__ = ["running", "spare", "spared", "spared_by_module"]

MESSAGE_BYTES, LONG_MESSAGE_BYTES = 499, 16_383  # the second since 1.9.5
ANSWER_S = 2.0
LONGEST_SLEEP_S = 30.0  # of one with a usual interval
_SOON_S = 0.01

_RUN, _PROC = Path("/run"), Path("/proc")
_SETUP = b"setup".ljust(MESSAGE_BYTES + 100)
_BANMOD = re.compile(rb"(?:\A|\0)(?:--banmod[=\0]|-m\0?)([^\0]+)")
_credentials = struct.Struct("=iII")
_asked: dict[int, socket.socket] = {}  # by pid: an answer is due
_takes_long = set[int]()  # pids
_asking = threading.Lock()


def running(run: Path | None = None, proc: Path = _PROC) -> frozenset[int]:
    """The irqbalance processes that have made a socket in the usual place, and are alive. Costs
    microseconds."""
    names = ((run or _RUN) / "irqbalance").glob("irqbalance*.sock")
    found = (re.fullmatch(r"irqbalance(\d+)\.sock", path.name) for path in names)
    return frozenset(int(pid[1]) for pid in found if pid and _is_one(int(pid[1]), proc))


def _is_one(pid: int, proc: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return (proc / str(pid) / "comm").read_bytes() == b"irqbalance\n"
    return False


def spared(
    pid: int, run: Path | None = None, patience_s: float = ANSWER_S
) -> frozenset[int] | None:
    """Interrupts that it was asked to leave alone. None: it does not answer now, or was built
    without a socket. A connection that it does not answer in time stays open until it does; at the
    longest, until a while after the end of this process."""
    end_s = time.monotonic() + patience_s
    with _asking:
        if not _listens(pid, end_s):
            return None
        try:
            asked = _asked[pid] = _send(pid, _SETUP, run, patience_s)
            if not _readable(asked, end_s):
                return None
            answer = _answer(asked, pid)
        except OSError:
            return None
        _asked.pop(pid).close()
    if not answer.startswith("SLEEP "):
        return None
    return frozenset(map(int, re.findall(r"\bIRQ (\d+) LOAD", answer)))


def _answer(asked: socket.socket, pid: int) -> str:
    answer = b""
    _takes_long.discard(pid)
    with suppress(ConnectionResetError):
        while part := asked.recv(LONG_MESSAGE_BYTES):
            answer += part
        _takes_long.add(pid)
    return answer.decode(errors="replace")


def spared_by_module(pid: int, root: Path = Path("/")) -> frozenset[int]:
    """Interrupts of PCI devices that it leaves alone by `--banmod`: a part of their driver's name
    (classify.c)."""
    with suppress(OSError):
        options = (root / f"proc/{pid}/cmdline").read_bytes()
        words = [word.decode(errors="replace") for word in _BANMOD.findall(options)]
        devices = (root / "sys/bus/pci/devices").iterdir() if words else ()
        found = (each for each in devices if _is_of(each / "driver", words))
        return frozenset(irq for device in found for irq in _irqs(device))
    return frozenset()


def _is_of(driver: Path, words: Iterable[str]) -> bool:
    return driver.exists() and any(word in driver.resolve().name for word in words)


def _irqs(device: Path) -> Iterable[int]:
    with suppress(OSError):
        yield from (int(each.name) for each in (device / "msi_irqs").iterdir())
    with suppress(OSError):
        yield int((device / "irq").read_text())


def _listens(pid: int, end_s: float) -> bool:
    """It waits for a message, not for the time of its next look (/proc/PID/wchan, proc(5)), and
    owes no answer."""
    for each in list(_asked):
        if _readable(_asked[each], end_s if each == pid else 0):
            _asked.pop(each).close()
    with suppress(OSError):
        while "nanosleep" in (_PROC / str(pid) / "wchan").read_text():
            if time.monotonic() > end_s:
                return False
            time.sleep(_SOON_S)
    return pid not in _asked


def _readable(asked: socket.socket, end_s: float) -> bool:
    waiting = select.poll()
    waiting.register(asked, select.POLLIN)
    return bool(waiting.poll(max(0.0, end_s - time.monotonic()) * 1000))


@atexit.register
def _stay() -> None:
    """Wait until every question is answered."""
    end_s = time.monotonic() + LONGEST_SLEEP_S
    for asked in _asked.values():
        _readable(asked, end_s)


def spare(
    pid: int, irqs: Iterable[int], run: Path | None = None, patience_s: float = ANSWER_S
) -> None:
    """Have it leave these alone and no others; with none, balance all. OSError: no irqbalance
    listens; E2BIG: more than a message holds, as `spared` has found. `spared` shows also whether it
    took the list."""
    request = b"settings ban irqs " + (" ".join(map(str, sorted(irqs))) or "NONE").encode()
    if len(request) > (LONG_MESSAGE_BYTES if pid in _takes_long else MESSAGE_BYTES):
        raise OSError(errno.E2BIG, "more interrupts than irqbalance takes in one message")
    with closing(_send(pid, request, run, patience_s)) as sent:
        sent.recv(1)  # it closes when it has read it


def _send(pid: int, message: bytes, run: Path | None, patience_s: float) -> socket.socket:
    """Its socket: a file where it can make one, else an abstract address."""
    name = f"irqbalance{pid}.sock"
    path = (run or _RUN) / "irqbalance" / name
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(patience_s)
        connection.connect(str(path) if path.exists() else f"\0{name}")
        who = _credentials.pack(os.getpid(), os.getuid(), os.getgid())
        connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])
    except OSError:
        connection.close()
        raise
    return connection
