# SPDX-License-Identifier: GPL-2.0-or-later
"""A SYN flood to the port of a server that is steered: atfnd is asked for nothing by it, and steers
on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atfnd.kernel.system.netns import in_netns
from atfnd.lab.wiring import PEER_LINK, PEER_MAC
from tests.applications import delivered
from tests.bed import a_bed
from tests.daemons import policy
from tests.labs import HOST, Lab
from tests.wait import until

PER_S = 50_000  # attempted; of a machine that is busy otherwise, as many as it can
COUNTED = 250_000
MORE_BYTES = 4 << 20  # that a daemon may grow by itself, whatever arrives
NS_EACH = 2_000  # of its CPU time for an attempt: a tenth of a core at 50,000 a second


def attempted(lab: Lab) -> int:
    """TCP segments that came to the host (net/ipv4/proc.c, /proc/net/snmp)."""
    text = in_netns(lab.netns["host"], Path("/proc/thread-self/net/snmp").read_text)
    names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("InSegs")])


@contextmanager
def a_flood(lab: Lab, port: int) -> Iterator[None]:
    """Says at its end how many a second there were."""
    where = (PEER_LINK, PEER_MAC, HOST[socket.AF_INET], str(port), str(PER_S))
    words = [
        "ip",
        "netns",
        "exec",
        f"{lab.name}-peer",
        sys.executable,
        "-m",
        "tests.daemon.flood",
        *where,
    ]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ok\n"
            yield
            sent, seconds = process.communicate("\n", timeout=60)[0].split()
            print(f"{sent} attempts, {int(sent) / float(seconds):,.0f} a second")
        finally:
            process.kill()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def cpu_time_ns(pid: int) -> int:
    """Of all its threads (fs/proc/base.c, /proc/PID/schedstat is of one)."""
    spent = 0
    for each in Path(f"/proc/{pid}/task").iterdir():
        spent += int((each / "schedstat").read_text().split()[0])
    return spent


@pytest.mark.parametrize("order", ["immediate", "strict"])
def test_a_flood(lab: Lab, tmp_path: Path, order: str) -> None:
    """`strict`: connections are observed from their birth on, too, and come by their port's."""
    with a_bed(lab, tmp_path, "bpf", policy(order=order)) as bed:
        bed.start()
        assert bed.daemon.process is not None
        pid, server = bed.daemon.process.pid, bed.apps.tcp()
        delivered(bed.meter, server)
        with a_flood(lab, server.key.local_port):
            start = attempted(lab)
            until(lambda: attempted(lab) > start + PER_S, "the flood has come", 60)
            server.migrate()
            delivered(bed.meter, server)
            late = bed.apps.joins(server)
            delivered(bed.meter, late)
            start, used_ns, used_bytes = attempted(lab), cpu_time_ns(pid), resident_bytes(pid)
            until(lambda: attempted(lab) > start + COUNTED, "the flood goes on", 120)
            each_ns = (cpu_time_ns(pid) - used_ns) / (attempted(lab) - start)
            more = resident_bytes(pid) - used_bytes
            print(f"{each_ns:.0f} ns of the daemon's CPU time each, {more} bytes in all")
            delivered(bed.meter, server)
        assert each_ns < NS_EACH
        assert more < MORE_BYTES
        status = bed.daemon.status()
        assert status["events_lost"] == 0
        assert status["table_entries"] <= 2
        assert len(lab.nic.filters()) <= 2
        assert "Traceback" not in bed.daemon.said()
        assert bed.daemon.end() == 0
