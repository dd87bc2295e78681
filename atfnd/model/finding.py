# SPDX-License-Identifier: GPL-2.0-or-later
"""What hinders steering, and the facts about the machine that show it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

__all__ = ["CpuUser", "Finding", "FoundInterface", "Level", "LinkFile", "Machine", "Rival"]


class Level(Enum):
    """How much a finding matters."""

    OK = "ok"  # what atfnd can do
    NOTE = "note"  # good to know
    WARNING = "warning"  # steering is worse for it, or may be undone
    BLOCKER = "blocker"  # atfnd steers nothing until it ends


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing `atfnctl doctor` says."""

    nic: str | None  # None: the machine
    level: Level
    what: str
    advice: str | None = None  # None: there is nothing to do


class Rival(NamedTuple):
    """A daemon that moves interrupts, CPUs or threads, too."""

    name: str
    pid: int
    banned_irqs: frozenset[int] = frozenset()  # irqbalance was asked to leave these alone
    profile: str | None = None  # of tuned
    answers: bool = True  # False: an irqbalance that said nothing, and its options are all we know
    moves: tuple[str, ...] | None = None  # by which tuned moves interrupts; None: not known


class LinkFile(NamedTuple):
    """A file that has interrupts, queues or filters of interfaces set when they appear: of systemd
    (systemd.link(5)) or NetworkManager (nm-settings-keyfile(5))."""

    path: str
    settings: tuple[str, ...]  # `IRQAffinityPolicy=spread`
    interfaces: frozenset[str]  # it is the file of these
    by: str = "systemd-udevd"


class CpuUser(NamedTuple):
    """A process that uses some CPU."""

    pid: int
    comm: str
    unit: str | None  # the service or scope of systemd that it is in


class FoundInterface(NamedTuple):
    """A network device of our namespace with hardware behind it and several receive queues."""

    name: str
    driver: str | None
    queues: int
    lower: tuple[str, ...] = ()  # those that it stands on: it is a bond, a VLAN, ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What surrounds the NICs. None: the kernel did not say."""

    rivals: tuple[Rival, ...] = ()
    link_files: tuple[LinkFile, ...] = ()
    interfaces: tuple[FoundInterface, ...] = ()
    missing_capabilities: frozenset[str] = frozenset()  # of those we use: `CAP_NET_ADMIN`
    lockdown: str | None = None  # none, integrity or confidentiality
    btf: bool = True
    netdev_family: bool = True  # generic netlink: queue -> NAPI -> IRQ
    ethtool_family: bool = True  # generic netlink: RSS, channels, notifications
    busy_polling: tuple[str, ...] = ()  # sysctls that let every socket do it: `net.core.busy_poll`
