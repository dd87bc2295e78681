# SPDX-License-Identifier: GPL-2.0-or-later
"""Values in answers of the API: their bounds, and the words there are.

An answer is a TypedDict beside the function that makes it (`shown`). Its docstrings are what
/v1/openapi.yaml says of it; None is "not known".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field

from atfnd.model import Distance, FlowState, Habit, SocketState, SteeringMethod
from atfnd.model.reason import Why

__all__ = ["Amount", "Count", "HabitWord", "Mechanism", "MethodWord", "MoveVerdict", "Positive"]
__all__ += ["Proportion", "StateWord", "Transport", "Within", "one_of", "shown", "words"]

T = TypeVar("T")


def one_of(*texts: str) -> Any:
    """One of these."""
    return Field(json_schema_extra={"enum": list(texts)})


def words(*kinds: Iterable[Enum]) -> Any:
    """The value of one of these: enumerations, or some members of one."""
    return one_of(*(each.value for kind in kinds for each in kind))


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0)]
Proportion = Annotated[float, Field(ge=0, le=1)]
Transport = Annotated[str, one_of("tcp", "udp", "sctp")]
Mechanism = Annotated[str, one_of("birth", "follow", "hold", "gap", "none")]
MoveVerdict = Annotated[
    str,
    one_of(
        "proven", "verified", "quiet", "unproven", "violated", "no effect", "refused", "deferred",
        "superseded", "resync", "done",
    ),
]  # fmt: skip
StateWord = Annotated[str, words(FlowState, SocketState)]
HabitWord = Annotated[str, words(Habit)]
MethodWord = Annotated[str, words(SteeringMethod)]
Within = Annotated[str, words(Distance)]


def shown(answer: Callable[..., T], of: object, /, **others: object) -> T:
    """An answer of this type: the fields of `others`, and every other one as `of` has it."""
    made = {
        name: plain(others[name] if name in others else getattr(of, name))
        for name in _names(answer)
    }
    return cast(T, made)


@cache
def _names(answer: Callable[..., object]) -> tuple[str, ...]:
    return tuple(get_annotations(answer))


def plain(value: Any) -> Any:
    """As JSON has it: a reason is a sentence, a word of an enumeration its value."""
    match value:
        case Enum():
            return value.value
        case Why():
            return str(value)
        case tuple() if hasattr(value, "_asdict"):
            return {name: plain(each) for name, each in value._asdict().items()}
        case tuple():
            return [plain(each) for each in value]
        case Mapping():
            return dict(value)
        case _ if is_dataclass(value):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        case _:
            return value
