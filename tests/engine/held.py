# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds what an object still holds, however deep: for tests that nothing outlives its subject."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import is_dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["held"]

_CODE = BuiltinFunctionType, FunctionType, MethodType, ModuleType, type
_PLAIN = str, bytes, int, float, bool


def held(root: object, kind: type, but: Collection[str] = ()) -> list[str]:
    """Where values of this type are, as paths from `root`; not below attributes named `but`."""
    found: list[str] = []
    todo: list[tuple[str, object]] = [(type(root).__name__, root)]
    known = {id(root): root}
    while todo:
        path, each = todo.pop()
        if isinstance(each, kind):
            found.append(path)
            continue
        for name, inner in _parts(each):
            seen = id(inner) in known and not isinstance(inner, kind)
            if name not in but and not seen and not isinstance(inner, _CODE + _PLAIN):
                known[id(inner)] = inner
                todo.append((f"{path}.{name}" if name.isidentifier() else f"{path}{name}", inner))
    return sorted(found)


def _parts(each: Any) -> Iterator[tuple[str, object]]:
    if isinstance(each, dict):
        for key, value in each.items():
            yield "[key]", key
            yield f"[{key!r}]", value
    elif isinstance(each, Collection):
        for at, value in enumerate(each):
            yield f"[{at}]", value
    names = [*getattr(each, "__dict__", ())]
    for base in type(each).__mro__ if is_dataclass(each) or not names else ():
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else [*slots]
    for name in names:
        if hasattr(each, name):
            yield name, getattr(each, name)
