# SPDX-License-Identifier: GPL-2.0-or-later
"""EthtoolNic on a veth pair: real netlink and sysfs of a device without filters, RSS or interrupts.
What hardware adds is tested in the guest."""

from __future__ import annotations

import errno
import os
from contextlib import closing

import pytest

from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.system.cpulist import format_cpulist, format_cpumask
from atfnd.model import Rss
from atfnd.model.reception import OF_NAPI
from atfnd.nic.ethtool import napi_switches
from atfnd.nic.ethtool.nic import EthtoolNic
from atfnd.nic.ethtool.queues import Queues
from tests.nic.interfaces import QUEUES, Namespace

CPUS = sorted(os.sched_getaffinity(0))


def test_queues_have_their_napis(nic: EthtoolNic, net: Namespace) -> None:
    queues = nic.queues()
    assert [queue.index for queue in queues] == list(range(QUEUES))
    ids = [queue.napi_id for queue in queues]
    assert None not in ids
    assert ids == sorted(set(ids), key=lambda napi: napi or 0)
    assert {(q.irq, q.cpu, q.threaded, q.pid) for q in queues} == {(None, None, False, None)}
    with pytest.raises(OSError, match="no interrupt and no NAPI thread") as refused:
        nic.set_queue_cpu(0, CPUS[0])
    assert refused.value.errno == errno.EOPNOTSUPP


def switched(nic: EthtoolNic) -> list[bool | None]:
    return [queue.threaded for queue in nic.queues()]


def test_one_napi_gets_a_thread_where_the_kernel_can_and_else_all(nic: EthtoolNic) -> None:
    """Whether it can (6.17) is found out by writing what is so already."""
    assert "threaded:1" not in nic.settings()
    assert nic.settings()["threaded"] == nic.setting("threaded") == "0"
    nic.probe()
    assert switched(nic) == [False] * QUEUES
    found = {name for name in nic.settings() if name.startswith("threaded")}
    each = {f"threaded:{index}" for index in range(QUEUES)}
    assert found in ({"threaded"}, each)
    name, alone = ("threaded:1", True) if found == each else ("threaded", False)
    nic.write_setting(name, "1")
    assert switched(nic) == [index == 1 or not alone for index in range(QUEUES)]
    assert nic.settings()[name] == nic.setting("threaded:1") == "1"
    nic.write_setting(name, "0")
    assert switched(nic) == [False] * QUEUES
    with pytest.raises(KeyError):
        nic.write_setting("threaded:99", "1")
    assert nic.setting("threaded:99") is None


def test_a_borrowed_thread_is_none_that_lasts(nic: EthtoolNic) -> None:
    """One switch, by two names, of the device and of a NAPI."""

    def both(number: str) -> tuple[str | None, str | None]:
        names = f"threaded{number}", f"napi-thread{number}"
        found = nic.settings()
        assert [found[name] for name in names] == [nic.setting(name) for name in names]
        return found[names[0]], found[names[1]]

    for number in ("", ":1"):
        nic.write_setting(f"threaded{number}", "1")
        assert both(number) == ("1", "0")
        nic.write_setting(f"napi-thread{number}", "1")
        assert both(number) == ("1", "1")
        nic.write_setting(f"napi-thread{number}", "0")
        assert both(number) == ("0", "0")
        nic.probe()


