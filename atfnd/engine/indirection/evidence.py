# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC's RSS hash is, proven by flows whose queue is seen. Pure.

Only a flow counts that no filter leads. One that contradicts every hash that is left makes the hash
unknown for this life of the NIC: until its queues are made anew, or its key or fields change.
"""

from __future__ import annotations

from dataclasses import replace

from atfnd.model import Filter, FlowKey, HashSeen, NicFacts, NicView, SocketSeen, SteeringMethod
from atfnd.model.rss_hash import AGREE, is_proven, type_of
from atfnd.model.toeplitz import rss_queue, rss_value, why_not_computed

__all__ = ["same_hash", "seen"]

MOST = 4 * AGREE  # hashes that are remembered: flows of one hash count once


def seen(event: SocketSeen, nic: NicView, catches: bool) -> HashSeen | None:
    """What is known of the hash after a flow was seen without a filter of its own. `catches`: a
    port's filter may lead it. None: nothing new."""
    queue = next((each.index for each in nic.queues if each.napi_id == event.napi_id), None)
    rss, of = nic.rss, type_of(event.key)
    if rss is None or queue is None or event.napi_id is None or len(set(rss.table)) < 2:
        return None
    unseen = nic.caps.filters and nic.foreign is None
    if unseen or catches or any(_may_catch(each, event.key) for each in nic.theirs):
        return None
    if event.tunnel is not None or why_not_computed(rss, of) is not None:
        return None
    known = nic.hash_seen.get(of) or HashSeen(rss.transforms)
    computed = {each: rss_queue(rss, event.key, each) for each in known.fits}
    if not computed or None in computed.values():
        return None
    fits = tuple(each for each in known.fits if computed[each] == queue)
    agree, chance, value = known.agree, known.chance, rss_value(rss, event.key)
    new_one = value is not None and value not in agree and len(agree) < MOST
    if fits and new_one and value is not None and not is_proven(known):
        share = rss.table.count(queue) / len(rss.table)
        agree, chance = agree | {value}, chance * share
    new = HashSeen(fits, agree, chance)
    return None if new == known else new


def _may_catch(theirs: Filter, key: FlowKey) -> bool:
    match = theirs.match
    return match is None or (
        match.family == key.family
        and match.protocol in (None, key.protocol)
        and match.src_port in (None, key.remote_port)
        and match.dst_port in (None, key.local_port)
    )


def same_hash(before: NicView, now: NicFacts) -> bool:
    """What was proven still holds. A table that another program wrote may have been read late, so
    that a flow contradicted it."""
    if [q.napi_id for q in before.queues] != [q.napi_id for q in now.queues]:
        return False
    if before.rss is None or now.rss is None:
        return before.rss is now.rss
    by_us = before.method is SteeringMethod.RSS
    was = replace(before.rss, table=now.rss.table) if by_us else before.rss
    return was == now.rss
