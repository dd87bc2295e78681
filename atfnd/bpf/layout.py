# SPDX-License-Identifier: GPL-2.0-or-later
"""Struct formats of what BPF programs and user space share, from the BTF of our own objects.

The C headers in this folder are the only place where a layout is written (style rule 13).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from atfnd.bpf import _bpf

__all__ = ["Layout", "layout", "layout_of"]


class Layout(NamedTuple):
    """A C struct: its field names in order and a `struct.Struct` that packs exactly them."""

    fields: tuple[str, ...]
    codec: struct.Struct


def layout(program: str, name: str) -> Layout:
    """The layout of `struct name` in BPF object `program`; KeyError when there is none."""
    return layout_of(*_bpf.layout(program, name))


def layout_of(size: int, members: Iterable[tuple[str, int, str]]) -> Layout:
    """The layout of a struct of `size` bytes: the name, offset and `struct` code of each member."""
    members = tuple(members)
    code, at = "=", 0
    for _, offset, field in members:
        code += f"{offset - at}x" if offset > at else ""
        code += field
        at = offset + struct.calcsize("=" + field)
    code += f"{size - at}x" if size > at else ""
    return Layout(tuple(field for field, _, _ in members), struct.Struct(code))
