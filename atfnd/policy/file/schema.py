# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy file may say: one class per mapping, one field per key: its type, its default as a
file would write it, and what it means. Editors and docs/policies.md show that.

The classes mirror the file; `load` turns them into the values of `atfnd.model`. Types are strict:
nothing is converted but by the parsers named here, which raise Mistake. Beside its parser stands
what an editor can check of a value (`json_schema_input_type`): as much as the parser accepts, or
more.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticKnownError, core_schema

from atfnd.model import Network, Protocol, ServeOn
from atfnd.policy.file import names
from atfnd.policy.file.problem import Mistake, did_you_mean, said
from atfnd.policy.file.units import (
    MAX,
    RATES,
    SIZES,
    TIMES,
    rate_bit_s,
    share_of_core,
    size_bytes,
    time_ns,
)

__all__ = [
    "AUTO",
    "DaemonEntry",
    "Entry",
    "FlowEntry",
    "ForwardingEntry",
    "HostEntry",
    "InterfaceEntry",
    "PlacementEntry",
    "PolicyFile",
]

T = TypeVar("T")

PORTS = {"bgp": 179, "dns": 53, "domain": 53, "http": 80, "https": 443, "ntp": 123, "ssh": 22}
NEAR = ("core", "smt", "llc", "node")
RECEPTIONS = ("deferred", "suspended", "dedicated")
RECEPTION_WORDS = ("leave", "interrupt", "busy", "auto")
MOST_POLLS = 2**31 - 1  # net/core/netdev-genl.c: an s32
MOST_TIMEOUT_NS = 1_000_000_000  # what comes meanwhile waits so long
MOST_IDLE_NS = 3600 * 10**9
MOST_BUDGET_PACKETS = 2**31 - 1  # net/core/sysctl_net_core.c: an int
MOST_BUDGET_NS = 1_000_000_000  # nothing else runs on the CPU meanwhile


def protocol(value: object) -> Protocol:
    """`tcp`, `udp` or `sctp`."""
    names = [p.name.lower() for p in Protocol]
    if value not in names:
        raise Mistake(
            f"expected {', '.join(names)}, got {said(value)}", did_you_mean(str(value), names)
        )
    return Protocol[str(value).upper()]


def port_range(value: object) -> tuple[int, int]:
    """`443` or `8000-8010`, both ends in."""
    if type(value) is int:
        first = last = value
    else:
        text = value if isinstance(value, str) else ""
        found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
        if found is None:
            digits = re.fullmatch(r"([0-9]+) ?[-:–,] ?([0-9]+)", text)
            meant = f"{digits[1]}-{digits[2]}" if digits else PORTS.get(text.lower())
            hint = None if meant is None else f"did you mean {meant}?"
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
    """One word, to tell it from the others in tables and logs."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value):
        raise Mistake(
            f"expected a name, got {said(value)}", "letters, digits, `-`, `_` and `.`, not a number"
        )
    return value


def one_or_more(value: object) -> object:
    """A single value is read as a list of one."""
    if value == ():
        raise PydanticKnownError(
            "too_short", {"field_type": "Tuple", "min_length": 1, "actual_length": 0}
        )
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


def cpu_choice(value: object) -> ServeOn:
    """`0-7,16-23`, these CPUs; `!0`, all but this one."""
    text = str(value) if type(value) is int else value if isinstance(value, str) else ""
    listed = text.removeprefix("!")
    if not re.fullmatch(RUNS, listed):
        meant = re.sub(r"[ ;!]+", ",", listed.strip()).replace(",,", ",")
        if isinstance(value, tuple):
            hint = 'as one text, such as "0-7,16-23"'
        elif re.fullmatch(RUNS, meant):
            hint = f"did you mean {text[:1] if text.startswith('!') else ''}{meant}?"
        elif re.fullmatch(r"0x[0-9a-fA-F,]+", text):
            hint = "CPUs by number, not as a mask"
        else:
            hint = "leave `serve_on` out for every CPU"
        raise Mistake(f"expected CPUs such as 0-7,16-23, or !0, got {said(value)}", hint)
    runs = [cpu_range(run) for run in listed.split(",")]
    cpus = frozenset(cpu for first, last in runs for cpu in range(first, last + 1))
    return ServeOn(cpus, others=text.startswith("!"))


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


def text(pattern: str, *examples: str) -> Any:
    return Annotated[str, Field(pattern=pattern, examples=list(examples) or None)]


class Several:
    """`one_or_more`, and what the JSON Schema says of it."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(one_or_more, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        listed = handler(schema)
        return {"anyOf": [listed["items"], {**listed, "minItems": 1}]}


