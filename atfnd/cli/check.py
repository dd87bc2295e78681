# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd check`: the policy, compared with this machine, or with the facts of another one."""

from __future__ import annotations

from pathlib import Path

from atfnd.errors import OperatorError
from atfnd.observe.machine.machine import interfaces
from atfnd.observe.processes.process import occupied
from atfnd.policy.file.host import HostInterface, read_host
from atfnd.policy.file.load import check as check_policy
from atfnd.policy.match.systemd import units_in

__all__ = ["check", "units_here"]


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
