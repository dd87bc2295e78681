# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC over time: its queues and filters as last read, and what a link flap made it forget.

Reads through `Nic` and listens to rtnetlink. A link that goes down and up comes back with new NAPI
ids and new, unconfined NAPI threads (reference/lab.md). Sockets may keep the old id for long, so
old ids stay ours.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

from atfnd.errors import refusable
from atfnd.kernel.ethtool.changes import ethtool_changes
from atfnd.kernel.netlink.requests import Changes
from atfnd.kernel.netlink.rtnl import link_changes
from atfnd.kernel.netlink.tunnels import IpsecPolicy, encrypted, ipsec_policies
from atfnd.model import (
    Filter,
    FlowKey,
    NicFacts,
    NicReads,
    NicStats,
    NicView,
    Queue,
    ReadBytes,
    SocketSeen,
    SocketUse,
    ThreadReads,
)
from atfnd.nic import Nic
from atfnd.observe.nics.namespace_links import NamespaceLinks
from atfnd.observe.nics.reads import Reads

__all__ = ["NapiIds", "NicWatch", "nic_of"]

_IPSEC_NS = 10_000_000_000
_FRESH_NS = 100_000_000  # filters and counters that are shown may be this old
_SHARE = 0.01  # of one core that reading them to be shown may cost
_DISTURBED_NS = 10_000_000_000  # a reset takes seconds on some NICs
_PAST = 256  # NAPI ids of queues that are gone, remembered for each NIC


class NapiIds:
    """NAPI ids of a NIC: those of its queues now, and of the `past` ones that went last."""

    def __init__(self, past: int = _PAST) -> None:
        self._past = past
        self.now: frozenset[int] = frozenset()
        self._known: dict[int, None] = {}  # the last to go comes last

    def read(self, ids: Iterable[int]) -> None:
        """These ids are the queues' now."""
        self.now = frozenset(ids)
        for each in self.now:
            self._known.pop(each, None)
            self._known[each] = None
        for each in list(self._known)[: max(len(self._known) - len(self.now) - self._past, 0)]:
            del self._known[each]

    def __contains__(self, napi_id: int) -> bool:
        return napi_id in self._known

    def __iter__(self) -> Iterator[int]:
        """The present ones first, then those that went last."""
        return reversed(self._known)