def on_or_off(value: object) -> object:
    """YAML 1.2 knows `on` as a word, not as a truth value."""
    if type(value) is not bool and value not in ("on", "off"):
        meant = {"yes": "on", "true": "on", "no": "off", "false": "off"}.get(str(value).lower())
        hint = None if meant is None else f"did you mean {meant}?"
        raise Mistake(f"expected on or off, got {said(value)}", hint)
    return value in (True, "on")


def globs(parse: Callable[[object], tuple[str, ...]], *examples: str) -> PlainValidator:
    return PlainValidator(parse, json_schema_input_type=text(GLOBS, *examples))


def quantity(parse: Callable[[object], int], units: str, *examples: str) -> BeforeValidator:
    pattern = rf"^[0-9]+(\.[0-9]+)? ?({units})$"
    return BeforeValidator(parse, json_schema_input_type=text(pattern, *examples))


def as_written(default: str) -> Any:
    """A default that is parsed as what stands in a file."""
    return Field(default=default, validate_default=True)


RUN = "[0-9]{1,6}(-[0-9]{1,6})?"
RUNS = f"{RUN}(,{RUN})*"
GLOB = r"[^|]*[^|\s!][^|]*"
GLOBS = rf"^{GLOB}(\|{GLOB})*$"
BITS = "|".join(unit for unit in RATES if "/" not in unit)
BYTES = "|".join(unit for unit in RATES if "/" in unit)

Size = Annotated[int, quantity(size_bytes, "|".join(SIZES), "64KiB", "1.5MiB")]
IN_TIME = quantity(time_ns, "|".join(TIMES), "200ms", "30s")
Time = Annotated[int, IN_TIME]
Rate = Annotated[int, quantity(rate_bit_s, rf"({BITS})(/s)?|{BYTES}", "500Mbit", "10MiB/s")]
Count = Annotated[int, Field(ge=0, le=MAX)]
ShareOfCore = Annotated[
    float,
    BeforeValidator(share_of_core, json_schema_input_type=text(r"^[0-9]+(\.[0-9]+)? ?%$", "1%")),
]
Percent = Annotated[int, Field(ge=1, le=100)]
ProtocolName = Annotated[
    Protocol, PlainValidator(protocol, json_schema_input_type=Literal["tcp", "udp", "sctp"])
]
Port = Annotated[
    tuple[int, int],
    PlainValidator(
        port_range,
        json_schema_input_type=Annotated[
            Annotated[int, Field(ge=1, le=65535)] | text("^[0-9]{1,9}-[0-9]{1,9}$"),
            Field(examples=[443, "8000-8010"]),
        ],
    ),
]
Cpu = Annotated[
    tuple[int, int],
    PlainValidator(
        cpu_range,
        json_schema_input_type=Annotated[int, Field(ge=0, le=999999)]
        | text("^[0-9]{1,6}(-[0-9]{1,6})?$", "4-6"),
    ),
]
Cpus = Annotated[
    ServeOn | None,
    PlainValidator(
        cpu_choice,
        json_schema_input_type=Annotated[int, Field(ge=0, le=999999)]
        | text(f"^!?{RUNS}$", "0-7,16-23", "!0"),
    ),
]
Prefix = Annotated[
    Network,
    PlainValidator(
        network,
        json_schema_input_type=text(
            r"^[0-9a-fA-F:.]+(/[0-9]{1,3})?$", "10.0.0.0/8", "2001:db8::/32", "192.0.2.1"
        ),
    ),
]
User = Annotated[
    int,
    PlainValidator(
        names.user,
        json_schema_input_type=Annotated[
            Annotated[int, Field(ge=0, le=2**32 - 2)] | Annotated[str, Field(min_length=1)],
            Field(examples=["www-data", 1000]),
        ],
    ),
]
Globs = tuple[str, ...] | None
OneOrMore = Annotated[tuple[T, ...] | None, Several()]


