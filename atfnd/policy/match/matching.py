# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule of the policy each flow falls under, over time. Pure: what events do not say about an
application comes from `Sources`.

`Sources` are asked only for what some rule needs. A flow that may fall under another rule once it
has carried more, or is older or faster, is looked at again at each audit of the sockets. Its rate
is measured between two looks, and the highest so far counts: a pause does not take a flow back to
the earlier rule.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from atfnd.model import (
    Connecting,
    Direction,
    Facts,
    Flow,
    FlowKey,
    FlowRule,
    NicView,
    Placement,
    Policy,
    Process,
    SocketSeen,
    SocketUse,
    Thread,
)
from atfnd.model import Protocol as Transport
from atfnd.policy.match.compile import compiled
from atfnd.policy.match.match import Matcher, asks_direction, meets, of_key, of_process

__all__ = ["Matching", "Sources"]

_SECOND_NS = 1_000_000_000  # over a shorter time no rate is measured


class Sources(NamedTuple):
    """Where facts about applications come from. These defaults know nothing."""

    process: Callable[[int, int], Process] = lambda pid, now_ns: Process()
    # Whether a socket of a network namespace listens where a flow ends that was born at this time.
    serves: Callable[[str | None, FlowKey, int, int | None], bool] = (
        lambda netns, key, now_ns, born_ns: False
    )


_NO_SOURCES = Sources()


@dataclass(slots=True)
class _Look:
    """The last look at a flow whose rule may change."""

    event: SocketSeen
    others: tuple[FlowRule, ...]  # that it may fall under
    at_ns: int  # when its rate began to be measured
    bytes: int  # then
    rate_bit_s: int = 0  # the highest so far

    def measure(self, carried: int, now_ns: int) -> int:
        took_ns = now_ns - self.at_ns
        if took_ns >= _SECOND_NS:
            rate = max(0, carried - self.bytes) * 8 * _SECOND_NS // took_ns
            self.rate_bit_s = max(self.rate_bit_s, rate)
            self.at_ns, self.bytes = now_ns, carried
        return self.rate_bit_s


