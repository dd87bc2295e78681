# SPDX-License-Identifier: GPL-2.0-or-later
"""What one user, and one control group, may have of a NIC: filters, queues, moves. Pure.

A tenant is a user (uid) or a control group, and each thread that uses a flow, or that listens on a
port, belongs to one of each. What a tenant does not use is free for others. Where two want the
same, the one that has less of it comes first: a flow whose tenants hold `n` takes from tenants that
hold `n + 2` or more, so that all end with equal shares, however many flows one of them opens first.
Tenants that two flows have in common do not count between them. Within one tenant, what a filter is
worth decides (`engine.filters.budget`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from atfnd.model import Flow, Policy, Share, Thread

__all__ = [
    "MoveRates",
    "Tenant",
    "fair",
    "held_by",
    "may_take",
    "move_every_ns",
    "tenants_of",
    "whose",
]

Tenant = tuple[str, int | None]  # of what kind, and its uid or cgroup id

_BURST = 16  # moves at once
_FAR_NS = 10_000_000_000  # no move has its time so far ahead


def tenants_of(thread: Thread | None) -> tuple[Tenant, ...]:
    """The tenants of a thread. All unknown threads count as one user."""
    if thread is None:
        return (("user", None),)
    user: Tenant = "user", thread.uid
    return (user,) if thread.cgroup is None else (user, ("cgroup", thread.cgroup))


def whose(flow: Flow) -> tuple[Tenant, ...]:
    """The tenants that the flow's filter counts for: of a port's filter, those of its listeners."""
    return tenants_of(flow.listener if flow.key.listens else flow.thread)


def held_by(tenants: Iterable[Tenant], held: Mapping[Tenant, int]) -> int:
    """How much the tenant holds that holds most."""
    return max((held.get(each, 0) for each in tenants), default=0)


def fair(newcomer: Iterable[Tenant], other: Iterable[Tenant], held: Mapping[Tenant, int]) -> bool:
    """A newcomer that is worth more may take from the other one: it will not hold more than the
    other one did."""
    mine, theirs = {*newcomer} - {*other}, {*other} - {*newcomer}
    return not mine or held_by(mine, held) + 1 <= held_by(theirs, held)


def may_take(
    newcomer: Iterable[Tenant], other: Iterable[Tenant], held: Mapping[Tenant, int]
) -> bool:
    """A newcomer may take from the other one, whatever it is worth: the other one holds more than
    its share."""
    mine, theirs = {*newcomer} - {*other}, {*other} - {*newcomer}
    return held_by(mine, held) + 2 <= held_by(theirs, held)


class MoveRates:
    """The moves of a NIC that each tenant may have in a second: a bucket each, as `move.bucket`."""

    def __init__(self) -> None:
        self._arrival_ns: dict[Tenant, int] = {}

    def take(self, tenants: Iterable[Tenant], policy: Mapping[str, int], now_ns: int) -> int:
        """When a tenant's next move is allowed: `now_ns` or later. The move is taken from its
        bucket. `policy` says how long it takes to earn a move, by the kind of tenant; a kind that
        is missing has no limit."""
        asked = [each for each in tenants if each[0] in policy]
        at_ns = self.next_ns(asked, policy, now_ns)
        if at_ns - now_ns > _FAR_NS:
            return at_ns
        for each in asked:
            every_ns = policy[each[0]]
            self._arrival_ns[each] = max(self._arrival_ns.get(each, 0), at_ns) + every_ns
        return at_ns

    def next_ns(self, tenants: Iterable[Tenant], policy: Mapping[str, int], now_ns: int) -> int:
        """As `take`, and no move is taken."""
        at_ns = now_ns
        for each in tenants:
            every_ns = policy.get(each[0])
            if every_ns is not None:
                at_ns = max(at_ns, self._arrival_ns.get(each, 0) - (_BURST - 1) * every_ns)
        return at_ns

    def forget(self, now_ns: int) -> None:
        """Buckets that are full again."""
        full = [each for each, arrival_ns in self._arrival_ns.items() if arrival_ns <= now_ns]
        for each in full:
            del self._arrival_ns[each]


def move_every_ns(policy: Policy) -> dict[str, int]:
    """How long it takes to earn a move, by the kind of tenant."""

    def every_ns(share: Share) -> int:
        return 100 * 1_000_000_000 // (policy.moves_per_s * share.moves)

    return {"user": every_ns(policy.user_share), "cgroup": every_ns(policy.cgroup_share)}