def test_a_thread_that_always_polls_is_not_waited_for(
    nic: EthtoolNic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would wait for an empty ring, and a sender decides when that is."""
    nic.probe()
    assert "threaded:1" in nic.settings(), "a kernel before 6.17"
    nic.write_setting("threaded:1", "1")
    with monkeypatch.context() as polling:
        polling.setattr(napi_switches, "asleep", lambda _: False)
        with pytest.raises(OSError, match="polls without a pause") as refused:
            nic.write_setting("threaded:1", "0")
    assert refused.value.errno == errno.EBUSY
    assert nic.setting("threaded:1") == "1"
    nic.write_setting("threaded:1", "0")
    assert switched(nic) == [False] * QUEUES


def test_a_napi_thread_is_confined(nic: EthtoolNic, net: Namespace) -> None:
    nic.write_setting("napi-thread", "1")
    queues = nic.queues()
    assert all(queue.threaded and queue.pid and queue.cpu is None for queue in queues)
    nic.set_queue_cpu(2, CPUS[-1])
    pid = nic.queues()[2].pid
    assert pid is not None
    assert os.sched_getaffinity(pid) == {CPUS[-1]}
    assert os.sched_getscheduler(pid) == os.SCHED_OTHER
    assert [queue.cpu for queue in nic.queues()] == [None, None, CPUS[-1], None]
    assert nic.settings()["queue-cpu:2"] == str(CPUS[-1])
    assert nic.caps().queue_cpu
    assert nic.probe().queue_cpu
    nic.write_setting("queue-cpu:2", format_cpulist(CPUS))
    assert nic.queues()[2].cpu is None
    for index, cpu in ((2, 4095), (QUEUES, CPUS[0]), (-1, CPUS[0])):
        with pytest.raises(OSError, match=r"Invalid argument|no queue") as refused:
            nic.set_queue_cpu(index, cpu)
        assert refused.value.errno == errno.EINVAL


def test_threads_alone_tell_the_napis(nic: EthtoolNic, net: Namespace) -> None:
    """As on a kernel that lists none: threads by their names, and queues by their order."""
    net.ip("link set v0 name aslongasitmaybe")
    with (
        closing(Interface("aslongasitmaybe", net.path)) as interface,
        closing(Queues(interface, None)) as queues,
    ):
        assert {queue.threaded for queue in queues.read()} == {None}
        interface.write("threaded", "1")
        assert queues.read() == nic.queues()
        assert all(queue.threaded and queue.pid for queue in queues.read())
        interface.write("threaded", "0")
        assert {queue.threaded for queue in queues.read()} == {None}


SETTINGS = [
    ("rps-cpus:1", format_cpulist(CPUS), "queues/rx-1/rps_cpus", format_cpumask(CPUS)),
    ("rps-flow-cnt:3", "256", "queues/rx-3/rps_flow_cnt", "256"),
    ("xps-cpus:0", str(CPUS[0]), "queues/tx-0/xps_cpus", format_cpumask(CPUS[:1])),
    ("xps-rxqs:2", "0-1,3", "queues/tx-2/xps_rxqs", "b"),
]


@pytest.mark.parametrize(("name", "value", "path", "text"), SETTINGS)
def test_settings_round_trip(
    nic: EthtoolNic, net: Namespace, name: str, value: str, path: str, text: str
) -> None:
    before = nic.settings()
    assert before[name] in ("", "0")
    nic.write_setting(name, value)
    assert net.read(f"/sys/class/net/v0/{path}") == text
    assert {k: v for k, v in nic.settings().items() if v != before[k]} == {name: value}
    nic.write_setting(name, before[name])
    assert nic.settings() == before


def test_the_settings_there_are(nic: EthtoolNic) -> None:
    kinds = {name.partition(":")[0] for name in nic.settings()}
    steering = {"rps-cpus", "rps-flow-cnt", "xps-cpus", "xps-rxqs", "rps-sock-flow-entries"}
    assert kinds == steering | {"threaded", "napi-thread", *OF_NAPI}
    for name in ("rss", "priv:x", "queue-cpu:99", "rps-cpus:99", "rps-cpus:", "nonsense"):
        with pytest.raises(KeyError):
            nic.write_setting(name, "0")
    for name in ("rps-cpus:0", "rps-flow-cnt:0", "xps-rxqs:0"):
        with pytest.raises(ValueError, match=r"not a CPU|invalid literal"):
            nic.write_setting(name, "nonsense")


def test_gone(nic: EthtoolNic, net: Namespace) -> None:
    """Also when another of its name is there."""
    net.ip("link del v0")
    net.ip("link add v0 type veth peer name v9")
    for call in (
        nic.up, nic.queues, nic.filters, nic.rss, nic.settings, nic.stats, nic.device, nic.probe,
        nic.conflicts,
        lambda: nic.set_queue_cpu(0, CPUS[0]),
        lambda: nic.write_setting("rps-cpus:0", "0"),
        lambda: nic.set_rss(Rss(b"", (0,))),
    ):  # fmt: skip
        with pytest.raises(OSError, match="No such device") as error:
            call()
        assert error.value.errno == errno.ENODEV


def test_there_is_none_and_nothing_is_left_open(net: Namespace) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OperatorError, match="no interface 'v7' in /run/netns"):
        EthtoolNic("v7", net.path)
    with pytest.raises(OperatorError, match="no interface 'v0' in /run/netns/nowhere"):
        EthtoolNic("v0", "/run/netns/nowhere")
    with closing(EthtoolNic("v0", net.path)) as nic:
        nic.queues(), nic.settings(), nic.conflicts(), nic.probe()
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before