class Entry(BaseModel):
    """A mapping of the file: these keys, no others."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


class MatchEntry(Entry):
    """Which flows a rule is for: a flow must meet every key that is present."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    protocol: OneOrMore[ProtocolName] = None
    """The transport."""
    ports: OneOrMore[Port] = None
    """Local or remote port: one rule covers a service and its clients."""
    local: OneOrMore[Prefix] = None
    """The address on this machine. A socket without a bound address is in no network."""
    remote: OneOrMore[Prefix] = None
    """The address of the other end. An unconnected socket is in no network."""
    direction: Annotated[
        Literal["accepted", "connected"] | None, something("accepted or connected")
    ] = None
    """Which end opened the connection: `accepted`, the other one; `connected`, this one. UDP has no
    direction, and matches no rule with this key."""
    interface: Annotated[Globs, globs(names.interfaces, "eth*", "lab:*")] = None
    """The NIC's name, as in `--nic`."""
    process: Annotated[Globs, globs(names.processes, "iperf3|globus*", "!ssh*")] = None
    """The name of the thread that uses the socket, 15 bytes at most (comm)."""
    command: Annotated[Globs, globs(names.commands, "*/iperf3 -s*", "java *org.apache.kafka*")] = (
        None
    )
    """The arguments of its process, joined by spaces; at most the first 4096 bytes."""
    user: OneOrMore[User] = None
    """The effective user of its process: a name that this machine knows, or a uid."""
    cgroup: Annotated[Globs, globs(names.cgroups, "/system.slice/nginx.service", "/kubepods*")] = (
        None
    )
    """The control group of its process, as a path below /sys/fs/cgroup."""
    unit: Annotated[
        Globs, globs(names.units, "nginx.service", "user@1000.service|machine.slice")
    ] = None
    """A systemd unit that contains its process: service, scope or slice, at any depth."""
    min_bytes: Size = as_written("0B")
    """It has carried at least this much in both directions together. For UDP this needs the BPF
    observer."""
    min_age: Time = as_written("0ns")
    """It was established or first seen at least this long ago."""
    min_rate: Rate = as_written("0bit")
    """It was this fast between two audits, which are 2 to 20 seconds apart; once is enough. Before
    that, the flow is under a later rule, and each audit checks it again."""

    @model_validator(mode="after")
    def _says_something(self) -> MatchEntry:
        if not self.model_fields_set:
            raise Mistake("an empty match", "to match every flow: {protocol: [tcp, udp, sctp]}")
        return self


class PlacementEntry(Entry):
    """Where the packets of a flow should arrive. One of `near`, `cpus`, `dedicated`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [way]} for way in ("near", "cpus", "dedicated")],
            "dependentRequired": {"avoid": ["near"]},
        }
    )

    near: Annotated[Literal["core", "smt", "llc", "node"] | None, something("a word")] = None
    """The application's own `core`; its `smt` sibling; another core under the same last-level cache
    (`llc`) or of its NUMA `node`. For fallbacks see docs/placements.md."""
    avoid: Annotated[Literal["smt"] | None, something("a word")] = None
    """With `llc` and `node`: `smt` excludes the sibling of the application's core."""
    cpus: OneOrMore[Cpu] = None
    """One of these CPUs, whatever the application runs on."""
    dedicated: OneOrMore[Cpu] = None
    """One of these CPUs, which serve no other flows."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> PlacementEntry:
        ways = [key for key in ("near", "cpus", "dedicated") if key in self.model_fields_set]
        if len(ways) != 1:
            given = " and ".join(ways) or "no place"
            raise Mistake(f"a placement of {given}", "say one of near, cpus, dedicated")
        if self.avoid is not None and self.near not in ("llc", "node"):
            raise Mistake("avoid: smt goes with near: llc or near: node")
        return self


AUTO = PlacementEntry.model_construct()  # what the word stands for: it names no placement itself


class DeferredEntry(Entry):
    """After a poll the interrupt stays off, and a timer polls again."""

    timeout: Annotated[int, Field(gt=0, le=MOST_TIMEOUT_NS), IN_TIME]
    """The time from one poll to the next."""
    polls: Annotated[int, Field(ge=1, le=MOST_POLLS)] = 100
    """After so many polls that found nothing the interrupt is taken again."""


class SuspendedEntry(DeferredEntry):
    """While the application's epoll finds events, nobody else polls; else as `deferred`."""

    limit: Annotated[int, Field(gt=0, le=MOST_TIMEOUT_NS), IN_TIME] = as_written("20ms")
    """An application that finds events and asks for no more keeps its queue silent for this
    long at most."""


