# SPDX-License-Identifier: GPL-2.0-or-later
"""Values of `model` as JSON and back, by their annotations. Pure.

An object has a key for each field; bytes are hexadecimal, an enum its value, a set a sorted list.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["decoded", "encoded"]

Json = Any  # what json.loads gives


def encoded(value: object) -> Json:
    """As json.dumps takes it."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): encoded(each) for key, each in value.items()}
        case frozenset():
            return [encoded(each) for each in sorted(value)]
        case tuple():
            names = getattr(value, "_fields", None)
            if names is None:
                return [encoded(each) for each in value]
            return {name: encoded(each) for name, each in zip(names, value, strict=True)}
        case _ if is_dataclass(value):
            return {each.name: encoded(getattr(value, each.name)) for each in fields(value)}
    raise TypeError(f"no words for {value!r}")


def decoded(kind: Any, data: Json) -> Any:
    """A value of this type. ValueError: it is none. A field that is missing has its default, one
    that nobody knows is passed over: a recording may be of another version."""
    return _decoder(kind)(data)


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> Callable[[Json], Any]:
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (some,) = [each for each in of if each is not types.NoneType]
        return lambda data: None if data is None else decoded(some, data)
    if origin is tuple:
        if of[1:] == (...,):
            return lambda data: tuple(decoded(of[0], each) for each in _a(list, data))
        return lambda data: tuple(decoded(*pair) for pair in zip(of, _a(list, data), strict=True))
    if origin is frozenset:
        return lambda data: frozenset(decoded(of[0], each) for each in _a(list, data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda data: {of[0](k): decoded(of[1], each) for k, each in _a(dict, data).items()}
    if kind is bytes:
        return lambda data: bytes.fromhex(_a(str, data))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda data: kind(data)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _of_fields(kind)
    return lambda data: _a(kind, data)


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
