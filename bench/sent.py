# SPDX-License-Identifier: GPL-2.0-or-later
"""A lab NIC that steers by the CPU of transmitted packets (bench/extension/sent.bpf.c).

Writes the lab's filter table from BPF: each TCP packet that a flow with a filter transmits leads
what the flow receives to the queue of the CPU that transmitted it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout_of
from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink.clsact import egress_programs
from atfnd.model import Match
from atfnd.nic.lab.device import MASKS, WIRE_LINK, LabDevice, wire_netns
from bench.bed import Bed
from bench.connections import connections
from bench.extension import _bench
from bench.netns import inode

__all__ = ["SentTotals", "by_transmitted"]

CPUS = 64  # SENT_CPUS


class SentTotals(NamedTuple):
    """Fields of `struct sent_totals`, summed over CPUs."""

    packets: int  # transmitted by flows that have a filter
    moves: int  # of them, those that moved the filter of their flow


@contextlib.contextmanager
def by_transmitted(bed: Bed) -> Iterator[Callable[[], SentTotals]]:
    """Steer the TCP connections that are there; yields what was done so far. Each gets a filter to
    the queue of its number first. OperatorError: not a lab, or other filters are in it."""
    lab = bed.nic.removeprefix("lab:")
    if lab == bed.nic:
        raise OperatorError(f"{bed.nic} is no lab NIC", exit_code=1)
    with contextlib.ExitStack() as undo:
        with bed.open() as nic:
            for number, key in enumerate(connections(bed)):
                nic.insert(Match.of(key), number % len(bed.cpus))
        undo.callback(bed.clear_filters)
        device = undo.enter_context(contextlib.closing(LabDevice.open(lab)))
        masks = [each for each in range(MASKS) if device.mask_filters[each]]
        if len(masks) != 1:
            raise OperatorError(f"{bed.nic} has filters of {len(masks)} masks", exit_code=1)
        with contextlib.closing(Interface(WIRE_LINK, wire_netns(lab))) as link:
            [program] = egress_programs(wire_netns(lab), link.ifindex)
        maps = _bpf.classifier_maps(program)
        for fd, _, _ in maps.values():
            undo.callback(os.close, fd)
        queues = [0] * CPUS
        for queue, cpu in enumerate(bed.cpus):
            queues[cpu % CPUS] = queue
        steers = undo.enter_context(
            contextlib.closing(
                _bench.Sent(
                    inode(bed.host),
                    bed.ifindex,
                    maps["filters"][0],
                    maps["locations"][0],
                    masks[0],
                    b"".join(each.to_bytes(4, "little") for each in queues),
                )
            )
        )
        layout = layout_of(*_bench.layout("sent", "sent_totals"))
        columns = [layout.fields.index(each) for each in SentTotals._fields]

        def totals() -> SentTotals:
            summed = [*map(sum, zip(*layout.codec.iter_unpack(steers.totals()), strict=True))]
            return SentTotals(*(summed[at] for at in columns))

        yield totals