class DedicatedReceptionEntry(Entry):
    """A NAPI thread polls with a pause, and goes back to the interrupt when it is idle."""

    pause: Annotated[int, Field(gt=0, le=MOST_TIMEOUT_NS), IN_TIME] = as_written("100us")
    """The time between two polls, in which its CPU is free."""
    idle_after: Annotated[int, Field(gt=0, le=MOST_IDLE_NS), IN_TIME] = as_written("1s")
    """When it has found nothing for this long, it waits for an interrupt."""


class ReceptionEntry(Entry):
    """What takes packets out of a queue's ring. One of `deferred`, `suspended`, `dedicated`."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [mode]} for mode in RECEPTIONS]}
    )

    deferred: Annotated[DeferredEntry | None, something("a mapping")] = None
    """A timer polls instead of an interrupt, for as long as there is traffic."""
    suspended: Annotated[SuspendedEntry | None, something("a mapping")] = None
    """The application polls while it is busy. It needs an epoll that prefers busy polling."""
    dedicated: Annotated[DedicatedReceptionEntry | None, something("a mapping")] = None
    """A NAPI thread polls, at its own pace: on CPUs of its own, with `placement: dedicated`."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> ReceptionEntry:
        modes = [mode for mode in RECEPTIONS if mode in self.model_fields_set]
        if len(modes) != 1:
            given = " and ".join(modes) or "no mode"
            raise Mistake(f"a reception of {given}", f"say one of {', '.join(RECEPTIONS)}")
        return self


def reception_word(value: object, mapping: ValidatorFunctionWrapHandler) -> Any:
    """One of RECEPTION_WORDS, as it is, or a mapping: `{deferred: ...}`."""
    if isinstance(value, str) and value in RECEPTION_WORDS:
        return value
    if isinstance(value, dict):
        return mapping(value)
    word = str(value)
    hint = f"did you mean {{{word}: {{...}}}}?" if word in RECEPTIONS else None
    message = f"expected {', '.join(RECEPTION_WORDS)} or {{deferred: ...}}, got {said(value)}"
    raise Mistake(message, hint or did_you_mean(word, list(RECEPTION_WORDS)))


ReceptionChoice = Annotated[
    ReceptionEntry | Literal["leave", "interrupt", "busy", "auto"],
    WrapValidator(
        reception_word,
        json_schema_input_type=Literal["leave", "interrupt", "busy", "auto"] | ReceptionEntry,
    ),
]


class FlowFiltersEntry(Entry):
    """How many filters the flows of a rule may have."""

    max: Annotated[int, Field(ge=1, le=MAX)]
    """The most filters on one interface, of flows and of listening ports together. Flows that get
    none wait, as those whose user has used up its share: docs/policies.md."""


