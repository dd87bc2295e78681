# SPDX-License-Identifier: GPL-2.0-or-later
"""How packets are taken out of a receive queue's ring: what begins a poll, and who polls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["Reception", "ReceptionMode", "by_any_name", "of_reception", "other_name"]

DEFER, TIMEOUT, SUSPEND = "defer-hard-irqs", "gro-flush-timeout", "irq-suspend-timeout"
OF_NAPI = DEFER, TIMEOUT, SUSPEND  # settings, of a queue with `:N`
THREAD = "napi-thread"  # of a queue with `:N`
BORROWED_THREAD = "threaded"  # the same switch, as moves borrow it
SOFTIRQ, OWN_THREAD, BUSY_THREAD = "0", "1", "2"  # its values


def of_reception(setting: str) -> bool:
    """A setting of this subject."""
    return setting.partition(":")[0] in (*OF_NAPI, THREAD)


def other_name(setting: str) -> str | None:
    """The setting that is the same switch of a NAPI's thread: a policy asks for one by
    `napi-thread:N`, and moves borrow one by `threaded:N`."""
    kind, colon, number = setting.partition(":")
    other = {THREAD: BORROWED_THREAD, BORROWED_THREAD: THREAD}.get(kind)
    return None if other is None else other + colon + number


def by_any_name(settings: Iterable[str]) -> frozenset[str]:
    """These settings, by every name that each has."""
    named = frozenset(settings)
    return named | {other for each in named if (other := other_name(each)) is not None}


class ReceptionMode(Enum):
    """Three loops can drive a NAPI (Documentation/networking/napi.rst): interrupt, timer, and a
    poller that does not wait for either."""

    LEAVE = "leave"  # as it was found
    INTERRUPT = "interrupt"  # each batch begins with an interrupt
    DEFERRED = "deferred"  # a timer polls until some polls were empty; then the interrupt
    SUSPENDED = "suspended"  # the application's epoll polls while it finds events; else as deferred
    DEDICATED = "dedicated"  # a NAPI thread polls with a pause, until it has been idle for long
    BUSY = "busy"  # a NAPI thread polls without end
    AUTO = "auto"  # one of these, as measured (`engine.trials`)


@dataclass(frozen=True, slots=True)
class Reception:
    """What a policy asks for. `polls` empty ones, `timeout_ns` apart, until the interrupt is taken
    again; an epoll may keep it off for `limit_ns`."""

    mode: ReceptionMode = ReceptionMode.LEAVE
    timeout_ns: int = 0
    polls: int = 0
    limit_ns: int = 0

    def __str__(self) -> str:
        """`deferred 50 us x 100`."""
        if not self.timeout_ns:
            return self.mode.value
        said = f"{self.mode.value} {_in_us(self.timeout_ns)} x {self.polls}"
        return f"{said}, at most {_in_us(self.limit_ns)}" if self.limit_ns else said

    @property
    def values(self) -> Mapping[str, str]:
        """Of the settings of a NAPI, in the order in which they are written: the timeout alone
        defers nothing."""
        return {
            TIMEOUT: str(self.timeout_ns),
            DEFER: str(self.polls),
            SUSPEND: str(self.limit_ns),
        }

    @property
    def polling(self) -> str | None:
        """What has to poll: a value of THREAD. None: whatever does."""
        match self.mode:
            case ReceptionMode.DEDICATED:
                return OWN_THREAD
            case ReceptionMode.BUSY:
                return BUSY_THREAD
            case _:
                return None

    @classmethod
    def found(cls, settings: Mapping[str, str], queue: int) -> Reception | None:
        """What is set up on a queue, by anybody. None: the kernel does not say."""
        said = {kind: settings.get(f"{kind}:{queue}", settings.get(kind)) for kind in OF_NAPI}
        polls, timeout_ns = said[DEFER], said[TIMEOUT]
        thread = settings.get(f"{THREAD}:{queue}", settings.get(THREAD))
        if thread == BUSY_THREAD:
            return cls(ReceptionMode.BUSY)
        if polls is None or timeout_ns is None:
            return None
        if "0" in (polls, timeout_ns):
            return cls(ReceptionMode.INTERRUPT)
        limit_ns = int(said[SUSPEND] or 0)
        mode = ReceptionMode.SUSPENDED if limit_ns else ReceptionMode.DEFERRED
        return cls(mode, int(timeout_ns), int(polls), limit_ns)


def _in_us(ns: int) -> str:
    return f"{ns / 1000:g} us"
