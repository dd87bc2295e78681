# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings of a real NIC that steer packets, by name, as text: `nic.Nic.settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atfnd.kernel.ethtool import rxfh
from atfnd.kernel.ethtool.device import EthtoolFamily
from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.packet_steering import read_one, read_steering, write_steering
from atfnd.kernel.system.cpulist import format_cpulist, parse_cpulist
from atfnd.model.nic import RSS_KEY
from atfnd.model.reception import OF_NAPI, THREAD
from atfnd.nic.ethtool.napi_switches import NapiSwitches
from atfnd.nic.ethtool.queues import Queues, confine
from atfnd.nic.napi_settings import NapiSettings

__all__ = ["DEFAULT", "EthtoolSettings"]

DEFAULT = "default"  # the RSS table is the driver's own, which counts as no user's choice
SWITCH = {"on": True, "off": False}
_OF_THREADS = "threaded", THREAD


class EthtoolSettings:
    """Reads all of them, writes one. OSError(ENODEV) when the interface is gone."""

    def __init__(
        self,
        interface: Interface,
        ethtool: EthtoolFamily,
        queues: Queues,
        rings: Callable[[], int],
        napis: NapiSwitches,
    ) -> None:
        self._interface = interface
        self._ethtool = ethtool
        self._queues = queues
        self._napis = napis
        self._deferral = NapiSettings(interface, queues.read)
        self._rings = rings  # how many queues the driver's own RSS table is spread over

    def read(self) -> Mapping[str, str]:
        cpus = {queue.index: self._queues.cpus(queue) for queue in self._queues.read()}
        found = {f"queue-cpu:{i}": format_cpulist(c) for i, c in cpus.items() if c is not None}
        rss = rxfh.read_if_there(self._interface)
        if rss.table:
            found["rss"] = self._table_text(rss.table)
        if rss.key:
            found[RSS_KEY] = rss.key.hex()
        flags = self._ethtool.private_flags(self._interface.ifindex)
        found |= {f"priv:{name}": "on" if on else "off" for name, on in flags.items()}
        found |= read_steering(self._interface)
        return found | self._napis.read() | self._deferral.read()

    def one(self, name: str) -> str | None:
        """One of `read`, at the price of one; None when there is none of this name."""
        kind, _, rest = name.partition(":")
        if name in ("rss", RSS_KEY):
            rss = rxfh.read_if_there(self._interface)
            text = self._table_text(rss.table) if name == "rss" else rss.key.hex()
            return text or None
        if kind in _OF_THREADS:
            return self._napis.one(name)
        if kind in OF_NAPI:
            return self._deferral.one(name)
        if kind == "queue-cpu":
            queue = next((q for q in self._queues.read() if str(q.index) == rest), None)
            cpus = None if queue is None else self._queues.cpus(queue)
            return None if cpus is None else format_cpulist(cpus)
        return self.read().get(name) if kind == "priv" else read_one(self._interface, name)

    def _table_text(self, table: tuple[int, ...]) -> str:
        if not table:
            return ""
        default = rxfh.default_table(len(table), self._rings())
        return DEFAULT if table == default else " ".join(map(str, table))

    def write(self, name: str, value: str) -> None:
        """KeyError: no such setting; ValueError: not of its form; OSError: the kernel refuses."""
        kind, _, rest = name.partition(":")
        if name == "rss":
            self._write_table(value)
        elif name == RSS_KEY:
            self._write_key(bytes.fromhex(value))
        elif kind in _OF_THREADS:
            self._napis.write(name, value)
        elif kind in OF_NAPI:
            self._deferral.write(name, value)
        elif kind == "priv":
            self._write_flag(rest, value)
        elif kind == "queue-cpu":
            queue = next((q for q in self._queues.read() if str(q.index) == rest), None)
            if queue is None:
                raise KeyError(name)
            confine(queue, parse_cpulist(value))
        else:
            write_steering(self._interface, name, value)

    def _write_table(self, value: str) -> None:
        if not rxfh.read_if_there(self._interface).table:
            raise KeyError("rss")
        if value == DEFAULT:
            rxfh.reset(self._interface)
        else:
            rxfh.write(self._interface, tuple(map(int, value.split())), None)

    def _write_key(self, key: bytes) -> None:
        if not rxfh.read_if_there(self._interface).key:
            raise KeyError(RSS_KEY)
        rxfh.write(self._interface, None, key)

    def _write_flag(self, flag: str, value: str) -> None:
        if flag not in self._ethtool.private_flags(self._interface.ifindex):
            raise KeyError(f"priv:{flag}")
        if value not in SWITCH:
            raise ValueError(f"priv:{flag} is on or off, not {value!r}")
        self._ethtool.set_private_flag(self._interface.ifindex, flag, SWITCH[value])
