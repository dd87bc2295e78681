# SPDX-License-Identifier: GPL-2.0-or-later
"""How NAPIs are polled: the modes that benches compare, as a policy asks for them, and set by
netdev napi-set where no daemon runs.

Reads and writes defer-hard-irqs, gro-flush-timeout and irq-suspend-timeout of single NAPIs (6.13,
Documentation/netlink/specs/netdev.yaml), and reads `threaded`. docs/reception.md says what a mode
is.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from atfnd.kernel.netlink.requests import DUMP, GenericFamily, attribute, number

__all__ = [
    "AUTO",
    "DEDICATED",
    "INTERRUPT",
    "Napis",
    "Polling",
    "dedicated",
    "deferred",
    "polled_as",
]
__all__ += ["refusal_of_busy", "suspended"]

NAPI_GET, NAPI_SET = 11, 14
IFINDEX, ID, PID = 1, 2, 4
POLLS, TIMEOUT, SUSPEND, THREADED = 5, 6, 7, 8
BUSY = 2  # NETDEV_NAPI_THREADED_BUSY_POLL, 6.19 (c18d4b190a46)
LIMIT_NS = 20_000_000

_u32, _u64 = struct.Struct("=I"), struct.Struct("=Q")


class Polling(NamedTuple):
    """A mode. After `polls` empty polls, `timeout_ns` apart, the interrupt comes back; 0: at once.
    `suspend_ns`: while an application polls, which it has to prefer. `reception`: what a policy
    says for it. `chooses_s`: so long it may take until atfnd has chosen one."""

    name: str
    polls: int = 0
    timeout_ns: int = 0
    suspend_ns: int = 0
    reception: str = "interrupt"
    chooses_s: float = 0.0

    @property
    def prefers(self) -> bool:
        """The application's epoll prefers busy polling."""
        return bool(self.suspend_ns or self.chooses_s)


INTERRUPT = Polling("interrupt")
AUTO = Polling("auto", reception="auto", chooses_s=90.0)


def deferred(us: int, polls: int = 100) -> Polling:
    reception = f"{{ deferred: {{ timeout: {us}us, polls: {polls} }} }}"
    return Polling(f"deferred {us} us", polls, us * 1000, reception=reception)


def suspended(us: int, polls: int = 100) -> Polling:
    limit = f"limit: {LIMIT_NS // 1_000_000}ms"
    reception = f"{{ suspended: {{ timeout: {us}us, polls: {polls}, {limit} }} }}"
    return Polling(f"suspended {us} us", polls, us * 1000, LIMIT_NS, reception)


def dedicated(pause_us: int, idle_after_s: float = 1.0) -> Polling:
    """As the fourth paper's protocol core: polls with a pause between them until it was idle for
    so long."""
    polls = round(idle_after_s * 1e6 / pause_us)
    idle = f"idle_after: {idle_after_s * 1000:.0f}ms"
    reception = f"{{ dedicated: {{ pause: {pause_us}us, {idle} }} }}"
    return Polling(f"dedicated {pause_us} us", polls, pause_us * 1000, reception=reception)


DEDICATED = dedicated(100)


class Napis(NamedTuple):
    """The NAPIs of one interface, ascending: the queues' order."""

    netns: str  # path of its namespace
    ids: tuple[int, ...]
    threads: tuple[int, ...]  # pid of each one's thread

    @classmethod
    def of(cls, netns: str, ifindex: int) -> Napis:
        """Those that a thread polls. OSError: a kernel before 6.8."""
        with contextlib.closing(GenericFamily("netdev", netns)) as netdev:
            found = netdev.request(NAPI_GET, attribute(IFINDEX, _u32.pack(ifindex)), DUMP)
        pairs = sorted(
            (number(each[ID]) or 0, number(each[PID]) or 0) for each in found if PID in each
        )
        return cls(netns, *zip(*pairs, strict=True))

    def values(self) -> list[tuple[int | None, ...]]:
        """polls, timeout_ns, suspend_ns and `threaded` of each, as the kernel says them now."""
        with contextlib.closing(GenericFamily("netdev", self.netns)) as netdev:
            return [_values(netdev, each) for each in self.ids]

    def set(self, polling: Polling) -> None:
        """OSError: the kernel refuses (before 6.13)."""
        with contextlib.closing(GenericFamily("netdev", self.netns)) as netdev:
            for each in self.ids:
                _set(netdev, each, polling)


def _values(netdev: GenericFamily, napi: int) -> tuple[int | None, ...]:
    [found] = netdev.request(NAPI_GET, attribute(ID, _u32.pack(napi)))
    return tuple(number(found.get(kind)) for kind in (POLLS, TIMEOUT, SUSPEND, THREADED))


def _set(netdev: GenericFamily, napi: int, polling: Polling) -> None:
    request = attribute(ID, _u32.pack(napi))
    request += attribute(POLLS, _u32.pack(polling.polls))
    request += attribute(TIMEOUT, _u64.pack(polling.timeout_ns))
    request += attribute(SUSPEND, _u64.pack(polling.suspend_ns))
    netdev.request(NAPI_SET, request)


@contextlib.contextmanager
def polled_as(polling: Polling, napis: Sequence[Napis]) -> Iterator[None]:
    """In this mode until the `with` ends, then by interrupts again."""
    try:
        for each in napis:
            each.set(polling)
        yield
    finally:
        for each in napis:
            each.set(INTERRUPT)


def refusal_of_busy(napis: Napis) -> str | None:
    """Why a thread that polls without end cannot be had here, in the kernel's words; None: it can.
    The thread is as before."""
    request = attribute(ID, _u32.pack(napis.ids[0]))
    with contextlib.closing(GenericFamily("netdev", napis.netns)) as netdev:
        try:
            netdev.request(NAPI_SET, request + attribute(THREADED, _u32.pack(BUSY)))
        except OSError as error:
            return error.strerror
        netdev.request(NAPI_SET, request + attribute(THREADED, _u32.pack(1)))
    return None
