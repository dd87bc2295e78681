# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd doctor --facts`: this machine, as `atfnd check --for-host` has to know it. Writes nothing,
and needs no root: what needs a right that the caller lacks is None.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress

from atfnd.cli.check import units_here
from atfnd.daemon.glance import glance
from atfnd.errors import OperatorError
from atfnd.model import FoundInterface, Policy
from atfnd.observe.machine.machine import interfaces
from atfnd.observe.machine.topology import topology
from atfnd.policy.file.host import Host, HostInterface
from atfnd.policy.file.load import built_in
from atfnd.policy.file.problem import printable

__all__ = ["facts_here"]


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
