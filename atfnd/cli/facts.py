# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd doctor --facts`: this machine, as `atfnd check --for-host` has to know it. And `atfnd
check`: the policy, compared with this machine or with such facts of another one. Writes nothing,
and needs no root: what needs a right that the caller lacks is None.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

from atfnd.daemon.glance import glance
from atfnd.errors import OperatorError
from atfnd.model import FoundInterface, Policy
from atfnd.observe.machine.machine import interfaces
from atfnd.observe.machine.topology import topology
from atfnd.observe.processes.process import occupied
from atfnd.policy.file.host import Host, HostInterface, read_host
from atfnd.policy.file.load import built_in
from atfnd.policy.file.load import check as check_policy
from atfnd.policy.file.problem import printable
from atfnd.policy.match.systemd import units_in

__all__ = ["check", "facts_here", "units_here"]


def facts_here() -> Host:
    """CPUs, interfaces with a device or without, and the users that the user database lists. Names
    that are no text are left out: a policy cannot have them."""
    policy = built_in()  # what an interface can do does not depend on it
    return Host(
        name=printable(os.uname().nodename),
        cpus=os.sysconf("SC_NPROCESSORS_CONF"),
        online=tuple(cpu.index for cpu in topology().cpus if cpu.online),
        interfaces=tuple(
            _interface(each, policy) for each in interfaces() if each.name.isprintable()
        ),
        users=_users(),
        units=units_here(),
    )


def _users() -> dict[str, int]:
    """Of several entries of one name the first counts, as for getpwnam(3)."""
    users: dict[str, int] = {}
    for each in pwd.getpwall():
        if each.pw_name.isprintable():
            users.setdefault(each.pw_name, each.pw_uid)
    return users


def _interface(found: FoundInterface, policy: Policy) -> HostInterface:
    driver, slots = found.driver, None
    if driver is not None:
        with suppress(OperatorError, OSError):  # it went meanwhile, or the kernel refuses a read
            caps = glance(found.name, policy).caps
            driver, slots = caps.driver, caps.filter_slots
    return HostInterface(
        name=found.name,
        driver=driver,
        queues=found.queues,
        filter_slots=slots,
        lower=found.lower,
    )


def check(files: list[Path], config: Path | None, for_host: Path | None) -> None:
    """Print what the policy says, and on stderr what is probably not meant. PolicyError: it has
    mistakes."""
    if files and config is not None:
        raise OperatorError("FILE and --config both say what to read", "name files, or --config")
    if for_host is not None:
        check_policy(config, files, read_host(for_host))
        return
    there = [HostInterface(name=each.name, lower=each.lower) for each in interfaces()]
    check_policy(config, files, interfaces=there, units=units_here())


def units_here() -> tuple[str, ...]:
    """The units of systemd that a process of this machine is in; none, where there is no
    systemd."""
    return tuple(sorted({unit for path in occupied() for unit in units_in(path)}))
