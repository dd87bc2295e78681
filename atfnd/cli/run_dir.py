# SPDX-License-Identifier: GPL-2.0-or-later
"""The run directory: of root, and of one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atfnd.errors import OperatorError
from atfnd.trust import doubt, open_regular

__all__ = ["alone", "need_root"]


def need_root() -> None:
    """OperatorError: we are another user."""
    if os.geteuid() != 0:
        raise OperatorError("this needs root", "run it with sudo", exit_code=1)


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """Only one daemon per run directory; the lock dies with its holder."""
    try:
        run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        if run_dir.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link", str(run_dir))
        suspect = doubt(run_dir, run_dir.stat(), os.geteuid())
        if suspect is not None:
            raise OperatorError(f"{suspect.why}: not a place for journals", suspect.mend)
        lock = open_regular(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        at = f"{error.filename or run_dir}: {error.strerror}"
        raise OperatorError(at, "name another one with --run-dir") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode().strip()
            raise OperatorError(
                f"another atfnd (pid {pid}) already serves {run_dir / 'atfnd.sock'}",
                "stop it, or give this one its own --run-dir",
                exit_code=1,
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
