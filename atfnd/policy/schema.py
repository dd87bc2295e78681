# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy file may say: one class per mapping, one field per key, its type and its default.

The classes mirror the file; `load` turns them into the values of `atfnd.model`. Types are strict:
nothing is converted but by the parsers named here, which raise Mistake.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from atfnd.model import Direction, Network, Protocol
from atfnd.policy import names, shape
from atfnd.policy.problem import Mistake, did_you_mean, said
from atfnd.policy.units import MAX, rate_bit_s, size_bytes, time_ns

__all__ = [
    "AUTO",
    "DaemonEntry",
    "Entry",
    "FlowEntry",
    "InterfaceEntry",
    "PlacementEntry",
    "PolicyFile",
]

NEAR = ("core", "smt", "llc", "node")


def protocol(value: object) -> Protocol:
    """`tcp`, `udp` or `sctp`."""
    names = [p.name.lower() for p in Protocol]
    if value not in names:
        raise Mistake(
            f"expected {', '.join(names)}, got {said(value)}", did_you_mean(str(value), names)
        )
    return Protocol[str(value).upper()]


def direction(value: object) -> Direction:
    """`accepted` or `connected`."""
    known = [each.value for each in Direction]
    if value not in known:
        message = f"expected {' or '.join(known)}, got {said(value)}"
        raise Mistake(message, did_you_mean(str(value), known))
    return Direction(value)


def port_range(value: object) -> tuple[int, int]:
    """`443` or `8000-8010`, both ends in."""
    if type(value) is int:
        first = last = value
    else:
        text = value if isinstance(value, str) else ""
        found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
        if found is None:
            digits = re.fullmatch(r"([0-9]+) ?[-:–,] ?([0-9]+)", text)
            hint = f"did you mean {digits[1]}-{digits[2]}?" if digits else None
            raise Mistake(f"expected a port or a range such as 8000-8010, got {said(value)}", hint)
        first, last = int(found[1]), int(found[2])
    if not 1 <= first <= 65535 or not 1 <= last <= 65535:
        raise Mistake(f"no such port: `{value}`", "ports are 1 to 65535")
    if first > last:
        raise Mistake(f"`{value}` is an empty range", f"did you mean {last}-{first}?")
    return first, last


def network(value: object) -> Network:
    """`10.0.0.0/8`, `2001:db8::/32`, or one address."""
    if not isinstance(value, str) or "%" in value:
        raise Mistake(f"expected a network such as 10.0.0.0/8, got {said(value)}")
    address, _, prefix = value.partition("/")
    try:
        bits = ipaddress.ip_address(address).max_prefixlen
    except ValueError:
        raise Mistake(f"expected a network such as 10.0.0.0/8, got {said(value)}") from None
    if "/" in value and (not re.fullmatch(r"[0-9]{1,3}", prefix) or int(prefix) > bits):
        raise Mistake(f"no such prefix length: `/{prefix}`", f"/0 to /{bits}")
    inside = ipaddress.ip_network(value, strict=False)
    if ipaddress.ip_address(address) != inside.network_address:
        raise Mistake(f"`{value}` has host bits set", f"did you mean {inside}?")
    return Network(inside.version, inside.network_address.packed, inside.prefixlen)


def rule_name(value: object) -> str:
    """One word, to be told from the others in tables and logs."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value):
        raise Mistake(
            f"expected a name, got {said(value)}", "letters, digits, `-`, `_` and `.`, not a number"
        )
    return value


def one_or_more(value: object) -> object:
    """A single value stands for a list of one."""
    return value if isinstance(value, tuple) else (value,)


def something(wanted: str) -> BeforeValidator:
    """A key that may be left out is not written without a value."""

    def said_something(value: object) -> object:
        if value is None:
            raise Mistake(f"expected {wanted}, got nothing")
        return value

    return BeforeValidator(said_something)


def cpu_range(value: object) -> tuple[int, int]:
    """`2` or `4-6`, both ends in."""
    text = str(value) if type(value) is int else value if isinstance(value, str) else ""
    found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text)
    if found is None:
        raise Mistake(f"expected a CPU or a range such as 4-6, got {said(value)}")
    first, last = int(found[1]), int(found[2] or found[1])
    if first > last:
        raise Mistake(f"`{value}` is an empty range", f"did you mean {last}-{first}?")
    return first, last


def word_or_mapping(value: object, mapping: ValidatorFunctionWrapHandler) -> Any:
    """`leave` (here None), `auto` (AUTO), or a mapping: `{near: ...}`, `{cpus: ...}`."""
    if value == "leave":
        return None
    if value == "auto":
        return AUTO
    if isinstance(value, dict):
        return mapping(value)
    word = str(value)
    near = "core" if word == "near" else word
    hint = f"did you mean {{near: {near}}}?" if near in NEAR else None
    message = f"expected leave, auto or {{near: core}}, got {said(value)}"
    raise Mistake(message, hint or did_you_mean(word, ["leave", "auto"]))


def one_or_more_of(item: shape.Shape) -> tuple[object, ...]:
    listed = WithJsonSchema(shape.one_or_more(item))
    return BeforeValidator(one_or_more), Field(min_length=1), listed


def globs(parse: Callable[[object], tuple[str, ...]], of: shape.Shape) -> tuple[object, ...]:
    return PlainValidator(parse), WithJsonSchema(of)


Size = Annotated[int, BeforeValidator(size_bytes), WithJsonSchema(shape.SIZE)]
Time = Annotated[int, BeforeValidator(time_ns), WithJsonSchema(shape.TIME)]
Rate = Annotated[int, BeforeValidator(rate_bit_s), WithJsonSchema(shape.RATE)]
Count = Annotated[int, Field(ge=0, le=MAX)]
Protocols = tuple[Annotated[Protocol, PlainValidator(protocol)], ...]
Ports = tuple[Annotated[tuple[int, int], PlainValidator(port_range)], ...]
Cpus = tuple[Annotated[tuple[int, int], PlainValidator(cpu_range)], ...]
Networks = tuple[Annotated[Network, PlainValidator(network)], ...]
Users = tuple[Annotated[int, PlainValidator(names.user)], ...]
Globs = tuple[str, ...] | None
Opened = Annotated[Direction | None, PlainValidator(direction), WithJsonSchema(shape.DIRECTION)]


class Entry(BaseModel):
    """A mapping of the file: these keys, no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MatchEntry(Entry):
    protocol: Annotated[Protocols | None, *one_or_more_of(shape.PROTOCOL)] = None
    ports: Annotated[Ports | None, *one_or_more_of(shape.PORT)] = None
    local: Annotated[Networks | None, *one_or_more_of(shape.NETWORK)] = None
    remote: Annotated[Networks | None, *one_or_more_of(shape.NETWORK)] = None
    direction: Opened = None
    interface: Annotated[Globs, *globs(names.interfaces, shape.INTERFACES)] = None
    process: Annotated[Globs, *globs(names.processes, shape.PROCESSES)] = None
    command: Annotated[Globs, *globs(names.commands, shape.COMMANDS)] = None
    user: Annotated[Users | None, *one_or_more_of(shape.USER)] = None
    cgroup: Annotated[Globs, *globs(names.cgroups, shape.CGROUPS)] = None
    unit: Annotated[Globs, *globs(names.units, shape.UNITS)] = None
    min_bytes: Size = 0
    min_age: Time = 0
    min_rate: Rate = 0

    @model_validator(mode="after")
    def _says_something(self) -> MatchEntry:
        if not self.model_fields_set:
            raise Mistake("an empty match", "to match everything: {protocol: [tcp, udp, sctp]}")
        return self


