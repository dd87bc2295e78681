# SPDX-License-Identifier: GPL-2.0-or-later
"""Names in a policy file: of processes, users, control groups, units and interfaces.

Most are globs (`policy.match.globs`), several separated by `|`. A glob that no name can match is a
Mistake, also where it excludes. A user is looked up in the user database (getpwnam(3)), or in the
facts of the machine that the policy is for; nothing else is read.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable

from pydantic import ValidationInfo

from atfnd.policy.file.host import Host
from atfnd.policy.file.problem import Mistake, did_you_mean, said
from atfnd.policy.match.globs import listed, sides
from atfnd.policy.match.systemd import UNIT_TYPES

__all__ = ["cgroups", "commands", "drivers", "interfaces", "processes", "units", "user"]

COMM_LEN = 15  # TASK_COMM_LEN - 1, include/linux/sched.h
NO_UID = 2**32 - 1  # (uid_t)-1 is no user, setresuid(2)
MOUNT = "/fs/cgroup/"  # below sysfs


def processes(value: object) -> tuple[str, ...]:
    """Globs on a thread's name."""
    globs = _globs(value, "a process name")
    for glob in _bare(globs):
        shortest = re.sub(r"\[[^]]+\]", "?", glob).replace("*", "")
        if len(shortest.encode()) > COMM_LEN:
            raise Mistake(
                f"`{glob}` can match no process: the kernel keeps {COMM_LEN} bytes of a name",
                f"did you mean {glob.encode()[:COMM_LEN].decode(errors='ignore')}?",
            )
    return globs


def commands(value: object) -> tuple[str, ...]:
    """Globs on a whole command line."""
    return _globs(value, "a command line")


def interfaces(value: object) -> tuple[str, ...]:
    """Globs on an interface's name."""
    return _globs(value, "an interface name")


def drivers(value: object) -> tuple[str, ...]:
    """Globs on the name of an interface's driver."""
    return _globs(value, "a driver name")


def cgroups(value: object) -> tuple[str, ...]:
    """Globs on a control group's path."""
    globs = _globs(value, "a cgroup path")
    for glob in _bare(globs):
        meant = "/" + glob.rpartition(MOUNT)[2].strip("/")
        if MOUNT in glob or glob[0] not in "/*?[":
            message = f"`{glob}` can match no cgroup: its path begins with / below the mount"
            raise Mistake(message, f"did you mean {meant}?")
        if glob.endswith("/") and glob != "/":
            message = f"`{glob}` can match no cgroup: no path ends with /"
            raise Mistake(message, f"did you mean {meant} or {meant}/*?")
    return globs


def units(value: object) -> tuple[str, ...]:
    """Globs on the name of a systemd unit, its type included."""
    globs = _globs(value, "a unit name")
    for glob in _bare(globs):
        if not glob.endswith(UNIT_TYPES) and glob[-1] not in "*?]":
            types = ", ".join(UNIT_TYPES)
            message = f"`{glob}` can match no unit with processes: their names end with {types}"
            raise Mistake(message, f"did you mean {glob}.service?")
        if "/" in glob:
            message = f"`{glob}` can match no unit: a name has no / in it"
            raise Mistake(message, f"did you mean {glob.rpartition('/')[2]}?")
    return globs


def user(value: object, info: ValidationInfo) -> int:
    """The uid of a name, or a uid. The context is the Host that the policy is for; None: this
    machine."""
    if type(value) is int:
        if not 0 <= value < NO_UID:
            raise Mistake(f"no such uid: `{value}`", f"uids are 0 to {NO_UID - 1}")
        return value
    if not isinstance(value, str) or not value:
        raise Mistake(f"expected a user name or a uid, got {said(value)}")
    host: Host | None = info.context
    uid = _uid_here(value) if host is None else host.users.get(value)
    if uid is None:
        names = [each.pw_name for each in pwd.getpwall()] if host is None else host.users
        where = "here" if host is None else f"on {host.name}"
        hint = did_you_mean(value, names) or "a uid is taken as it is"
        raise Mistake(f"there is no user `{value}` {where}", hint)
    return uid


def _uid_here(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # ValueError: a null character
        return None


def _globs(value: object, wanted: str) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise Mistake(f"expected {wanted}, got {said(value)}", "quote it")
    globs = listed(value)
    if not all(globs):
        raise Mistake(f"{said(value)} has an empty name in it" if value else "an empty name")
    if not all(glob.strip("!") for glob in globs):
        raise Mistake(f"{said(value)} excludes nothing", "write a name after the `!`: eth*|!eth0")
    return globs


def _bare(globs: Iterable[str]) -> list[str]:
    """Without the `!` of those that exclude."""
    include, exclude = sides(globs)
    return include + exclude