class NicWatch:
    """One NIC: `facts` is what was read last, `refresh` reads again. OSError when it is gone."""

    _report: Callable[[NicFacts], None] = staticmethod(lambda facts: None)

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.napi_ids = NapiIds()
        self._confined: dict[int, tuple[int, int | None]] = {}  # queue: CPU, pid of its thread
        self._namespace: NamespaceLinks | None = None  # opened when it is first asked
        self._ipsec: tuple[IpsecPolicy, ...] = ()
        self._ipsec_until_ns = 0
        self._shown: tuple[tuple[Filter, ...], NicStats, frozenset[int], int] | None = None
        self._fresh_until_ns = 0
        self._disturbed_ns: int | None = None
        self.lives = 0  # how often its link or queues were found to be new ones
        self._reads = Reads(lambda: None, 0)
        with ExitStack() as undo:
            self.links = undo.enter_context(closing(link_changes(nic.netns)))
            self.changes = undo.enter_context(closing(ethtool_changes(nic.netns)))
            self.facts = NicFacts(
                name=nic.name,
                netns=nic.netns,
                ifindex=nic.ifindex,
                up=nic.up(),
                caps=nic.caps(),
                queues=(),
                rss=nic.rss(),
                ring_size=nic.ring_size(),
                stats=nic.stats(),
            )
            self._heeded: tuple[bool, tuple[Queue, ...]] = False, ()
            self.refresh()
            self.news()
            self._disturbed_ns = None  # a NIC that is only new to us was not disturbed
            undo.pop_all()

    @property
    def facts(self) -> NicFacts:
        """As last read."""
        return self._facts

    @facts.setter
    def facts(self, facts: NicFacts) -> None:
        self._facts = facts
        self._report(facts)

    def reports_to(self, report: Callable[[NicFacts], None]) -> None:
        """`report` is called with all facts each time some were read, from now on."""
        self._report = report

    def refresh(self) -> None:
        """Read link and queues again."""
        stood = self._stands()
        queues = self.nic.queues()
        self.facts = replace(self.facts, up=self.nic.up(), queues=queues, rss=self.nic.rss())
        self.napi_ids.read(queue.napi_id for queue in queues if queue.napi_id is not None)
        for queue in queues:
            if queue.cpu is not None:
                self._confined[queue.index] = queue.cpu, queue.pid
        if stood != self._stands():
            self.lives += 1
            self._disturbed_ns = time.monotonic_ns()

    def news(self) -> bool:
        """Link or queues are others than at the last call, whichever `refresh` has read that. What
        `queue_moved` notes is no news."""
        before, self._heeded = self._heeded, (self.facts.up, self.facts.queues)
        return before != self._heeded

    def _stands(self) -> tuple[object, ...]:
        """What a reset always changes: a NIC that comes up again has new NAPIs. And which interrupt
        is a queue's, which may be found out late."""
        queues = self.facts.queues
        return self.facts.up, *((queue.index, queue.napi_id, queue.irq) for queue in queues)

    def life(self) -> str:
        """The life of this interface with these queues: a device that comes back, or a driver that
        makes its queues anew, begins another one. In a new life no setting is ours."""
        return " ".join(map(str, (self.facts.ifindex, *(q.napi_id for q in self.facts.queues))))

    def disturbed(self) -> bool:
        """Link, queues or settings have just changed: the NIC may have lost filters by itself."""
        since_ns = self._disturbed_ns
        return since_ns is not None and time.monotonic_ns() - since_ns < _DISTURBED_NS

    def name_now(self) -> str | None:
        """What the kernel calls this interface now; None when it is gone."""
        with refusable(errno.ENODEV):
            return self.nic.interface.name()
        return None

    def still_there(self) -> None:
        """OSError(ENODEV) when the interface is gone or has another name: its name may now be that
        of another one. A lab goes with its namespaces."""
        if self.nic.netns is None and self.name_now() != self.facts.name:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), self.facts.name)

    def threads_changed(self) -> None:
        """Read the queues again after NAPI threads were borrowed or given back, which is no
        news."""
        heeded = self._heeded == (self.facts.up, self.facts.queues)
        self.refresh()
        if heeded:
            self._heeded = self.facts.up, self.facts.queues

    def inspect(self) -> None:
        """Read what `refresh` does not: capabilities, settings, conflicts."""
        device = self.nic.device()
        self.facts = replace(
            self.facts,
            caps=self.nic.caps(),
            device=device,
            ring_size=device.ring_size,
            settings=self.nic.settings(),
            conflicts=self.nic.conflicts(),
        )

    def read_settings(self) -> None:
        """Read the settings again: hundreds of files, on a NIC with many queues."""
        self.facts = replace(self.facts, settings=self.nic.settings())

    def read_stats(self) -> None:
        """Read the counters of its queues again."""
        self.facts = replace(self.facts, stats=self.nic.stats())

    def setting_wrote(self, name: str, value: str) -> None:
        """Note a setting that was written, which is no news: the kernel prints it as it was
        written."""
        self._facts = replace(self._facts, settings={**self._facts.settings, name: value})

    def read_rss(self) -> None:
        """Read key and table again."""
        self.facts = replace(self.facts, rss=self.nic.rss())

    def queue_moved(self, index: int, cpu: int) -> None:
        """Note where a queue was put."""
        up, heeded = self._heeded
        self._heeded = up, _moved(heeded, index, cpu)
        queues = _moved(self.facts.queues, index, cpu)
        self.facts = replace(self.facts, queues=queues)
        self._confined.update({q.index: (cpu, q.pid) for q in queues if q.index == index})

    def unpinned(self) -> list[tuple[Queue, int]]:
        """Queues whose thread is new and confined to no CPU, with the CPU of the old thread. A
        thread that an admin lets run anywhere stays so."""
        lost = []
        for queue in self.facts.queues:
            cpu, pid = self._confined.get(queue.index, (None, None))
            if queue.cpu is None and cpu is not None and queue.pid not in (None, pid):
                lost.append((queue, cpu))
        return lost

    def read_filters(self) -> list[Filter]:
        """Every filter in the NIC, now. Not kept: thousands of them take megabytes."""
        self._shown = None
        return self.nic.filters()

    def shown(self, view: NicView, owned: Callable[[], frozenset[int]]) -> NicView:
        """`view`, which is of this NIC, with filters and counters that are never older than a tenth
        of a second, or than a hundred times the time it takes to read them: thousands of filters
        are one call each. `owned` gives the locations of our filters."""
        now_ns = time.monotonic_ns()
        if self._shown is None or now_ns > self._fresh_until_ns:
            self._shown = tuple(self.nic.filters()), self.nic.stats(), owned(), now_ns
            took_ns = time.monotonic_ns() - now_ns
            self._fresh_until_ns = now_ns + max(_FRESH_NS, int(took_ns / _SHARE))
        filters, stats, ours, read_ns = self._shown
        return replace(view, filters=filters, stats=stats, owned=ours, read_ns=read_ns)

    def reads_by(self, count: Callable[[], ReadBytes | None]) -> None:
        """The counter of the bytes that applications read of what it receives."""
        self._reads = Reads(count, time.monotonic_ns())

    def look_at_reads(self, *, armed: bool) -> None:
        """Count what was read since the last look, as read while armed or while not."""
        self._reads.look(time.monotonic_ns(), armed=armed)

    def reads(self) -> NicReads | None:
        """Its read locality at the last look; None: not measured."""
        return self._reads.shown(self.facts.name)

    def _shared(self) -> NamespaceLinks:
        if self._namespace is None:
            self._namespace = NamespaceLinks.of(self.nic.netns)
        return self._namespace

    def owns(self, local: bytes) -> bool:
        """The address is one of this interface's; that of an unbound socket (all zero) counts for
        every interface."""
        return not any(local) or local in self._shared().addresses(self.nic.ifindex)

    def addresses(self) -> frozenset[bytes]:
        """Those of this interface, as they are now."""
        return frozenset(self._shared().addresses(self.nic.ifindex))

    def tunnel_of(self, key: FlowKey) -> str | None:
        """The tunnel that packets of a flow come in by, in words: the device that has its local
        address, or by which its answers go out, or IPsec. None: no tunnel is known. IPsec's
        policies are read once in 10 s at most."""
        if not any(key.local):
            return None
        now_ns = time.monotonic_ns()
        try:
            remote = key.remote if any(key.remote) else None
            found = self._shared().tunnel(self.nic.ifindex, key.local, remote)
            if now_ns >= self._ipsec_until_ns:
                self._ipsec = ipsec_policies(self.nic.netns)
                self._ipsec_until_ns = now_ns + _IPSEC_NS
        except (FileNotFoundError, InterruptedError):
            return None  # its namespace is going, or it changes too fast: asked again
        if found is not None:
            return str(found)
        ends = key.protocol, key.local, key.local_port, key.remote, key.remote_port
        return "IPsec" if encrypted(self._ipsec, *ends) else None

    def changed(self) -> bool:
        """Drain rtnetlink and ethtool's notifications: something of this interface may be new."""
        if self._namespace is not None:
            self._namespace.look()
        links, changes = self.links.drain(), self.changes.drain()
        ours = self.facts.ifindex
        by_link, by_setting = (which is None or ours in which for which in (links, changes))
        if by_setting:
            self._disturbed_ns = time.monotonic_ns()
        return by_link or by_setting

    @property
    def listeners(self) -> tuple[Changes[int], ...]:
        """Readable when `changed` has something to read."""
        return self.links, self.changes

    def close(self) -> None:
        self.links.close()
        self.changes.close()
        if self._namespace is not None:
            self._namespace.close()
        self.nic.close()


def _moved(queues: tuple[Queue, ...], index: int, cpu: int) -> tuple[Queue, ...]:
    return tuple(replace(each, cpu=cpu) if each.index == index else each for each in queues)


def nic_of(
    event: SocketSeen | SocketUse | ThreadReads, watches: Iterable[NicWatch]
) -> NicWatch | None:
    """The NIC that a socket receives through: by NAPI where the observer sees it, else by its local
    address."""
    for watch in watches:
        if event.napi_id is not None:
            if event.napi_id in watch.napi_ids:
                return watch
        elif watch.owns(event.key.local):
            return watch
    return None
