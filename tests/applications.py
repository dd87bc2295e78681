# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications on a lab: a process on the host with one socket, and the peer it talks with.

Both are `tests.talker` processes: real sockets, used from one thread on the core that it is given.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
from contextlib import ExitStack

from atfnd.model import FlowKey, Protocol
from atfnd.model.toeplitz import rss_queue
from atfnd.nic import Nic
from bench.meter import FlowCount, Meter
from tests.kernel.netns import Talker
from tests.labs import HOST, PEER, Ends, packed
from tests.wait import EMULATED, until

__all__ = ["CPUS", "Application", "Applications", "delivered", "rss_cpu"]

CPUS = sorted(os.sched_getaffinity(0))
_ANY6 = bytes(16)
_ports = itertools.count(20000)


def rss_cpu(lab: Ends[Nic], key: FlowKey) -> int | None:
    """The CPU that RSS delivers this flow on; None where the NIC keeps its key to itself."""
    rss = lab.nic.rss()  # None: one queue
    index = 0 if rss is None else rss_queue(rss, key)
    return next((queue.cpu for queue in lab.nic.queues() if queue.index == index), None)


class Application:
    """A process on the host that receives one flow, `key`; from its start it runs on `cpu`."""

    def __init__(self, key: FlowKey, cpu: int) -> None:
        self.key, self.cpu = key, cpu
        self.host: Talker
        self.peer: Talker
        self.talks: Talker

    @property
    def pid(self) -> int:
        return self.host.process.pid

    def pin(self, cpu: int) -> None:
        """Migrate its thread."""
        self.host.tell(f"pin {cpu}")
        self.cpu = cpu

    def migrate(self) -> int:
        """Go to another CPU, and return which."""
        self.pin(next(cpu for cpu in CPUS if cpu != self.cpu))
        return self.cpu

    def pause(self) -> None:
        self.talks.tell("pause")

    def resume(self) -> None:
        self.talks.tell("resume")

    def close(self) -> None:
        """The application closes its socket and lives on."""
        self.host.tell("close")

    def sockets(self) -> str:
        """What ss shows of both, for the report of a failure."""
        where = f"( sport = :{self.key.local_port} or dport = :{self.key.local_port} )"
        asked = (
            subprocess.run(
                ["ss", "-tuinmO", "-N", each.netns, where], capture_output=True, text=True
            )
            for each in (self.host, self.peer)
        )
        return "".join(done.stdout + done.stderr for done in asked)

    def end(self) -> None:
        """Both processes are gone, and with them their sockets."""
        self.host.stop()
        self.peer.stop()


