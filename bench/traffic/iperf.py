# SPDX-License-Identifier: GPL-2.0-or-later
"""iperf3(1) in namespaces. Its 3.12 is single-threaded: one process owns all of its streams, so, as
in the paper, 2n streams are two servers (ports 5001 and 6001) of n streams each.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator

from atfnd.errors import OperatorError
from bench.children import Child, child

__all__ = ["PORTS", "client", "received_bits_per_s", "server"]

PORTS = (5001, 6001)
MOST_STREAMS = 128


PACED_BLOCK = "16K"


@contextlib.contextmanager
def server(
    netns: str | None, address: str, port: int, cpus: Iterable[int] | None = None
) -> Iterator[Child]:
    """One server, listening when this yields."""
    command = ("iperf3", "-s", "-B", address, "-p", str(port), "--forceflush")
    with child(*command, netns=netns, cpus=cpus) as running:
        running.said("Server listening")
        yield running


@contextlib.contextmanager
def client(
    netns: str,
    address: str,
    port: int,
    streams: int,
    seconds: float,
    stream_bits_per_s: int | None = None,
    reverse: bool = False,
    *,
    udp: bool = False,
) -> Iterator[Child]:
    """One client of `streams` streams; `reverse` makes the server send. Ends after `seconds`. UDP
    goes as fast as it can without a pace."""
    if not 1 <= streams <= MOST_STREAMS:
        raise OperatorError(f"iperf3 takes 1 to {MOST_STREAMS} streams, not {streams}")
    command = ["iperf3", "-c", address, "-p", str(port), "-P", str(streams), "-J"]
    command += ["-t", f"{seconds:g}"]
    if stream_bits_per_s:
        # iperf3 paces by blocks: 128 KiB ones (its default) are a burst every 100 ms at 10 Mbit/s
        command += ["-b", str(stream_bits_per_s), *([] if udp else ["-l", PACED_BLOCK])]
    command += ["-R"] if reverse else []
    if udp:
        command += ["-u", *([] if stream_bits_per_s else ["-b", "0"])]
    with child(*command, netns=netns) as running:
        yield running


def received_bits_per_s(output: str) -> float:
    """Goodput at the receiver from a client's JSON report; OperatorError in its words."""
    report = json.loads(output)
    if error := report.get("error"):
        raise OperatorError(f"iperf3: {error}", exit_code=1)
    return float(report["end"]["sum_received"]["bits_per_second"])