class FlowEntry(Entry):
    """A rule for flows. The first that matches a flow decides."""

    name: Annotated[str, BeforeValidator(rule_name, json_schema_input_type=text(r"^\S+$", "bulk"))]
    """Unique in all files. Shown as the flow's `rule`."""
    match: MatchEntry
    """Which flows this rule is for."""
    placement: Annotated[
        PlacementEntry | None,
        WrapValidator(
            word_or_mapping, json_schema_input_type=Literal["leave", "auto"] | PlacementEntry
        ),
    ]
    """Where the packets of a flow should arrive: `leave`, wherever RSS delivers them; a mapping,
    near its application; `auto`, on its core, or off it if a measurement showed that this pays."""
    order: Literal["strict", "bounded", "immediate"] = "strict"
    """How the flow may move: `strict`, only if this cannot reorder its packets; `bounded`,
    otherwise in a gap of its traffic, verified afterwards; `immediate`, at once."""
    owner: Literal["thread", "process", "cgroup"] = "thread"
    """What migrates as one unit and may own a queue that follows it: the `thread` that uses the
    socket, its `process` or its `cgroup`."""
    t_delete: Annotated[int, Field(gt=0), IN_TIME] = as_written("30s")
    """An entry that was idle for this long is deleted with its filter; earlier if the table is more
    than half full."""
    dwell: Time = as_written("10ms")
    """The socket must be used on another core for this long before its flow follows."""
    full_core: Literal["leave", "stay"] = "leave"
    """With `near: core`, while the thread's CPU is full and another one under its last-level cache
    is not: `leave` the flow to RSS, or let it `stay` where it is read."""
    filters: Annotated[FlowFiltersEntry | None, something("a mapping")] = None
    """How many filters its flows may have; default: as many as there are."""
    reception: Annotated[ReceptionChoice | None, something("a mode")] = None
    """What takes packets out of the rings of queues that belong to its flows: those that its owners
    own, or that are on its `dedicated` CPUs. Default: the interface's (docs/reception.md)."""
    replaces_built_in: bool = False
    """Required in a rule named `control` that does not leave ports 22 and 179 (ssh, BGP) alone: it
    confirms that the rule should replace the built-in one."""


class InterfaceMatchEntry(Entry):
    """Which interfaces a rule is for: an interface must meet every key that is present."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    name: OneOrMore[Annotated[tuple[str, ...], globs(names.interfaces, "eth*|!eth0", "lab:*")]] = (
        None
    )
    """The interface's name."""
    driver: OneOrMore[Annotated[tuple[str, ...], globs(names.drivers, "mlx5_core|ice")]] = None
    """The name of its driver, as `ethtool -i` shows it; `lab` for a lab NIC. An interface whose
    driver is not known matches a rule with this key only if that rule does not arm."""

    @model_validator(mode="after")
    def _says_something(self) -> InterfaceMatchEntry:
        if not self.model_fields_set:
            raise Mistake("an empty match", 'to match every interface: {name: "*"}')
        return self


class FiltersEntry(Entry):
    """The share of an interface's filters that atfnd may use."""

    max: Annotated[Count | None, something("a number")] = None
    """The most filters that atfnd may use; default: all."""
    reserve: Count = 0
    """Filters left free for others."""


class InterfaceEntry(Entry):
    """A rule for interfaces. The first that matches an interface decides."""

    match: InterfaceMatchEntry
    """Which interfaces this rule is for."""
    armed: bool = False
    """Whether atfnd may write to it. If not, atfnd shows what it would write."""
    filters: FiltersEntry = FiltersEntry()
    """The share of its filters that atfnd may use."""
    napi_threads: Literal["borrow", "never"] = "borrow"
    """Whether its queues may be polled by NAPI threads while flows of theirs are moved in order, or
    RFS is switched: atfnd switches `threaded` on and off again, for single queues where the kernel
    can."""
    guard: Annotated[
        bool, BeforeValidator(on_or_off, json_schema_input_type=Literal["on", "off"] | bool)
    ] = True
    """`on`: where steering costs more CPU time per byte than it saves, atfnd stops steering this
    interface and says so (docs/measure.md). `off`: it never compares."""
    unowned: Literal["keep", "rss", "rfs"] = "keep"
    """What delivers the flows of threads that wander, on queues that no thread owns: `rss`, on the
    queue's CPU; `rfs`, the kernel hands them to the CPU where they were last used, by an interrupt;
    or `keep`, RFS if you had set it up there, else RSS. While they are handed on, it is the kernel
    that keeps their order, as docs/internals/ordering.md says."""
    reception: ReceptionChoice = "leave"
    """What takes packets out of the rings of its queues, unless a flow rule asks for its own
    queues' (docs/reception.md): `leave`, as they were found; `interrupt`; a mapping; `auto`, by
    interrupts, or in a mode that was measured to be better; or `busy`, a
    NAPI thread that polls without end."""
    rss_hash: Literal["keep", "symmetric"] = "keep"
    """`symmetric`: a hash by which both directions of a flow come to queues of one number, on all
    interfaces that ask for it and have as many queues (docs/forwarding.md). `keep`, the one that
    was found."""
    serve_on: Cpus = None
    """The CPUs to which its queues may be delivered: a list such as `0-7,16-23`, or `!0`, all but
    that. Queues that are elsewhere come there, and none follows its thread out. A list may name
    isolated CPUs. Flows used on other CPUs are left to RSS (docs/placements.md)."""


