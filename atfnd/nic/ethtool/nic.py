# SPDX-License-Identifier: GPL-2.0-or-later
"""A real network interface as a `Nic`: whatever its driver lets ethtool, netlink and sysfs do.

It is known by its index: after a rename `name` stays what the operator calls it, and every call
goes on; another interface that takes the old name is not touched. A driver without filters, RSS,
channels or interrupts (veth, tun) is opened too, and says so.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from atfnd.errors import OperatorError, refusable
from atfnd.kernel.ethtool import rxfh
from atfnd.kernel.ethtool.device import Channels, Coalescing, EthtoolFamily, Rings
from atfnd.kernel.ethtool.driver_stats import DriverStats
from atfnd.kernel.ethtool.rxnfc import Rxnfc
from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.irq import movable
from atfnd.kernel.interrupts.packet_steering import numa_node, receive_queues
from atfnd.kernel.netlink.netdev import NetdevFamily, QueueCounters
from atfnd.kernel.netlink.rtnl import link
from atfnd.model import (
    Caps,
    Conflict,
    Device,
    Filter,
    Match,
    NicStats,
    Queue,
    QueueStats,
    Rss,
)
from atfnd.nic import Claims
from atfnd.nic.driver_table import driver_of
from atfnd.nic.ethtool.conflicts import found_conflicts, stacked
from atfnd.nic.ethtool.filters import EthtoolNtuple
from atfnd.nic.ethtool.napi_switches import NapiSwitches
from atfnd.nic.ethtool.probe import expected, probed
from atfnd.nic.ethtool.queues import Queues, confine
from atfnd.nic.ethtool.rss import claimed
from atfnd.nic.ethtool.settings import DEFAULT, EthtoolSettings

__all__ = ["EthtoolNic"]

NTUPLE = "rx-ntuple-filter"
DROPS = "statistics/rx_missed_errors"  # lack of room in a ring (include/uapi/linux/if_link.h)


class EthtoolNic:
    """One interface; many may be open at once, in any process."""

    def __init__(self, name: str, netns: str | None = None) -> None:
        """OperatorError: no such interface or namespace."""
        with ExitStack() as undo:
            try:
                self.interface = Interface(name, netns)
            except OSError as error:
                where = f" in {netns}" if netns else " here"
                raise OperatorError(f"no interface {name!r}{where} ({error.strerror})") from error
            undo.callback(self.interface.close)
            self.name, self.netns, self.ifindex = name, netns, self.interface.ifindex
            self._ethtool = EthtoolFamily(netns)
            undo.callback(self._ethtool.close)
            self._netdev = _netdev_family(netns)
            if self._netdev is not None:
                undo.callback(self._netdev.close)
            self._driver = self.interface.driver()
            self._rxnfc_name = name
            self._ntuple = EthtoolNtuple(
                Rxnfc(name, netns), driver_of(self._driver.name), self._ntuple_fixed
            )
            undo.callback(self._ntuple.close)
            self._driver_stats = DriverStats(self.interface)
            self._queues = Queues(self.interface, self._netdev, self._packets)
            undo.callback(self._queues.close)
            self._napis = NapiSwitches(self.interface, self._netdev, self._queues)
            self._settings = EthtoolSettings(
                self.interface, self._ethtool, self._queues, self._rings, self._napis
            )
            self._probed: Caps | None = None
            self._refuses_rss = self._refuses_cpu = False
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def _ntuple_fixed(self) -> bool:
        return self._ethtool.fixed(self.ifindex, NTUPLE)

    def caps(self) -> Caps:
        """RSS table and queue CPUs as they are now: a link that is down has no interrupts."""
        caps = self._probed or expected(self._here())
        cpu = any(
            q.pid is not None or (q.irq is not None and movable(q.irq)) for q in self.queues()
        )
        return replace(
            caps,
            arfs=self._ntuple.driver.arfs and NTUPLE in self._ethtool.features(self.ifindex),
            rss_table=self.rss() is not None and not self._refuses_rss,
            queue_cpu=cpu and not self._refuses_cpu,
        )

    def probe(self, claims: Claims | None = None) -> Caps:
        """Filters as `ethtool_probe` finds; RSS table, queue CPUs and threads of single NAPIs by
        writing the present value. A table that is not the driver's default is left alone: written,
        it would count as a user's choice, which blocks fewer channels
        (netif_is_rxfh_configured)."""
        found = probed(self._here(), claims)
        self._probed = found  # also what could not be proven now, and why
        self._refuses_rss = self._refuses_cpu = False
        if self._settings.one("rss") == DEFAULT:
            self._refuses_rss = self._refuses("rss")
        self._refuses_cpu = self._refuses("queue-cpu:0")
        self._napis.probe()
        return replace(self.caps(), probed=found.probed, why=found.why)

    def _refuses(self, setting: str) -> bool:
        """It cannot even be set to its present value. OSError(ENODEV): the interface is gone."""
        value = self._settings.one(setting)
        if value is None:
            return False
        try:
            self._settings.write(setting, value)
        except OSError as refusal:
            if refusal.errno == errno.ENODEV:
                raise
            return True
        return False

    def device(self) -> Device:
        channels = self._ethtool.channels(self.ifindex) or Channels(self._count(), self._count())
        rings = self._ethtool.rings(self.ifindex) or Rings(None, None)
        coalescing = self._ethtool.coalescing(self.ifindex) or Coalescing(None, None)
        return Device(
            driver=self._driver.name or None,
            bus=self._driver.bus,
            node=numa_node(self.interface),
            channels=channels.receive,
            channels_max=channels.receive_max,
            ring_size=rings.receive,
            ring_max=rings.receive_max,
            rx_usecs=coalescing.rx_usecs,
            adaptive_rx=coalescing.adaptive_rx,
            ntuple=NTUPLE in self._ethtool.features(self.ifindex),
            ntuple_fixed=self._ntuple_fixed(),
            rss_contexts=self._ethtool.rss_contexts(self.ifindex),
            channels_apart=channels.apart,
        )

    def conflicts(self) -> tuple[Conflict, ...]:
        name, found = self.interface.name(), link(self.netns, self.ifindex)
        return found_conflicts(
            name,
            found,
            stacked(found.kind, self._driver.name, self.interface.lower()),
            (self._netdev and self._netdev.receive_queues(self.ifindex)) or (),
            self.queues(),
            self.device(),
            self._settings.read(),
            self._ntuple.driver.atr_flag,
            self._ntuple.driver.arfs,
        )

    def up(self) -> bool:
        return self.interface.up()

    def queues(self) -> tuple[Queue, ...]:
        return self._queues.read()

    def set_queue_cpu(self, index: int, cpu: int) -> None:
        """As `ethtool_queues.confine`; OSError(ENETDOWN) while the link is down."""
        queues = self.queues()
        if not 0 <= index < len(queues):
            raise OSError(errno.EINVAL, f"no queue {index}, there are {len(queues)}")
        if not self.up():
            raise OSError(errno.ENETDOWN, f"queue {index} has no interrupt: the link is down")
        confine(queues[index], {cpu})

    def filters(self) -> list[Filter]:
        """Empty for a driver without a filter table."""
        ntuple = self._here()
        with refusable(errno.EOPNOTSUPP):
            return ntuple.list()
        return []

    def filter(self, location: int) -> Filter | None:
        return self._here().filter(location)

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        return self._here().insert(match, queue, location)

    def delete(self, location: int) -> None:
        self._here().delete(location)

    def _here(self) -> EthtoolNtuple:
        """The filters, by the interface's present name: their ioctls know no index."""
        name = self.interface.name()
        if name != self._rxnfc_name:
            self._ntuple.rxnfc.close()
            self._ntuple.rxnfc, self._rxnfc_name = Rxnfc(name, self.netns), name
        return self._ntuple

    def rss(self) -> Rss | None:
        found = rxfh.read_if_there(self.interface)
        if not found.table or self._count() == 1:
            return None
        return claimed(driver_of(self._driver.name), found, rxfh.hashed_fields(self.interface))

    def set_rss(self, rss: Rss) -> None:
        """Writes what differs. OSError(EINVAL): not the NIC's size."""
        found = rxfh.read(self.interface)
        table = None if rss.table == found.table else rss.table
        key = None if rss.key in (b"", found.key) else rss.key
        if table is not None or key is not None:
            rxfh.write(self.interface, table, key)

    def settings(self) -> Mapping[str, str]:
        return self._settings.read()

    def setting(self, name: str) -> str | None:
        """As `Nic.setting`; OSError(ENETDOWN) for a queue whose interrupt is free while the link is
        down. The interrupt keeps its CPUs meanwhile (kernel/irq/manage.c, irq_setup_affinity)."""
        value = self._settings.one(name)
        of_queues = {f"queue-cpu:{index}" for index in range(self._count())}
        if value is None and name in of_queues and not self.up():
            raise OSError(errno.ENETDOWN, f"no {name} while the link is down")
        return value

    def write_setting(self, name: str, value: str) -> None:
        """As `Nic.write_setting`; ValueError: not a value of this setting."""
        self._settings.write(name, value)

    def ring_size(self) -> int | None:
        rings = self._ethtool.rings(self.ifindex)
        return rings and rings.receive

    def stats(self) -> NicStats:
        """By queue where the driver says, by the kernel's interface or its own."""
        counters = self._counters()
        queues = []
        for index in range(self._count()):
            counter = counters.get(index)
            packets = counter and counter.packets
            queues.append(QueueStats(index, packets, counter and counter.bytes, None, None))
        drops = self.interface.read(DROPS)
        return NicStats(tuple(queues), None if drops is None else int(drops))

    def _counters(self) -> dict[int, QueueCounters]:
        said = self._netdev and self._netdev.counters(self.ifindex)
        return {each.queue: each for each in said or self._driver_stats.queues() or ()}

    def _packets(self) -> dict[int, int]:
        counters = self._counters().values()
        return {each.queue: each.packets for each in counters if each.packets is not None}

    def _count(self) -> int:
        return receive_queues(self.interface)

    def _rings(self) -> int:
        """Queues that the driver spreads packets over by itself."""
        with refusable(errno.EOPNOTSUPP):
            return self._here().rxnfc.rings()
        return self._count()


def _netdev_family(netns: str | None) -> NetdevFamily | None:
    with refusable(errno.ENOENT):
        return NetdevFamily(netns)
    return None
