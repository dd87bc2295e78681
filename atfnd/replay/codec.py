# SPDX-License-Identifier: GPL-2.0-or-later
"""Values of `model` as JSON and back, by their annotations. Pure.

An object has a key for each field; bytes are hexadecimal, an enum its value, a set a sorted list. A
field that may be one of several types says which: `{"listening": {...}}`. A reason is its words:
its code may have others in the next version.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from atfnd.model.reason import UNSAID, Code, Why

__all__ = ["decoded", "encoded"]

Json = Any  # what json.loads gives


def encoded(value: object) -> Json:
    """As json.dumps takes it."""
    match value:
        case Why():
            return str(value)
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): encoded(each) for key, each in value.items()}
        case frozenset():
            order = sorted(value, key=lambda each: each.value if isinstance(each, Enum) else each)
            return [encoded(each) for each in order]
        case tuple():
            names = getattr(value, "_fields", None)
            if names is None:
                return [encoded(each) for each in value]
            several = _several(type(value))
            return {
                name: _named(each) if name in several else encoded(each)
                for name, each in zip(names, value, strict=True)
            }
        case _ if is_dataclass(value):
            return {each.name: encoded(getattr(value, each.name)) for each in fields(value)}
    raise TypeError(f"no words for {value!r}")


def _named(value: object) -> Json:
    return {type(value).__name__.lower(): encoded(value)}


@lru_cache(maxsize=256)
def _several(kind: Any) -> frozenset[str]:
    """The fields of a tuple that may be of several types."""
    return frozenset(name for name, hint in get_type_hints(kind).items() if len(_some(hint)) > 1)


def _some(kind: Any) -> list[Any]:
    """The types of a union, without None; empty if it is no union."""
    union = get_origin(kind) in (Union, types.UnionType)
    return [each for each in get_args(kind) if each is not types.NoneType] if union else []


def decoded(kind: Any, data: Json) -> Any:
    """A value of this type. ValueError: it is none. A missing field gets its default, an unknown
    one is skipped: a recording may be of another version."""
    return _decoder(kind)(data)


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> Callable[[Json], Any]:
    origin, of = get_origin(kind), get_args(kind)
    if len(some := _some(kind)) > 1:
        return _of_several({each.__name__.lower(): each for each in some})
    if some:
        return lambda data: None if data is None else decoded(some[0], data)
    if origin is tuple:
        if of[1:] == (...,):
            return lambda data: tuple(decoded(of[0], each) for each in _a(list, data))
        return lambda data: tuple(decoded(*pair) for pair in zip(of, _a(list, data), strict=True))
    if origin is frozenset:
        return lambda data: frozenset(decoded(of[0], each) for each in _a(list, data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda data: {of[0](k): decoded(of[1], each) for k, each in _a(dict, data).items()}
    if kind is Why:
        return lambda data: Code.KERNEL(_a(str, data)) if data else UNSAID
    if kind is bytes:
        return lambda data: bytes.fromhex(_a(str, data))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda data: kind(data)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _of_fields(kind)
    return lambda data: _a(kind, data)


def _of_several(kinds: Mapping[str, Any]) -> Callable[[Json], Any]:
    def decode(data: Json) -> Any:
        [(name, fields)] = _a(dict, data).items()
        if name not in kinds:
            raise ValueError(f"{name!r} is none of {', '.join(kinds)}")
        return decoded(kinds[name], fields)

    return decode


def _of_fields(kind: Any) -> Callable[[Json], Any]:
    hints = get_type_hints(kind)

    def decode(data: Json) -> Any:
        known = {name: each for name, each in _a(dict, data).items() if name in hints}
        try:
            return kind(**{name: decoded(hints[name], each) for name, each in known.items()})
        except TypeError as missing:
            raise ValueError(f"{kind.__name__}: {missing}") from None

    return decode


def _a(kind: type, data: Json) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"expected {kind.__name__}, got {data!r}")
    return data
