# SPDX-License-Identifier: GPL-2.0-or-later
"""EthtoolNic on a NIC of 64 queues, one that goes, and interrupts that cannot move: in the guest,
with `--nic nvme:2@1`."""

from __future__ import annotations

import errno

import pytest

from atfnd.model import Rss
from tests.guest.simlab import unloaded
from tests.guest.wired import simnic
from tests.wait import until

__all__: list[str] = []


@pytest.mark.parametrize("pairs", [1, 0], ids=["platform", "msix"])
def test_many_queues(pairs: int) -> None:
    with simnic(pairs=pairs, queues=64, max_queues=64, node=1) as (port, nic):
        assert nic.device().node == 1
        queues = nic.queues()
        assert len({queue.napi_id for queue in queues} - {None}) == 64
        assert len({queue.irq for queue in queues} - {None}) == 64
        assert len(nic.stats().queues) == 64
        rss = nic.rss()
        assert rss is not None
        for index in (0, 63):
            nic.set_rss(Rss(b"", (index,) * len(rss.table)))
            until(lambda at=index: port.napi_id() == queues[at].napi_id, "packets come by it")  # type: ignore[misc]


def test_gone() -> None:
    """The module is unloaded under an open NIC, whose interrupts' files are open."""
    with simnic(queues=4) as (_, nic):
        assert len(nic.queues()) == 4
        until(unloaded, "simnic is unloaded")
        for call in (nic.up, nic.queues, nic.filters, nic.rss, nic.settings, nic.stats, nic.device):
            with pytest.raises(OSError, match="No such device") as error:
                call()
            assert error.value.errno == errno.ENODEV
