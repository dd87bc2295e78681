# SPDX-License-Identifier: GPL-2.0-or-later
"""EthtoolNic on igb and virtio-net as QEMU emulates them, with their drivers. Neither links its
queues to NAPIs or interrupts in Linux 6.12."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from atfnd.kernel.ethtool.changes import ethtool_changes
from atfnd.kernel.interface import Interface
from atfnd.model import Action, ActionKind, Queue, Rss
from atfnd.model.reason import Code
from atfnd.nic.driver import open_nic
from atfnd.nic.ethtool.nic import EthtoolNic
from atfnd.nic.ethtool.queues import Queues
from atfnd.program import queue_cpu, setting
from atfnd.program.journals.undo_journal import UndoJournal
from tests.guest.simlab import a_lab_between, ethtool, interrupts, ports, sh
from tests.guest.wired import Wired
from tests.wait import until

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]


@pytest.fixture(scope="module", params=["igb", "virtio_net"])
def port(request: pytest.FixtureRequest) -> Iterator[Wired]:
    near, far = ports(request.param)[:2]
    with a_lab_between(near, far) as lab:
        yield Wired(lab)


@pytest.fixture
def nic(port: Wired) -> Iterator[EthtoolNic]:
    """Afterwards every setting is what it was."""
    opened = open_nic(port.name)
    assert isinstance(opened, EthtoolNic)
    with closing(opened):
        before = dict(opened.settings())
        yield opened
        for name, value in before.items():
            if opened.settings().get(name) != value:
                opened.write_setting(name, value)
        for name, value in opened.settings().items():  # some are of each queue, found by a probe
            assert value == before.get(name, before.get(name.partition(":")[0])), name


def all_to(nic: EthtoolNic, queue: int) -> None:
    rss = nic.rss()
    assert rss is not None
    nic.set_rss(Rss(b"", (queue,) * len(rss.table)))


def shown_table(name: str) -> tuple[int, ...]:
    """The indirection table as ethtool prints it."""
    rows = re.findall(r"^ +\d+: +([\d ]+)$", ethtool("-x", name), re.MULTILINE)
    return tuple(int(queue) for row in rows for queue in row.split())


def test_the_chain(nic: EthtoolNic, port: Wired) -> None:
    """Packets given to a queue come by the NAPI, interrupt and CPU that were said, and go with it
    to another CPU."""
    for queue in nic.queues():
        irq, first = queue.irq, queue.cpu
        assert irq is not None
        assert first is not None
        all_to(nic, queue.index)
        counted = packets(nic, queue.index)
        comes_by(port, queue)
        for cpu in (first, 3 - queue.index):
            if cpu != first:
                nic.set_queue_cpu(queue.index, cpu)
            assert nic.queues()[queue.index].cpu == cpu
            before = interrupts(irq)[cpu]
            comes_on(port, cpu)
            assert interrupts(irq)[cpu] > before
        assert packets(nic, queue.index) > counted


def packets(nic: EthtoolNic, queue: int) -> int:
    counted = nic.stats().queues[queue].packets
    assert counted is not None
    return counted


def comes_by(port: Wired, queue: Queue) -> None:
    assert queue.napi_id is not None
    what = f"{port.name}: packets come by the NAPI of queue {queue.index}"
    until(lambda: port.napi_id() == queue.napi_id, what)


def comes_on(port: Wired, cpu: int) -> None:
    until(lambda: port.cpu() == cpu, f"{port.name}: packets come on CPU {cpu}")


def test_a_queue_that_may_be_anywhere_is_somewhere(nic: EthtoolNic, port: Wired) -> None:
    """Of several CPUs the interrupt controller chooses one."""
    all_to(nic, 2)
    nic.write_setting("queue-cpu:2", "0-3")
    until(lambda: port.cpu() == nic.queues()[2].cpu, "it is said where")


@pytest.mark.parametrize(("index", "cpu"), [(0, 4095), (4, 0), (-1, 0)])
def test_a_queue_or_cpu_that_is_not_there(nic: EthtoolNic, index: int, cpu: int) -> None:
    with pytest.raises(OSError, match=r"Numerical result out of range|no queue"):
        nic.set_queue_cpu(index, cpu)


def test_the_rss_table(nic: EthtoolNic, port: Wired) -> None:
    rss = nic.rss()
    assert rss is not None
    assert shown_table(port.name) == rss.table
    wanted = tuple(3 - entry % 4 for entry in range(len(rss.table)))
    nic.set_rss(Rss(rss.key, wanted))
    assert shown_table(port.name) == wanted
    assert nic.settings()["rss"] == " ".join(map(str, wanted))
    nic.write_setting("rss", "default")
    assert shown_table(port.name) == tuple(entry % 4 for entry in range(len(rss.table)))
    assert nic.settings()["rss"] == "default"
    for table in (wanted[:-1], (4, *wanted[1:])):
        with pytest.raises(OSError, match=r"entries, not|Invalid argument"):
            nic.set_rss(Rss(rss.key, table))


def test_it_can_be_probed(nic: EthtoolNic, port: Wired) -> None:
    """No 5-tuple filters, and a reason; the rest is proven. The fixture sees that nothing stays."""
    expected = nic.caps()
    caps = nic.probe()
    for said in (expected, caps, nic.caps()):
        assert (said.filters, said.rss_table, said.queue_cpu) == (False, True, True)
        assert said.why
    assert (expected.probed, caps.probed, nic.caps().probed) == (False, True, True)


def test_what_ethtool_shows(nic: EthtoolNic, port: Wired) -> None:
    device = nic.device()
    information = dict(
        line.split(": ", 1) for line in ethtool("-i", port.name).splitlines() if ": " in line
    )
    assert (device.driver, device.bus) == (information["driver"], information["bus-info"])
    assert device.channels == 4
    combined = re.findall(r"Combined:\s+(\d+)", ethtool("-l", port.name))
    assert [device.channels_max, device.channels] == list(map(int, combined))
    rings = re.findall(r"^RX:\s+(\d+)", ethtool("-g", port.name), re.MULTILINE)
    assert [device.ring_max, device.ring_size] == list(map(int, rings))
    usecs = re.search(r"^rx-usecs:\s+(\d+)", ethtool("-c", port.name), re.MULTILINE)
    assert device.rx_usecs == (int(usecs[1]) if usecs else None)
    assert device.ntuple == ("ntuple-filters: on" in ethtool("-k", port.name))
    assert device.rss_contexts in (0, None)


def test_an_admin_changes_channels(nic: EthtoolNic, port: Wired) -> None:
    """Interrupts are freed and requested again, under the same numbers or others."""
    with closing(ethtool_changes(None)) as changes:
        for count in (2, 3, 4):
            nic.write_setting("rss", "default")
            changes.drain()
            ethtool("-L", port.name, "combined", count)
            assert changes.drain() == {nic.ifindex}
            assert nic.device().channels == count
            last = until(lambda n=count: complete(nic, n), "the queues are back")[-1]  # type: ignore[misc]
            all_to(nic, count - 1)
            comes_by(port, last)


def complete(nic: EthtoolNic, count: int) -> tuple[Queue, ...]:
    """The queues, once there are so many and each has NAPI, interrupt and CPU."""
    queues = nic.queues()
    known = all(None not in (queue.napi_id, queue.irq, queue.cpu) for queue in queues)
    return queues if known and len(queues) == count else ()


def test_down_and_up(nic: EthtoolNic, port: Wired) -> None:
    """Before Linux 6.3 there is no family netdev: interrupts by their names, and no NAPI."""
    with closing(Interface(port.name)) as interface, closing(Queues(interface, None)) as queues:
        sh("ip", "link", "set", port.name, "down")
        assert not nic.up()
        assert {queue.napi_id for queue in nic.queues()} == {None}
        with pytest.raises(OSError, match="the link is down"):
            nic.set_queue_cpu(0, 0)
        kept = {queue.irq for queue in queues.read()}  # by virtio_net; igb gives them back
        sh("ip", "link", "set", port.name, "up")
        last = until(lambda: complete(nic, 4), "the queues are back")[-1]
        all_to(nic, 3)
        comes_by(port, last)
        assert kept in ({None}, {queue.irq for queue in nic.queues()})
        known = [(queue.index, queue.irq) for queue in nic.queues()]
        assert [(queue.index, queue.irq) for queue in queues.read()] == known
        assert {queue.napi_id for queue in queues.read()} == {None}


def test_a_private_flag(nic: EthtoolNic, port: Wired) -> None:
    """igb has one, virtio_net none."""
    shown = re.findall(r"^(\S+) *: (on|off)$", shown_flags(port.name), re.MULTILINE)
    flags = {name: value for name, value in nic.settings().items() if name.startswith("priv:")}
    assert flags == {f"priv:{name}": value for name, value in shown}
    for name in flags:
        nic.write_setting(name, "on")
        assert re.search(rf"^{name[5:]} *: on$", shown_flags(port.name), re.MULTILINE)
        with pytest.raises(ValueError, match="on or off"):
            nic.write_setting(name, "1")


def shown_flags(name: str) -> str:
    """ethtool fails where there is none."""
    done = subprocess.run(["ethtool", "--show-priv-flags", name], capture_output=True, text=True)
    return done.stdout


def test_a_restore_while_the_link_is_down_is_refused_and_done_later(
    nic: EthtoolNic, port: Wired, tmp_path: Path
) -> None:
    """An interrupt keeps its CPUs while it is free, so the original value is kept as well."""
    before = nic.setting("queue-cpu:1")
    assert before is not None
    with closing(UndoJournal(tmp_path / "originals.journal")) as undo_journal:
        action = Action(
            ActionKind.QUEUE_CPU, port.name, None, None, None, 2, Code.UNSAID(), "", queue=1
        )
        assert queue_cpu.apply(nic, undo_journal, action).errno == 0
        sh("ip", "link", "set", port.name, "down")
        readable = "queue-cpu:1" in nic.settings()  # virtio_net keeps its interrupts
        undone = setting.undo(nic, undo_journal)
        assert [each.errno for each in undone] == [0 if readable else errno.ENETDOWN]
        sh("ip", "link", "set", port.name, "up")
        until(lambda: complete(nic, 4), "the queues are back")
        assert (nic.setting("queue-cpu:1") == "2") is not readable
        again = setting.undo(nic, undo_journal)
        assert [each.errno for each in again] == ([] if readable else [0])
        assert nic.setting("queue-cpu:1") == before
