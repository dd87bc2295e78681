# SPDX-License-Identifier: GPL-2.0-or-later
"""What Tab offers where a verb takes a name: of an interface, a state, a kind of event, a rule.

Asks the daemon, over the socket that the line names. Without a daemon nothing is offered, but for
names of this machine's interfaces where no daemon is needed.
"""

from __future__ import annotations

import socket
from contextlib import suppress

import typer

from atfnd.ctl.client import Client
from atfnd.errors import OperatorError

__all__ = ["event_kinds", "flow_states", "interfaces_here", "nics", "rules"]


def nics(ctx: typer.Context) -> list[str]:
    """Interfaces that the daemon observes."""
    with suppress(OperatorError):
        return [row["nic"] for row in _client(ctx).get("/v1/nics")["nics"]]
    return []


def event_kinds(ctx: typer.Context) -> list[str]:
    """Of the events that the daemon retains."""
    with suppress(OperatorError):
        return sorted({row["kind"] for row in _client(ctx).events()})
    return []


def flow_states() -> list[str]:
    from atfnd.model import FlowState, SocketState  # fmt: skip

    return [each.value for each in (*FlowState, *SocketState)]


def rules(ctx: typer.Context) -> list[str]:
    """Rules for flows of the policy in force."""
    with suppress(OperatorError):
        return [row["rule"] for row in _client(ctx).get("/v1/policy")["flows"]]
    return []


def interfaces_here() -> list[str]:
    """Of this machine's namespace, observed or not."""
    with suppress(OSError):
        return [name for _, name in socket.if_nameindex() if name != "lo"]
    return []


def _client(ctx: typer.Context) -> Client:
    return Client(ctx.params["socket"])
