# SPDX-License-Identifier: GPL-2.0-or-later
"""The key of a NIC's RSS hash: one by which both directions of a flow have the same hash, where the
policy asks for it (`rss_hash`). Pure.

Interfaces with such a key and as many queues bring both directions of what they forward to queues
of one number. Another key gives most flows that have no filter another queue at once, and nothing
waits for the old ones to drain. So it is written once, when no move is live (`move.device`), and
only for an operator who asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from atfnd.model import Action, NicView, Plan
from atfnd.model.nic import RSS_KEY
from atfnd.model.toeplitz import symmetric_key

__all__ = ["due"]


def due(nic: NicView, originals: Mapping[str, str]) -> Plan:
    """The key to be written, or put back. `originals` are the settings that we wrote, with their
    values before that. Empty: it is right, or not ours to write."""
    now = nic.settings.get(RSS_KEY)
    if now is None or RSS_KEY in nic.manual or not nic.armed:
        return ()
    if nic.symmetric_hash:
        value = symmetric_key(len(now) // 2).hex()
        why = "both directions of a flow come to queues of one number"
    else:
        value, why = originals.get(RSS_KEY, now), "no rule asks for a symmetric hash any more"
    return () if value == now else (Action.of_setting(nic.name, RSS_KEY, value, why),)