class PlacementEntry(Entry):
    near: Annotated[Literal["core", "smt", "llc", "node"] | None, something("a word")] = None
    avoid: Annotated[Literal["smt"] | None, something("a word")] = None
    cpus: Annotated[Cpus | None, *one_or_more_of(shape.CPU)] = None
    dedicated: Annotated[Cpus | None, *one_or_more_of(shape.CPU)] = None
    keep_off: bool = False

    @model_validator(mode="after")
    def _says_one_thing(self) -> PlacementEntry:
        ways = [key for key in ("near", "cpus", "dedicated") if key in self.model_fields_set]
        if len(ways) != 1:
            told = " and ".join(ways) or "no place"
            raise Mistake(f"a placement of {told}", "say one of near, cpus, dedicated")
        if self.avoid is not None and self.near not in ("llc", "node"):
            raise Mistake("avoid: smt goes with near: llc or near: node")
        if "keep_off" in self.model_fields_set and self.dedicated is None:
            raise Mistake("keep_off goes with dedicated")
        return self


AUTO = PlacementEntry.model_construct()  # what the word stands for: it says no way of its own


class FlowEntry(Entry):
    name: Annotated[str, BeforeValidator(rule_name), WithJsonSchema(shape.RULE_NAME)]
    match: MatchEntry
    placement: Annotated[PlacementEntry | None, WrapValidator(word_or_mapping)]
    order: Literal["strict", "bounded", "immediate"] = "strict"
    owner: Literal["thread", "process", "cgroup"] = "thread"
    t_delete: Annotated[Time, Field(gt=0)] = 30 * 10**9
    dwell: Time = 10 * 10**6
    replaces_built_in: bool = False


class InterfaceMatchEntry(Entry):
    name: Annotated[
        str, Field(min_length=1), AfterValidator(names.are_interfaces),
        WithJsonSchema(shape.INTERFACES),
    ]  # fmt: skip


class RulesEntry(Entry):
    max: Annotated[Count | None, something("a number")] = None
    reserve: Count = 0


class InterfaceEntry(Entry):
    match: InterfaceMatchEntry
    armed: bool = False
    rules: RulesEntry = RulesEntry()


class TableEntry(Entry):
    max: Annotated[int, Field(ge=1, le=2**24)] = 16384


class SettleEntry(Entry):
    hold_down: Time = 100 * 10**6
    moves: Annotated[int, Field(ge=1, le=1_000_000)] = 1000


Percent = Annotated[int, Field(ge=1, le=100)]


class ShareEntry(Entry):
    filters: Percent = 100
    queues: Percent = 100
    moves: Percent = 50
    decisions: Annotated[int, Field(ge=10, le=1_000_000)] = 4000


class SharesEntry(Entry):
    user: ShareEntry = ShareEntry()
    cgroup: ShareEntry = ShareEntry()


class WebEntry(Entry):
    port: Annotated[int, Field(ge=1024, le=65535)]


class DaemonEntry(Entry):
    observer: Literal["auto", "bpf", "sock_diag"] = "auto"
    on_stop: Literal["keep", "restore"] = "keep"
    table: TableEntry = TableEntry()
    settle: SettleEntry = SettleEntry()
    shares: SharesEntry = SharesEntry()
    web: Annotated[WebEntry | None, something("a mapping")] = None


class PolicyFile(Entry):
    version: Literal[1]
    about: str = ""
    daemon: Annotated[DaemonEntry | None, something("a mapping")] = None
    interfaces: tuple[InterfaceEntry, ...] = ()
    flows: tuple[FlowEntry, ...] = ()
