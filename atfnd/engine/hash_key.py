# SPDX-License-Identifier: GPL-2.0-or-later
"""The key of a NIC's RSS hash: one by which both directions of a flow have the same hash, where the
policy asks for it (`rss_hash`). Pure.

Interfaces with such a key and as many queues bring both directions of what they forward to queues
of one number. Another key gives most flows that have no filter another queue at once, and nothing
waits for the old ones to drain. So it is written once, when no move is live (`move.device`), and
only for an operator who asks. A NIC whose hash is symmetric already gets none: with symmetric-xor
such a key would bring every flow to one queue. What the key does to the spread over queues is
judged by counters; a key that spoils it is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atfnd.model import Action, NicView, Plan
from atfnd.model.nic import RSS_KEY
from atfnd.model.reason import Code, Why
from atfnd.model.rss_hash import symmetric_transform
from atfnd.model.toeplitz import symmetric_key

__all__ = ["Spread", "due", "why_poor"]

MANY = 10_000  # packets, for a judgement
POOR, FAIR = 0.9, 0.7  # shares of the busiest queue: with our key, and before


@dataclass(slots=True)
class Spread:
    """What each queue had received when the present key was first seen, and the share of the
    busiest one until then."""

    key: str | None = None
    packets: tuple[int, ...] = ()
    before: float = 0.0


def due(nic: NicView, originals: Mapping[str, str]) -> Plan:
    """The key to be written, or put back. `originals` are the settings that we wrote, with their
    values before that. Empty: it is right, or not ours to write."""
    now = nic.settings.get(RSS_KEY)
    if now is None or RSS_KEY in nic.manual or not nic.armed:
        return ()
    ours = symmetric_key(len(now) // 2).hex()
    transform = symmetric_transform(nic, seen=now != ours)  # another key has to be proven anew
    why_not = nic.poor_key
    if transform is not None and why_not is None:
        why_not = Code.SYMMETRIC_ALREADY(transform.value)
    if nic.symmetric_hash and why_not is None:
        value, why = ours, Code.SYMMETRIC()
    else:
        value = originals.get(RSS_KEY, now)
        why = why_not if why_not is not None and nic.symmetric_hash else Code.SYMMETRIC_UNASKED()
    return () if value == now else (Action.of_setting(nic.name, RSS_KEY, value, why),)


def why_poor(nic: NicView, spread: Spread) -> Why | None:
    """Why the key that we wrote is to be taken back: it brings nearly all packets to one queue, and
    the key before did not. None: it is not, or that cannot be judged yet."""
    now = nic.settings.get(RSS_KEY)
    counted = [each.packets if each.by_rss is None else each.by_rss for each in nic.stats.queues]
    packets = tuple(each for each in counted if each is not None)
    if now is None or nic.rss is None or len(packets) < len(counted) or len(set(nic.rss.table)) < 2:
        return None
    anew = now != spread.key or len(packets) != len(spread.packets)
    came = () if anew else tuple(a - b for a, b in zip(packets, spread.packets, strict=True))
    if anew or min(came, default=0) < 0:
        spread.key, spread.packets = now, packets
        spread.before = max(packets, default=0) / sum(packets) if sum(packets) >= MANY else 0.0
        return None
    if now != symmetric_key(len(now) // 2).hex() or sum(came) < MANY or spread.before > FAIR:
        return None
    share = max(came) / sum(came)
    if share < POOR:
        return None
    return Code.KEY_POOR(share, sum(came))
