# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd doctor`: what atfnd could do on this machine, without a daemon. Writes nothing.

Attaches the BPF observer for a moment, because only that proves that the kernel takes it. What
needs a right that the caller lacks is left out, and the report says so.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from atfnd.ctl.tables import say_findings
from atfnd.daemon.glance import glance
from atfnd.daemon.wanted_reports import asked
from atfnd.diagnose.dedicated import examine_dedicated
from atfnd.diagnose.doctor import examine
from atfnd.diagnose.machine import examine_machine
from atfnd.errors import OperatorError
from atfnd.model import Finding, Level, NicView, Policy
from atfnd.nic.driver import lab_is_there
from atfnd.observe.machine.machine import machine
from atfnd.observe.machine.topology import CpuWatch, topology
from atfnd.observe.processes.cpuset import cpu_users
from atfnd.observe.sockets.choose import choose
from atfnd.policy.file.load import load
from atfnd.serve.api.findings import doctor_view

__all__ = ["doctor"]

_LAB = "lab:lab"  # of `atfnd lab up` without a name
_SOCKET = Path("/run/atfnd/atfnd.sock")


def doctor(nic: str | None, as_json: bool) -> bool:
    """Print the findings on one NIC, or on every interface with a device, and on the machine. True:
    nothing prevents steering. OperatorError: no such interface, or it cannot be read."""
    policy, around, cpus = load(), machine(), CpuWatch().read()
    views, findings = list[NicView](), list[Finding]()
    names = [each.name for each in around.interfaces] if nic is None else [nic]
    if nic is None and lab_is_there(_LAB):
        names.append(_LAB)
    for name in names:
        try:
            view = glance(name, policy)
        except OperatorError as mistake:
            if nic is not None:
                raise
            findings.append(Finding(name, Level.NOTE, mistake.message))
            continue
        except OSError as refusal:
            why = f"it cannot be read: {refusal.strerror}"
            if nic is not None:
                raise OperatorError(f"{name}: {why}", exit_code=1) from refusal
            findings.append(Finding(name, Level.NOTE, why))
            continue
        views.append(view)
        findings += examine(view, cpus, around, watched=None)
    if not names:
        what = "no interface here has a device behind it and several receive queues"
        advice = "atfnd lab up, to try atfnd"
        findings.append(Finding(None, Level.BLOCKER, what, advice))
    if os.geteuid() != 0:  # a daemon would have other rights than the caller
        around = replace(around, missing_capabilities=frozenset())
    findings += examine_machine(around, _observer(policy), None if nic is not None else names)
    users = [each for each in cpu_users(policy.dedicated()) if each.pid != os.getpid()]
    findings += examine_dedicated(policy.dedicated(), users, cpus)
    findings += _limits()
    answer = doctor_view(views, findings)
    print(json.dumps(answer, indent=2)) if as_json else say_findings(answer)
    return bool(answer["clear"])


def _observer(policy: Policy) -> tuple[str, str] | None:
    """As the daemon would choose it; None: the caller may not try."""
    if os.geteuid() != 0:
        return None
    observer, why = choose(policy.observer, asked(policy, topology()))
    with closing(observer):
        return observer.name, why


def _limits() -> list[Finding]:
    """What this report cannot see."""
    found = []
    if os.geteuid() != 0:
        what = "whether the kernel takes the BPF observer was not tried: that needs root"
        found.append(Finding(None, Level.NOTE, what, "run atfnd doctor as root"))
    if _SOCKET.exists():
        what = "a daemon runs, or ran: what it does now is not in this report"
        found.append(Finding(None, Level.NOTE, what, "atfnctl doctor"))
    return found