class ForwardingMatchEntry(Entry):
    """Which forwarded packets a rule is for: those that come in by the one and go out by the
    other."""

    ingress: Annotated[tuple[str, ...], globs(names.interfaces, "wan*"), Field(alias="in")]
    """Names of interfaces, as in `--nic`."""
    egress: Annotated[tuple[str, ...], globs(names.interfaces, "lan*|!lan0"), Field(alias="out")]
    """Names of interfaces."""


class PairPlacementEntry(Entry):
    """Which CPUs serve the channels of interfaces that forward to each other. One of `pair`,
    `mode`."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [way]} for way in ("pair", "mode")]}
    )

    pair: Annotated[Literal["core", "llc", "node", "leave"] | None, something("a word")] = None
    """`core`: channels of one number on one CPU, which also sends; `llc` and `node`: as near as the
    load permits, under one last-level cache or on one NUMA node; or `leave` them where they are."""
    mode: Annotated[Literal[0, "I", "II"] | None, something("0, I or II")] = None
    """A mode of the second paper: `I`, what receives on one package and what sends on another;
    `II`, what sends beside the busiest that receives; `0`, as `pair: core`. docs/forwarding.md."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> PairPlacementEntry:
        if len(self.model_fields_set) != 1:
            given = "pair and mode" if self.model_fields_set else "no place"
            raise Mistake(f"a placement of {given}", "say one of pair, mode")
        return self


class ForwardingEntry(Entry):
    """A rule for what is forwarded. The first that matches a pair of interfaces decides."""

    name: Annotated[
        str, BeforeValidator(rule_name, json_schema_input_type=text(r"^\S+$", "gateway"))
    ]
    """Unique among the forwarding rules of all files. Shown by `atfnctl pairs`."""
    match: ForwardingMatchEntry
    """Which packets this rule is for."""
    one_way: bool = False
    """Whether packets that are forwarded back are none of this rule's."""
    placement: PairPlacementEntry
    """Where the channels are served. Only those of armed interfaces are moved."""
    order: Literal["strict", "bounded"] = "strict"
    """When packets may get another TX queue: `strict`, only while none of them is forwarded;
    `bounded`, at once, which may reorder those that wait in the old one."""


class TableEntry(Entry):
    """Settings of the Flow-to-Core table."""

    max: Annotated[int, Field(ge=1, le=2**24)] = 16384
    """The most flows in the table. RSS delivers further flows."""


