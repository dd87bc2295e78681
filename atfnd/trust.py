# SPDX-License-Identifier: GPL-2.0-or-later
"""Which users may change a file that we act on: its owner and mode, and those of its folders.

Only root and our own user are trusted. In a folder with the sticky bit (/tmp) others may make files
but not replace ours. Reads stat(2); changes nothing.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path
from shlex import quote
from typing import NamedTuple

__all__ = ["Doubt", "doubt", "open_regular", "read_regular"]

WRITABLE = stat.S_IWGRP | stat.S_IWOTH
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}


class Doubt(NamedTuple):
    """Why a file is not to be trusted, and the command that mends it."""

    why: str
    mend: str


def doubt(path: Path, found: os.stat_result, uid: int) -> Doubt | None:
    """What speaks against a file at `path`, as it was `found` when it was open, and against every
    folder above it. None: only root and `uid` may change it. OSError: a folder cannot be read."""
    wrong = _of_one(path, found, uid)
    if wrong is not None:
        return wrong
    absolute = path.absolute()
    for folder in dict.fromkeys([*absolute.parents, *absolute.resolve().parents]):
        there = folder.stat()
        if there.st_mode & stat.S_ISVTX and there.st_uid in (0, uid):
            continue
        if (wrong := _of_one(folder, there, uid)) is not None:
            return wrong
    return None


def _of_one(path: Path, found: os.stat_result, uid: int) -> Doubt | None:
    name = quote(str(path))
    if found.st_uid not in (0, uid):
        return Doubt(f"{path} belongs to {_user(found.st_uid)}", f"chown root {name}")
    if found.st_mode & WRITABLE:
        return Doubt(f"others may write {path}", f"chmod go-w {name}")
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def open_regular(path: Path, flags: int, mode: int = 0o600, folder: int | None = None) -> int:
    """Open a file, and never wait for it. OSError: the kernel's; EINVAL: it is no regular file."""
    try:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode, dir_fd=folder)
    except OSError as refusal:
        if refusal.errno != errno.ELOOP or not flags & os.O_NOFOLLOW:
            raise
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
    kind = stat.S_IFMT(os.fstat(file).st_mode)
    if kind != stat.S_IFREG:
        os.close(file)
        what = KINDS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"it is {what}, not a regular file", str(path))
    return file


def read_regular(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """What a file says, and what it was while it was open. OSError: as `open_regular`; EFBIG: it
    has more than `most` bytes."""
    file = open_regular(path, os.O_RDONLY)
    with os.fdopen(file, "rb") as reader:
        text = reader.read(most + 1)
        found = os.fstat(file)
    if len(text) > most:
        raise OSError(errno.EFBIG, f"it is over {most} bytes", str(path))
    return text, found
