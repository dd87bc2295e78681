# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC over time: its queues and rules as last read, and what a link flap made it forget.

Reads through `Nic` and listens to rtnetlink. A link that goes down and up comes back with new NAPI
ids and new, unconfined NAPI threads (reference/lab.md); sockets may keep the old id for long, so
old ids stay ours.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from atfnd.kernel.ethtool_changes import EthtoolChanges
from atfnd.kernel.rtnl import LinkChanges, addresses
from atfnd.kernel.tunnels import IpsecPolicy, Tunnel, encrypted, ipsec_policies, tunnels
from atfnd.model import (
    FlowKey,
    Means,
    NicReads,
    NicStats,
    NicView,
    Queue,
    ReadBytes,
    Rule,
    SocketSeen,
    SocketUse,
    ThreadReads,
)
from atfnd.nic import Nic
from atfnd.nic.toeplitz import rss_queue
from atfnd.observe.reads import Reads

__all__ = ["NapiIds", "NicWatch", "nic_of"]

_IPSEC_NS = 10_000_000_000
_FRESH_NS = 100_000_000  # what is shown of rules and counters may be so old
_SHARE = 0.01  # of one core that reading them to be shown may cost
_DISTURBED_NS = 10_000_000_000  # a reset takes seconds on some NICs
_PAST = 256  # NAPI ids of queues that are gone, remembered for each NIC


class NapiIds:
    """NAPI ids that are a NIC's: of its queues now, and of the `past` ones that went last."""

    def __init__(self, past: int = _PAST) -> None:
        self._past = past
        self.now: frozenset[int] = frozenset()
        self._known: dict[int, None] = {}  # what went last stands last

    def read(self, ids: Iterable[int]) -> None:
        """These are the queues' now."""
        self.now = frozenset(ids)
        for each in self.now:
            self._known.pop(each, None)
            self._known[each] = None
        for each in list(self._known)[: max(len(self._known) - len(self.now) - self._past, 0)]:
            del self._known[each]

    def __contains__(self, napi_id: int) -> bool:
        return napi_id in self._known

    def __iter__(self) -> Iterator[int]:
        """Those of now first, then those that went last."""
        return reversed(self._known)


