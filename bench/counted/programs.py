# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the kernel has put its BPF programs, by bpf(2): in the counted guest it takes minutes to
read /proc/kallsyms."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.system.mount import check, libc

__all__ = ["Program", "counted", "programs"]

RANGES = Path("/run/guest/programs")  # for start.sh
SYS_BPF = 321  # x86-64
PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD = 11, 13, 15
NUMBERS = struct.Struct("=III")  # an id, the next one, flags
ASKED = struct.Struct("=IIQ")  # file, size and address of what is to be filled in
# struct bpf_prog_info (linux/bpf.h): name; of how many functions the addresses and lengths are
# wanted, and where. The first function is the program itself.
INFO = struct.Struct("=64x16s24xIIQQ")


class Program(NamedTuple):
    """The instructions of its own function, without those that it calls; 15 characters of its
    name."""

    name: str
    begin: int
    end: int


def counted() -> list[str]:
    """Have start.sh count those that are loaded now; their names, in the order of the counts."""
    found = programs()
    RANGES.write_text("".join(f"{each.begin:x} {each.end:x}\n" for each in found))
    return [each.name for each in found]


def programs() -> list[Program]:
    """All that are loaded. OSError: this needs CAP_SYS_ADMIN."""
    found, number = [], _next(0)
    while number:
        with contextlib.suppress(FileNotFoundError):  # it was unloaded meanwhile
            found.append(_program(number))
        number = _next(number)
    return found


def _next(number: int) -> int:
    """The next id; 0: there is none."""
    asked = _buffer(NUMBERS.pack(number, 0, 0))
    try:
        _bpf(PROG_GET_NEXT_ID, asked)
    except FileNotFoundError:
        return 0
    found: int = NUMBERS.unpack(asked)[1]
    return found


def _program(number: int) -> Program:
    begin, length = ctypes.c_uint64(), ctypes.c_uint32()
    info = _buffer(INFO.pack(b"", 1, 1, ctypes.addressof(begin), ctypes.addressof(length)))
    file = _bpf(PROG_GET_FD_BY_ID, _buffer(NUMBERS.pack(number, 0, 0)))
    try:
        _bpf(OBJ_GET_INFO_BY_FD, _buffer(ASKED.pack(file, len(info), ctypes.addressof(info))))
    finally:
        os.close(file)
    name = INFO.unpack(info)[0].rstrip(b"\0").decode()
    return Program(name, begin.value, begin.value + length.value)


def _bpf(command: int, attribute: ctypes.Array[ctypes.c_char]) -> int:
    return check(libc.syscall(SYS_BPF, command, attribute, len(attribute)), "bpf")


def _buffer(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, len(content))
