# SPDX-License-Identifier: GPL-2.0-or-later
"""What rules need to know of applications, read on this machine: from /proc and sock_diag(7)."""

from __future__ import annotations

from atfnd.model import Policy
from atfnd.observe.processes.process import Processes
from atfnd.observe.sockets.listening import ListenedPorts
from atfnd.policy.match.matching import Sources

__all__ = ["sources"]


def sources(policy: Policy) -> Sources:
    """For one policy: command lines are read only if it asks for them."""
    command = any(rule.commands is not None for rule in policy.flows)
    return Sources(Processes(command=command).of, ListenedPorts().serves)
