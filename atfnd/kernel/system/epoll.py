# SPDX-License-Identifier: GPL-2.0-or-later
"""How the epoll of another process busy-polls: read it, and write it.

pidfd_getfd(2) (Linux 5.6) gives a descriptor of the same epoll, if ptrace(2) may attach to its
process; EPIOCGPARAMS and EPIOCSPARAMS (ioctl_eventpoll(2), 6.9) do the rest.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from atfnd.kernel.system.mount import check, libc
from atfnd.kernel.system.procfs import read, stat_fields
from atfnd.model import EpollId, EpollParams

__all__ = ["EVENTPOLL", "read_params", "write_params"]

EVENTPOLL = "anon_inode:[eventpoll]"
_SYS_PIDFD_GETFD = 438  # the same number on every architecture
_EPIOCSPARAMS, _EPIOCGPARAMS = 0x40088A01, 0x80088A02
_params = struct.Struct("=IHBx")  # struct epoll_params: us, budget, prefer, padding
_GONE = {errno.ESRCH, errno.ENOENT, errno.EBADF}


def read_params(epoll: EpollId) -> EpollParams | None:
    """None: the process or its descriptor is gone, or the descriptor is something else now.
    OSError: we may not look into the process, or the kernel does not know them (before 6.9)."""
    with _opened(epoll) as fd:
        return None if fd is None else _params_of(fd)


def write_params(epoll: EpollId, params: EpollParams) -> None:
    """KeyError: the process or its descriptor is gone. OSError: as `read_params`; or a budget above
    64 without CAP_NET_ADMIN."""
    with _opened(epoll) as fd:
        if fd is None:
            raise KeyError(epoll)
        fcntl.ioctl(fd, _EPIOCSPARAMS, _params.pack(*params))


def _params_of(fd: int) -> EpollParams:
    busy_poll_us, budget, prefers = _params.unpack(
        fcntl.ioctl(fd, _EPIOCGPARAMS, bytes(_params.size))
    )
    return EpollParams(busy_poll_us, budget, bool(prefers))


@contextmanager
def _opened(epoll: EpollId) -> Iterator[int | None]:
    try:
        fd = _getfd(epoll)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        fd = None
    if fd is None:
        yield None
        return
    try:
        yield fd if os.readlink(f"/proc/self/fd/{fd}") == EVENTPOLL else None
    finally:
        os.close(fd)


def _getfd(epoll: EpollId) -> int | None:
    """None: another process has its number now. Between the two calls it cannot be replaced
    unnoticed: a pidfd stays that of the process that it was opened for."""
    pidfd = os.pidfd_open(epoll.pid)
    try:
        if int(stat_fields(read(f"/proc/{epoll.pid}/stat"))[1][19]) != epoll.born:
            return None
        return check(libc.syscall(_SYS_PIDFD_GETFD, pidfd, epoll.fd, 0), "pidfd_getfd")
    finally:
        os.close(pidfd)
