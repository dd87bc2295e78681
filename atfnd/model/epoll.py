# SPDX-License-Identifier: GPL-2.0-or-later
"""An epoll of an application, which is to prefer busy polling: as IRQ suspension needs it."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model.flow import FlowKey

__all__ = ["EpollId", "EpollParams", "EpollUser"]

_KIND = "epoll"
_BUDGET = 64  # packets a poll, as a NAPI's own polls; the kernel's default is 8


class EpollId(NamedTuple):
    """A descriptor of a process, for as long as that process lives."""

    pid: int
    born: int  # when the process was started, in ticks after boot
    fd: int

    @property
    def setting(self) -> str:
        """Its `EpollParams` among what we changed."""
        return f"{_KIND}:{self.pid}:{self.born}:{self.fd}"

    @classmethod
    def of(cls, setting: str) -> EpollId:
        """ValueError: the setting is no epoll's."""
        kind, *numbers = setting.split(":")
        pid, born, fd = map(int, numbers)
        if kind != _KIND:
            raise ValueError(f"not an epoll's: {setting}")
        return cls(pid, born, fd)


class EpollParams(NamedTuple):
    """How an epoll busy-polls (struct epoll_params, linux/eventpoll.h)."""

    busy_poll_us: int
    busy_poll_budget: int  # packets; 0: the kernel's default
    prefer_busy_poll: bool

    @property
    def assisted(self) -> EpollParams:
        """It takes part in IRQ suspension. How long it spins stays the application's choice."""
        return EpollParams(self.busy_poll_us, self.busy_poll_budget or _BUDGET, True)

    def __str__(self) -> str:
        return f"{self.busy_poll_us} {self.busy_poll_budget} {int(self.prefer_busy_poll)}"

    @classmethod
    def of(cls, text: str) -> EpollParams:
        """ValueError: it is not as `str` writes them."""
        busy_poll_us, budget, prefers = map(int, text.split())
        return cls(busy_poll_us, budget, bool(prefers))


class EpollUser(NamedTuple):
    """A process whose epolls a rule wants to prefer busy polling: those that watch one of its
    flows."""

    pid: int
    nic: str
    rule_name: str
    keys: tuple[FlowKey, ...]
