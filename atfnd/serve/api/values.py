# SPDX-License-Identifier: GPL-2.0-or-later
"""Values in answers of the API: their bounds, and the words there are.

An answer is a TypedDict beside the function that makes it. Its docstrings are what /v1/openapi.yaml
says of it; None is "not known".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any

from pydantic import Field

from atfnd.model import Distance, FlowState, Habit, SocketState, SteeringMethod

__all__ = ["Amount", "Count", "HabitWord", "Mechanism", "MethodWord", "MoveVerdict", "Positive"]
__all__ += ["Proportion", "StateWord", "Transport", "Within", "one_of", "words"]


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