class SettleEntry(Entry):
    """How often flows and queues may move."""

    hold_down: Time = as_written("100ms")
    """The shortest time between two moves of one flow."""
    moves: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Moves of flows and queues per second on one interface, on average; 16 at once."""


class ShareEntry(Entry):
    """The most that one user, or one control group, may have."""

    filters: Percent = 100
    """Percent of the filters that atfnd may use on an interface."""
    queues: Percent = 100
    """Percent of the queues of an interface that may follow threads of this user or group."""
    moves: Percent = 50
    """Percent of `settle.moves`, on each interface; 16 at once."""
    decisions: Annotated[int, Field(ge=10, le=1_000_000)] = 4000
    """Events that are processed per second; 64 at once. Further events wait, and only the last one
    of each socket counts."""


class SharesEntry(Entry):
    """What one user, and one control group, may have if nobody else needs it. If several need
    filters and queues, each gets an equal share, independent of these keys."""

    user: ShareEntry = ShareEntry()
    """The most for one user: the real uid of the thread that uses a socket."""
    cgroup: ShareEntry = ShareEntry()
    """The most for one control group, for all its users together: the same keys."""


def whole_us(time_ns: int) -> int:
    """The kernel counts microseconds."""
    if time_ns % 1000:
        raise Mistake(
            "the kernel counts whole microseconds", f"did you mean {-(-time_ns // 1000)}us?"
        )
    return time_ns


BudgetTime = Annotated[int, Field(gt=0, le=MOST_BUDGET_NS), AfterValidator(whole_us), IN_TIME]


class SoftirqBudgetEntry(Entry):
    """How much one pass of a CPU over its queues may take, until other work has its turn. At least
    one of `packets`, `time`."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [key]} for key in ("packets", "time")]}
    )

    packets: Annotated[
        Annotated[int, Field(ge=1, le=MOST_BUDGET_PACKETS)] | None, something("a number")
    ] = None
    """`net.core.netdev_budget`. It is compared after each poll, and a poll takes 64 packets at
    most: with 2, a pass is one poll."""
    time: Annotated[BudgetTime | None, something("a time")] = None
    """`net.core.netdev_budget_usecs`. The kernel counts it in ticks of its timer, 1 to 10 ms, and
    since 2025 it refuses less than two."""

    @model_validator(mode="after")
    def _says_something(self) -> SoftirqBudgetEntry:
        if not self.model_fields_set:
            raise Mistake("an empty softirq_budget", "say packets, time or both")
        return self


class HostEntry(Entry):
    """Settings that all interfaces of a machine share. Only one file may have them."""

    softirq_budget: Annotated[SoftirqBudgetEntry | None, something("a mapping")] = None
    """How much one pass of the receive softirq may take, on each CPU. Written while an interface is
    armed; without effect on queues that NAPI threads poll (docs/reception.md). Default: as it was
    found."""


class WebEntry(Entry):
    """A page for browsers, which every local user may read: docs/page.md."""

    port: Annotated[int, Field(ge=1024, le=65535)]
    """TCP port on 127.0.0.1 and ::1."""


class DaemonEntry(Entry):
    """Settings of the daemon itself. Only one file may have them."""

    observer: Literal["auto", "bpf", "sock_diag"] = "auto"
    """How sockets are observed: `bpf`; `sock_diag`, by polling; or `auto`, bpf if the kernel allows
    it."""
    on_stop: Literal["keep", "restore"] = "keep"
    """When atfnd stops: `keep` its filters and settings, so that traffic continues as it was and
    the next start takes them over; or `restore` the original state."""
    cpu: ShareOfCore = as_written("1%")
    """The CPU time that atfnd itself may use, in percent of one core over ten seconds. Beyond that
    moves wait, and those that are worth most come first."""
    table: TableEntry = TableEntry()
    """The Flow-to-Core table."""
    settle: SettleEntry = SettleEntry()
    """How often flows may move."""
    shares: SharesEntry = SharesEntry()
    """The most that one user and one control group may have."""
    web: Annotated[WebEntry | None, something("a mapping")] = None
    """A page for browsers that shows what atfnd does; default: no page."""


class PolicyFile(Entry):
    """A policy file of atfnd: which flows are steered, how, and on which interfaces."""

    version: Literal[1]
    """The version of this file's format."""
    about: str = ""
    """The purpose of this policy, in your words."""
    daemon: Annotated[DaemonEntry | None, something("a mapping")] = None
    """Settings of the daemon itself; in one file at most."""
    host: Annotated[HostEntry | None, something("a mapping")] = None
    """Settings that all interfaces of the machine share; in one file at most."""
    interfaces: tuple[InterfaceEntry, ...] = ()
    """Rules for interfaces. After those of all files comes a rule for every interface with armed:
    false."""
    flows: tuple[FlowEntry, ...] = ()
    """Rules for flows. Before those of all files comes `control`, which leaves ports 22 and 179
    alone; after them comes `rest`. A rule of the same name replaces either."""
    forwarding: tuple[ForwardingEntry, ...] = ()
    """Rules for what is forwarded from one interface to another: docs/forwarding.md."""