class Applications:
    """Starts applications on a lab, on a CPU where RSS does not deliver them unless `by_rss`; ends
    them all."""

    def __init__(self, lab: Ends[Nic]) -> None:
        self.lab = lab
        self._stack = ExitStack()

    def tcp(
        self,
        family: int = socket.AF_INET,
        port: int | None = None,
        listen: str | None = None,
        *,
        by_rss: bool = False,
    ) -> Application:
        """The peer connects to the host and talks; the host echoes."""
        return self._served(Protocol.TCP, family, port, listen, by_rss)

    def serves(self) -> Application:
        """A server on the host that nobody talks with yet."""
        port, local = next(_ports), HOST[socket.AF_INET]
        key = FlowKey(Protocol.TCP, packed(local), port, packed(PEER[socket.AF_INET]), next(_ports))
        made = Application(key, CPUS[0])
        made.host = self._talker("host", made.cpu, "echo", "tcp", local, port)
        return made

    def joins(self, server: Application) -> Application:
        """Another peer connects to a server and talks; RSS delivers it on another CPU."""
        local, remote = HOST[socket.AF_INET], PEER[socket.AF_INET]
        keys = (server.key._replace(remote_port=next(_ports)) for _ in itertools.count())
        key = next(key for key in keys if rss_cpu(self.lab, key) != server.cpu)
        made = Application(key, server.cpu)
        made.host = server.host
        words = ("talk", "tcp", local, key.local_port, remote, key.remote_port)
        made.peer = made.talks = self._talker("peer", None, *words)
        return made

    def udp(self, family: int = socket.AF_INET, listen: str | None = None) -> Application:
        """An unconnected socket on the host echoes what the peer sends."""
        return self._served(Protocol.UDP, family, None, listen, False)

    def tcp_connected(self, family: int = socket.AF_INET, port: int | None = None) -> Application:
        """The host connects to `port` and talks; the peer echoes."""
        return self._connected(Protocol.TCP, family, port or next(_ports))

    def udp_connected(self, family: int = socket.AF_INET) -> Application:
        """The host connects and talks; the peer echoes."""
        return self._connected(Protocol.UDP, family, next(_ports))

    def _connected(self, protocol: Protocol, family: int, port: int) -> Application:
        local_port, name = next(_ports), protocol.name.lower()
        local, remote = HOST[family], PEER[family]
        key = FlowKey(protocol, packed(local), local_port, packed(remote), port)
        made = Application(key, self._cpu(key, False))
        made.peer = self._talker("peer", None, "echo", name, remote, port)
        words = ("talk", name, remote, port, local, local_port)
        made.host = made.talks = self._talker("host", made.cpu, *words)
        return made

    def _served(
        self, protocol: Protocol, family: int, port: int | None, listen: str | None, by_rss: bool
    ) -> Application:
        port, peer_port = port or next(_ports), next(_ports)
        local, remote = HOST[family], PEER[family]
        sent = FlowKey(protocol, packed(local), port, packed(remote), peer_port)
        made = Application(sent, self._cpu(sent, by_rss))
        if protocol is Protocol.UDP:
            bound = packed(listen or local)
            made.key = FlowKey(protocol, bound, port, bytes(len(bound)), 0)
        name = protocol.name.lower()
        made.host = self._talker("host", made.cpu, "echo", name, listen or local, port)
        words = ("talk", name, local, port, remote, peer_port)
        made.peer = made.talks = self._talker("peer", None, *words)
        return made

    def _cpu(self, key: FlowKey, by_rss: bool) -> int:
        there = rss_cpu(self.lab, key)
        assert there is not None or not by_rss
        return there if by_rss and there is not None else next(cpu for cpu in CPUS if cpu != there)

    def _talker(self, role: str, cpu: int | None, *words: object) -> Talker:
        return Talker(self._stack, f"{self.lab.name}-{role}", *words, cpu=cpu)

    def close(self) -> None:
        self._stack.close()


def delivered(meter: Meter, app: Application, segments: int = 100 // EMULATED) -> None:
    """AssertionError unless the flow comes to be delivered on its application's core, and stays:
    so many `segments` of it one after the other are."""

    # a socket bound to any address is metered as one for both families
    key = app.key if any(app.key.local) else app.key._replace(local=_ANY6, remote=_ANY6)
    nothing = FlowCount(0, 0, 0, app.cpu)

    def moved() -> bool:
        """It has used its socket there. Before that, what comes where it was is local, too."""
        known = meter.read().flows.get(key)
        return known is not None and known.app_cpu == app.cpu

    def stays() -> bool:
        """Those that come from now on. A filter for the CPU before may take effect only now; then
        it moves once more."""
        start = meter.read()

        def arrived() -> FlowCount | None:
            now = meter.read().since(start).flows.get(key, nothing)
            return now if now.local_segments + now.remote_segments >= segments else None

        count = until(arrived, f"{segments} segments of {app.key}", 30)
        assert count is not None
        return (count.remote_segments, count.app_cpu) == (0, app.cpu)

    try:
        until(moved, f"the application of {app.key} runs on {app.cpu}", 30)
        until(stays, f"{app.key} is delivered on {app.cpu}", 30)
    except AssertionError as late:
        late.add_note(app.sockets())
        raise