class NicWatch:
    """One NIC: `view` is what is known, `refresh` reads again. OSError when it is gone."""

    def __init__(self, nic: Nic, armed: bool, budget: int | None) -> None:
        self.nic = nic
        self.links, self.settings = LinkChanges(nic.netns), EthtoolChanges(nic.netns)
        self.napi_ids = NapiIds()
        self._confined: dict[int, tuple[int, int | None]] = {}  # queue: CPU, pid of its thread
        self._addresses: frozenset[bytes] | None = None
        self._tunnels: dict[bytes, Tunnel] | None = None  # by address
        self._ipsec: tuple[IpsecPolicy, ...] = ()
        self._ipsec_until_ns = 0
        self._shown: tuple[tuple[Rule, ...], NicStats, frozenset[int], int] | None = None
        self._fresh_until_ns = 0
        self._disturbed_ns: int | None = None
        self.lives = 0  # how often its link or queues were found to be new ones
        self._armed_before_pause = armed
        self._reads = Reads(lambda: None, 0)
        self.view = NicView(
            name=nic.name,
            netns=nic.netns,
            ifindex=nic.ifindex,
            armed=armed,
            budget=budget,
            up=nic.up(),
            caps=nic.caps(),
            queues=(),
            rules=(),
            owned=frozenset(),
            rss=nic.rss(),
            ring_size=nic.ring_size(),
            stats=nic.stats(),
        )
        self.refresh()
        self._disturbed_ns = None  # that it is new to us is no news of it

    def refresh(self) -> bool:
        """Read link and queues again; True when they are not what they were."""
        before, stood = self.view, self._stands()
        queues = self.nic.queues()
        self.view = replace(self.view, up=self.nic.up(), queues=queues, rss=self.nic.rss())
        self.napi_ids.read(queue.napi_id for queue in queues if queue.napi_id is not None)
        for queue in queues:
            if queue.cpu is not None:
                self._confined[queue.index] = queue.cpu, queue.pid
        if stood != self._stands():
            self.lives += 1
            self._disturbed_ns = time.monotonic_ns()
        return (before.up, before.queues) != (self.view.up, queues)

    def _stands(self) -> tuple[object, ...]:
        """What no reset leaves as it is: a NIC that comes up again has new NAPIs."""
        return self.view.up, *((queue.index, queue.napi_id) for queue in self.view.queues)

    def life(self) -> str:
        """Of this interface with these queues: a device that comes anew, or a driver that made its
        queues anew, has another one. What came anew has no setting of ours."""
        return " ".join(map(str, (self.view.ifindex, *(q.napi_id for q in self.view.queues))))

    def disturbed(self) -> bool:
        """Link, queues or settings changed a moment ago: the NIC may have lost rules by itself."""
        since_ns = self._disturbed_ns
        return since_ns is not None and time.monotonic_ns() - since_ns < _DISTURBED_NS

    def name_now(self) -> str | None:
        """What the kernel calls this interface now; None when it is gone."""
        try:
            return self.nic.interface.name()
        except OSError as refusal:
            if refusal.errno != errno.ENODEV:
                raise
            return None

    def still_there(self) -> None:
        """OSError(ENODEV) when the interface is gone or has another name: a name may be another's
        by now. A lab goes with its namespaces."""
        if self.nic.netns is None and self.name_now() != self.view.name:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), self.view.name)

    def inspect(self, *, prove: bool = False) -> None:
        """Read what `refresh` does not: capabilities, knobs, conflicts. With `prove`, capabilities
        are tried, which writes: only where we are armed."""
        device = self.nic.device()
        self.view = replace(
            self.view,
            caps=self.nic.probe() if prove else self.nic.caps(),
            device=device,
            ring_size=device.ring_size,
            knobs=self.nic.knobs(),
            conflicts=self.nic.conflicts(),
        )

    def read_knobs(self) -> None:
        """Read the knobs again: hundreds of files, on a NIC with many queues."""
        self.view = replace(self.view, knobs=self.nic.knobs())

    def read_rss(self) -> None:
        """Read key and table again."""
        self.view = replace(self.view, rss=self.nic.rss())

    def steered_by(self, means: Means, why: str) -> None:
        """Note how its flows are steered from now on."""
        self.view = replace(self.view, means=means, means_why=why)

    def manual(self, knobs: frozenset[str]) -> None:
        """Note which knobs somebody else moved after us."""
        self.view = replace(self.view, manual=knobs)

    def queue_moved(self, index: int, cpu: int) -> None:
        """Note where a queue was put."""
        queues = tuple(replace(q, cpu=cpu) if q.index == index else q for q in self.view.queues)
        self.view = replace(self.view, queues=queues)
        self._confined.update({q.index: (cpu, q.pid) for q in queues if q.index == index})

    def unpinned(self) -> list[tuple[Queue, int]]:
        """Queues whose thread is a new one and on no CPU, with the CPU the old one had. A thread
        that somebody let run anywhere stays as he wants it."""
        lost = []
        for queue in self.view.queues:
            cpu, pid = self._confined.get(queue.index, (None, None))
            if queue.cpu is None and cpu is not None and queue.pid not in (None, pid):
                lost.append((queue, cpu))
        return lost

    def read_rules(self) -> list[Rule]:
        """Every rule in the NIC, now. Not kept: thousands of them are megabytes."""
        self._shown = None
        return self.nic.rules()

    def others(self, rules: tuple[Rule, ...]) -> None:
        """Note which of its rules are not ours."""
        if self.view.foreign != len(rules) or self.view.theirs != rules:
            self.view = replace(self.view, foreign=len(rules), theirs=rules)

    def shown(self, owned: Callable[[], frozenset[int]]) -> NicView:
        """The view with rules and counters not older than a tenth of a second, or than a hundred
        times as long as it takes to read them: thousands of filters are one call each. `owned`
        gives the locations of those that are ours."""
        now_ns = time.monotonic_ns()
        if self._shown is None or now_ns > self._fresh_until_ns:
            self._shown = tuple(self.nic.rules()), self.nic.stats(), owned(), now_ns
            took_ns = time.monotonic_ns() - now_ns
            self._fresh_until_ns = now_ns + max(_FRESH_NS, int(took_ns / _SHARE))
        rules, stats, ours, read_ns = self._shown
        return replace(self.view, rules=rules, stats=stats, owned=ours, read_ns=read_ns)

    def reads_by(self, count: Callable[[], ReadBytes | None]) -> None:
        """What counts the bytes that are read of what it receives."""
        self._reads = Reads(count, time.monotonic_ns())

    def look_at_reads(self) -> None:
        """Count what was read since the last look, as read while armed or not, whichever it is."""
        self._reads.look(time.monotonic_ns(), armed=self.view.armed)

    def reads(self) -> NicReads | None:
        """Its read locality at the last look; None: not measured."""
        return self._reads.shown(self.view.name)

    def arm(self, armed: bool) -> None:
        """Note whether the operator lets us write; ends a pause."""
        was_armed = self.view.armed
        self.view = replace(self.view, armed=armed, paused=False)  # before anything that may fail
        self._reads.look(time.monotonic_ns(), armed=was_armed)

    def allow(self, budget: int | None) -> None:
        """Note how many rules of ours it may hold."""
        self.view = replace(self.view, budget=budget)

    def arm_on_resume(self, armed: bool) -> None:
        """Note what the end of a pause brings back."""
        self._armed_before_pause = armed

    def pause(self) -> None:
        """Nothing is written until `resume`."""
        if not self.view.paused:
            self._armed_before_pause = self.view.armed
        self.look_at_reads()
        self.view = replace(self.view, armed=False, paused=True)

    def resume(self) -> bool:
        """End a pause; True when the NIC is armed again, as it was before."""
        if self.view.paused:
            self.arm(self._armed_before_pause)
        return self.view.armed

    def queue_of_napi(self, napi_id: int | None) -> int | None:
        """The queue whose NAPI this is now."""
        return next((q.index for q in self.view.queues if q.napi_id == napi_id), None)

    def owns(self, local: bytes) -> bool:
        """The address is one of this interface's; an unbound socket's (all zero) is everybody's."""
        if self._addresses is None:
            self._addresses = addresses(self.nic.netns, self.nic.ifindex)
        return not any(local) or local in self._addresses

    def tunnel_of(self, key: FlowKey) -> str | None:
        """The tunnel that packets of a flow come in by, in words: the device that has its local
        address, or IPsec. None: none that is known. Read anew when links or addresses changed, and
        IPsec's policies once in 10 s at most."""
        if not any(key.local):
            return None
        now_ns = time.monotonic_ns()
        try:
            if self._tunnels is None:
                self._tunnels = tunnels(self.nic.netns, self.nic.ifindex)
            if now_ns >= self._ipsec_until_ns:
                self._ipsec = ipsec_policies(self.nic.netns)
                self._ipsec_until_ns = now_ns + _IPSEC_NS
        except (FileNotFoundError, InterruptedError):
            return None  # its namespace is going, or too much of it changes: asked again
        if (found := self._tunnels.get(key.local)) is not None and not self.owns(key.local):
            return str(found)
        ends = key.protocol, key.local, key.local_port, key.remote, key.remote_port
        return "IPsec" if encrypted(self._ipsec, *ends) else None

    def changed(self) -> bool:
        """Drain rtnetlink and ethtool's notifications: something about this interface may be new.
        Forgets its addresses."""
        links, settings = self.links.drain(), self.settings.drain()
        by_link, by_setting = (
            interfaces is None or self.view.ifindex in interfaces
            for interfaces in (links, settings)
        )
        if by_link:
            self._addresses = None
        if links != set():
            self._tunnels = None
        if by_setting:
            self._disturbed_ns = time.monotonic_ns()
        return by_link or by_setting

    def predicted(self, key: FlowKey) -> Queue | None:
        """Where RSS puts a flow: Toeplitz over its tuple and the indirection table."""
        index = rss_queue(self.view.rss, key) if self.view.rss else None
        return next((queue for queue in self.view.queues if queue.index == index), None)

    def rss_queues(self, key: FlowKey) -> frozenset[int] | None:
        """The queues RSS gives a flow's packets to: all of the table for one that is open to any
        remote. None: not known."""
        if len(self.view.queues) == 1:
            return frozenset({self.view.queues[0].index})
        if self.view.rss is None:
            return None
        if not key.remote_port:
            return frozenset(self.view.rss.table)
        queue = self.predicted(key)
        return None if queue is None else frozenset({queue.index})

    @property
    def listeners(self) -> tuple[LinkChanges | EthtoolChanges, ...]:
        """Readable when `changed` has something to read."""
        return self.links, self.settings

    def close(self) -> None:
        self.links.close()
        self.settings.close()
        self.nic.close()


def nic_of(
    event: SocketSeen | SocketUse | ThreadReads, watches: Iterable[NicWatch]
) -> NicWatch | None:
    """Where a socket receives: by NAPI where the observer sees it, else by its local address."""
    for watch in watches:
        if event.napi_id is not None:
            if event.napi_id in watch.napi_ids:
                return watch
        elif watch.owns(event.key.local):
            return watch
    return None
