# SPDX-License-Identifier: GPL-2.0-or-later
"""How NAPIs are polled: the modes that benches compare, as a policy asks for them, and set by
netdev napi-set where no daemon runs (6.13). docs/reception.md says what a mode is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import Napi
from atfnd.kernel.netlink.netdev import (
    NAPI_DEFER_HARD_IRQS,
    NAPI_GRO_FLUSH_TIMEOUT,
    NAPI_IRQ_SUSPEND_TIMEOUT,
    NetdevFamily,
)

__all__ = ["AUTO", "INTERRUPT", "Polled", "Polling", "dedicated", "deferred", "napis_of"]
__all__ += ["polled_as", "refusal_of_busy", "suspended"]

BUSY = 2  # NETDEV_NAPI_THREADED_BUSY_POLL, 6.19 (c18d4b190a46)
LIMIT_NS = 20_000_000


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


def napis_of(netns: str, device: str) -> list[Napi]:
    """Those of a device, ascending: the queues' order. OperatorError: a kernel before 6.8."""
    with (
        contextlib.closing(Interface(device, netns)) as interface,
        contextlib.closing(NetdevFamily(netns)) as family,
    ):
        found = family.napis(interface.ifindex)
    if found is None:
        raise OperatorError("the kernel lists no NAPIs: it is older than 6.8", exit_code=1)
    return found


class Polled(NamedTuple):
    """A NAPI that a thread polls: `netns` is the path of its namespace, `thread` a pid."""

    netns: str
    ifindex: int
    id: int
    thread: int

    def read(self) -> Napi:
        """As the kernel says it now."""
        with contextlib.closing(NetdevFamily(self.netns)) as family:
            [found] = [each for each in family.napis(self.ifindex) or () if each.id == self.id]
            return found

    def set(self, polling: Polling) -> None:
        """OSError: the kernel refuses (before 6.13)."""
        with contextlib.closing(NetdevFamily(self.netns)) as family:
            for kind, value in (
                (NAPI_DEFER_HARD_IRQS, polling.polls),
                (NAPI_GRO_FLUSH_TIMEOUT, polling.timeout_ns),
                (NAPI_IRQ_SUSPEND_TIMEOUT, polling.suspend_ns),
            ):
                family.set_deferral(self.id, kind, value)


@contextlib.contextmanager
def polled_as(polling: Polling, napis: Sequence[Polled]) -> Iterator[None]:
    """In this mode until the `with` ends, then by interrupts again."""
    try:
        for each in napis:
            each.set(polling)
        yield
    finally:
        for each in napis:
            each.set(INTERRUPT)


def refusal_of_busy(napi: Polled) -> str | None:
    """Why a thread that polls without end cannot be had here, in the kernel's words; None: it can.
    The thread is as before."""
    with contextlib.closing(NetdevFamily(napi.netns)) as family:
        try:
            family.set_polling(napi.id, BUSY)
        except OSError as error:
            return error.strerror
        family.set_polling(napi.id, 1)
    return None
