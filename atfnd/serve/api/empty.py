# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a list has no row, in the sentence that `atfnctl` and the page show. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from atfnd.model import Pairs, Status
from atfnd.serve.api.moves import locality_said

__all__ = ["NO_NIC", "no_flows", "no_pairs", "no_queues"]

NO_NIC = "no interface is watched: `atfnctl doctor NIC` says why"
_NO_ROW = "small or young flows, and those that the policy leaves alone, have no row"
_THE_OTHERS = "atfnctl flows --all has the others"


def no_flows(status: Status, nics: int, only: Mapping[str, str]) -> str:
    """`only`: what the query asks for."""
    if only:
        wanted = ", ".join(f"{name} {value}" for name, value in only.items())
        return f"no flow has {wanted}; {_count(status.table_entries, 'flow')} in the table"
    if not nics:
        return NO_NIC
    watched = f"{_count(nics, 'interface')} watched"
    said = ["no misdelivered flow in the table", watched, locality_said(status)]
    remote = any(nic.recent.remote for nic in status.reads or ())
    return "; ".join([*said, *([_NO_ROW] if remote else []), _THE_OTHERS])


def no_queues(nic: str | None) -> str:
    return NO_NIC if nic is None else f"no receive queue of {nic} is known"


def no_pairs(found: Pairs) -> str | None:
    """None: there are pairs."""
    if found.why_not is not None:
        return f"not counted: {found.why_not}"
    where = " where an interface is watched" if found.elsewhere else ""
    return None if found.pairs else f"no packet was forwarded{where} in {found.seconds:.1f} s"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
