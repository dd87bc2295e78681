# SPDX-License-Identifier: GPL-2.0-or-later
"""What `atfnd check` has to know of the machine that a policy is for, as a file that can be carried
to another machine.

`atfnd doctor --facts` writes it, `atfnd check --for-host` reads it. It is JSON of one version: a
file of another version is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atfnd.errors import OperatorError
from atfnd.policy.file.problem import printable
from atfnd.trust import read_regular

__all__ = ["Host", "HostInterface", "read_host"]

MOST_BYTES = 1 << 24
VERSION = 1

_Count = Annotated[int, Field(ge=0)]


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HostInterface(_Fact):
    """A network interface. None is "not known"."""

    name: str
    driver: str | None = None
    queues: _Count | None = None  # for receiving
    filter_slots: _Count | None = None
    lower: tuple[str, ...] = ()  # those that it stands on: it is no NIC


class Host(_Fact):
    """A machine, as it was when its facts were written."""

    version: Literal[1] = 1
    name: str
    cpus: Annotated[int, Field(ge=1)]  # configured ones: their numbers are 0 to this - 1
    online: tuple[_Count, ...]
    interfaces: tuple[HostInterface, ...]
    users: dict[str, _Count]  # name -> uid
    units: tuple[str, ...] = ()  # of systemd, in which there was a process; none: not known


def read_host(path: Path) -> Host:
    """The facts in a file of `atfnd doctor --facts`. OperatorError: it cannot be read, is damaged,
    is of another version, or is no regular file of at most MOST_BYTES."""
    try:
        text = read_regular(path, MOST_BYTES)[0].decode()
        tree = json.loads(text)
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise _refused(place, f"damaged: {error.msg}") from None
    except (ValueError, RecursionError):  # not UTF-8; a number or a nesting without end
        raise _refused(path, "damaged: it is no JSON") from None
    version = tree.get("version") if isinstance(tree, dict) else None
    if version is None:
        raise _refused(path, "it holds no facts of a machine")
    if version != VERSION:
        raise _refused(path, f"it is of version {version}; this atfnd reads version {VERSION}")
    try:
        return Host.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise _refused(path, f"damaged: {at}: {first['msg']}") from None


def _refused(place: Path | str, why: str) -> OperatorError:
    hint = "on that machine: atfnd doctor --facts >FILE"
    return OperatorError(printable(f"{place}: {why}"), hint)