class Matching:
    """Remembers at most as many flows as the table holds."""

    def __init__(self, policy: Policy, sources: Sources = _NO_SOURCES) -> None:
        self._looks: dict[tuple[int, FlowKey], _Look] = {}  # by cookie and key
        self.renew(policy, sources)

    def renew(self, policy: Policy, sources: Sources) -> None:
        """Another policy is in force: call `of_flow` for every flow. Rates stay known."""
        self._matcher, self._compiled = Matcher(policy), compiled(policy)
        self._sources = sources
        self._asks_process = any(map(of_process, policy.flows))
        self._asks_direction = asks_direction(policy)
        self._most = policy.table_max

    def seen(self, event: SocketSeen, nic: NicView, now_ns: int) -> FlowRule | None:
        """The rule for a flow that is in use; None: leave the flow alone."""
        known = self._looks.pop((event.cookie, event.key), None)
        facts = Facts(
            key=event.key,
            comm=event.thread.comm if event.thread else None,
            process=self._process(event.thread, now_ns),
            interface=nic.name,
            direction=event.direction or self._direction(event, nic, now_ns),
            bytes=event.bytes,
            age_ns=_age_ns(event, now_ns),
            rate_bit_s=known.measure(event.bytes, now_ns) if known else 0,
        )
        rule, others = self._matcher.look(facts)
        # A flow that was fast enough must stay under its rule.
        if (others or (rule and rule.min_rate_bit_s)) and len(self._looks) < self._most:
            look = known or _Look(event, others, now_ns, event.bytes)
            look.event, look.others = event, others
            self._looks[event.cookie, event.key] = look
        return rule

    def groups(self, thread: Thread | None, now_ns: int) -> tuple[int, str, int] | None:
        """For a thread that uses a flow: its control group, its path, and the groups of the
        policy's clauses that it is in. None: not known, or no clause asks for a group."""
        if thread is None or thread.cgroup is None or not self._compiled.groups:
            return None
        path = self._process(thread, now_ns).cgroup
        return None if path is None else (thread.cgroup, path, self._compiled.groups_of(path))

    def of_flow(self, flow: Flow, nic: NicView, now_ns: int) -> FlowRule | None:
        """The rule for a flow of the table, as it was `seen` last."""
        known = self._looks.get((flow.cookie, flow.key))
        if known is not None:
            return self.seen(known.event._replace(bytes=flow.bytes), nic, now_ns)
        napi_id = next((q.napi_id for q in nic.queues if q.index == flow.rx_queue), None)
        event = SocketSeen(
            now_ns, flow.cookie, flow.key, flow.app_cpu, flow.thread, napi_id, flow.rx_cpu,
            flow.bytes, now_ns, flow.born_ns, flow.direction,
        )  # fmt: skip
        return self.seen(event, nic, now_ns)

    def waiting(self) -> bool:
        """There are flows to look at `again`."""
        return bool(self._looks)

    def measure(self, use: SocketUse, now_ns: int) -> bool:
        """Note what a socket has carried; True if its flow falls under another rule because of
        that."""
        look = self._looks.get((use.cookie, use.key))
        if look is None:
            return False
        rate, age_ns = look.measure(use.bytes, now_ns), _age_ns(look.event, now_ns)
        return any(meets(rule, use.bytes, age_ns, rate) for rule in look.others)

    def again(
        self, uses: Iterable[SocketUse], entry: Callable[[FlowKey], Flow | None], now_ns: int
    ) -> list[SocketSeen]:
        """The flows that now fall under another rule, to be `seen` once more: as they were reported
        last, with the time of that report, on the CPU of their entry. `uses` is every socket that
        was reported: the others are forgotten."""
        known = [use for use in uses if (use.cookie, use.key) in self._looks]
        self._looks = {(u.cookie, u.key): self._looks[u.cookie, u.key] for u in known}
        found = []
        for use in known:
            if self.measure(use, now_ns):
                event, flow = self._looks[use.cookie, use.key].event, entry(use.key)
                rx_cpu = event.rx_cpu if use.rx_cpu is None else use.rx_cpu
                app_cpu = event.app_cpu if flow is None else flow.app_cpu
                found.append(event._replace(bytes=use.bytes, app_cpu=app_cpu, rx_cpu=rx_cpu))
        return found

    def connecting(self, event: Connecting, nic: str, now_ns: int) -> FlowRule | None:
        """The rule for a connection at its birth."""
        process, comm = self._process(event.thread, now_ns), event.thread.comm
        return self._matcher.first_match(Facts(event.key, comm, process, nic, Direction.CONNECTED))

    def of_port(
        self, key: FlowKey, thread: Thread | None, nic: str, now_ns: int
    ) -> FlowRule | None:
        """The one rule for all connections of a port that this thread serves, if there is one."""
        comm = thread.comm if thread else None
        process = self._process(thread, now_ns)
        return self._matcher.of_port(Facts(key, comm, process, nic, Direction.ACCEPTED))

    def left_by(self, key: FlowKey) -> str | None:
        """The rule that leaves a flow alone whatever it carries. A rule that asks for more than the
        key is not named, because the flow's thread is not known here."""
        much = Facts(key, bytes=sys.maxsize, age_ns=sys.maxsize, rate_bit_s=sys.maxsize)
        rule = self._matcher.first_match(much)
        if rule is None or rule.placement is not Placement.LEAVE or not of_key(rule):
            return None
        return f"`{rule.name}` ({rule.source})"

    def _process(self, thread: Thread | None, now_ns: int) -> Process:
        if thread is None or not self._asks_process:
            return Process()
        return self._sources.process(thread.pid, now_ns)

    def _direction(self, event: SocketSeen, nic: NicView, now_ns: int) -> Direction | None:
        """Accepted, if a socket listens there. If none does, one may have done so before."""
        if not self._asks_direction or event.key.protocol != Transport.TCP:
            return None
        listened = self._sources.serves(nic.netns, event.key, now_ns, event.born_ns)
        return Direction.ACCEPTED if listened else None


def _age_ns(event: SocketSeen, now_ns: int) -> int:
    return 0 if event.born_ns is None else now_ns - event.born_ns
