# SPDX-License-Identifier: GPL-2.0-or-later
"""A control group with processes in it, as far as its cpuset is concerned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Cgroup", "CgroupId", "HeldCpuset", "Member", "Pin"]


class CgroupId(NamedTuple):
    """One cgroup for as long as it exists: a later one of the same path has another number."""

    path: str  # from the root of the hierarchy, `/system.slice/a.service`
    number: int  # of its directory; never used twice (kernfs)

    @property
    def setting(self) -> str:
        """Its `cpuset.cpus` among what we changed."""
        return f"cpuset.cpus:{self.number}:{self.path}"

    @classmethod
    def of(cls, setting: str) -> CgroupId:
        """ValueError: the setting is no cgroup's."""
        kind, number, path = setting.split(":", 2)
        if kind != "cpuset.cpus":
            raise ValueError(f"not a cgroup's: {setting}")
        return cls(path, int(number))


class HeldCpuset(NamedTuple):
    """A `cpuset.cpus` that we have written, or were about to write."""

    original: str  # before that
    now: str | None  # None: the cgroup is gone
    ours: bool  # no other program has written it since


class Member(NamedTuple):
    """A process of a cgroup."""

    pid: int
    parent: int
    comm: str


class Pin(NamedTuple):
    """A thread whose own affinity is narrower than its cpuset."""

    tid: int
    comm: str
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup of version 2. None: it has no such file."""

    id: CgroupId
    cpus: str | None  # cpuset.cpus: what it asks for, `` for whatever its parent has
    effective: frozenset[int]  # cpuset.cpus.effective: what it has
    kind: str | None  # cgroup.type
    partition: str | None  # cpuset.cpus.partition
    children: tuple[str, ...]  # names of the cgroups in it
    members: tuple[Member, ...]  # its processes
    pinned: tuple[Pin, ...] = ()
