# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that wait for a decision, in fair turns. Pure.

Each decision costs CPU time. So that no tenant's events delay those of others, one event of each
user and control group is taken at a time, with a limit on each wake-up, and of each tenant no more
in a second than the policy's share. Of each socket only the last event waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from atfnd.engine.ownership.shares import Tenant, tenants_of
from atfnd.model import FlowKey, Policy, SocketSeen

__all__ = ["Turns", "decision_every_ns"]

_AT_ONCE = 512  # decisions a wake-up
_BURST = 64  # of one tenant
_WAITING = 4096  # of one user in one control group: the oldest is dropped, and is observed again

Tenants = tuple[Tenant, ...]
Sockets = OrderedDict[int, dict[FlowKey, SocketSeen]]  # by cookie


def decision_every_ns(policy: Policy) -> dict[str, int]:
    """How long a decision takes to earn, by the kind of tenant."""
    shares = {"user": policy.user_share, "cgroup": policy.cgroup_share}
    return {kind: 1_000_000_000 // share.decisions for kind, share in shares.items()}


class Turns:
    """Events of sockets by their tenants; bounded."""

    def __init__(self) -> None:
        self._waiting: dict[Tenants, Sockets] = {}
        self._of: dict[int, Tenants] = {}  # by cookie
        self._arrival_ns: dict[Tenant, int] = {}  # see `move.bucket`
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._of)

    def add(self, event: SocketSeen) -> None:
        """The event waits for a decision; an older one of the same flow is outdated."""
        cookie, whose = event.cookie, tenants_of(event.thread)
        before = self._of.get(cookie)
        if before is not None and before != whose:
            self.gone(cookie)
        sockets = self._waiting.setdefault(whose, OrderedDict())
        if len(sockets) >= _WAITING and cookie not in sockets:
            self._pop(whose)
            self.dropped += 1
            sockets = self._waiting.setdefault(whose, OrderedDict())
        sockets.setdefault(cookie, {})[event.key] = event
        self._of[cookie] = whose

    def gone(self, cookie: int) -> None:
        """A socket was closed: drop its events."""
        if (whose := self._of.get(cookie)) is not None:
            self._pop(whose, cookie)

    def take(self, every_ns: Mapping[str, int], now_ns: int) -> Iterator[list[SocketSeen]]:
        """The events whose turn it is, of one socket of each tenant at a time; what is not asked
        for goes on waiting. `every_ns` by the kind of tenant."""
        for tenant in [each for each, at_ns in self._arrival_ns.items() if at_ns <= now_ns]:
            del self._arrival_ns[tenant]
        taken, asking = 0, dict.fromkeys(self._waiting)
        while asking:
            for whose in list(asking):
                if taken == _AT_ONCE:
                    return
                if self._allowed_ns(whose, every_ns) > now_ns:
                    del asking[whose]
                    continue
                events = self._pop(whose)
                if whose in self._waiting:
                    self._waiting[whose] = self._waiting.pop(whose)  # the last in turn now
                else:
                    del asking[whose]
                for tenant, each_ns in _rates(whose, every_ns):
                    arrival_ns = max(self._arrival_ns.get(tenant, 0), now_ns)
                    self._arrival_ns[tenant] = arrival_ns + each_ns
                taken += 1
                yield events

    def due_ns(self, every_ns: Mapping[str, int]) -> int | None:
        """When the next turn is due. None: nothing waits."""
        return min((self._allowed_ns(whose, every_ns) for whose in self._waiting), default=None)

    def _allowed_ns(self, whose: Tenants, every_ns: Mapping[str, int]) -> int:
        return max(
            (
                self._arrival_ns.get(tenant, 0) - (_BURST - 1) * each_ns
                for tenant, each_ns in _rates(whose, every_ns)
            ),
            default=0,
        )

    def _pop(self, whose: Tenants, cookie: int | None = None) -> list[SocketSeen]:
        """The events of one socket: of the one named, else of the one that has waited longest."""
        sockets = self._waiting[whose]
        cookie = next(iter(sockets)) if cookie is None else cookie
        events = sockets.pop(cookie)
        del self._of[cookie]
        if not sockets:
            del self._waiting[whose]
        return list(events.values())


def _rates(whose: Iterable[Tenant], every_ns: Mapping[str, int]) -> list[tuple[Tenant, int]]:
    return [(tenant, every_ns[tenant[0]]) for tenant in whose if tenant[0] in every_ns]
