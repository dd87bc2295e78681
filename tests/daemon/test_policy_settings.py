# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy asks of an interface besides flows: CPUs of its queues (`serve_on`), a symmetric
hash, how it is received. All come, and go back, in one way; a real NIC of the lab has them."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

from atfnd.model.nic import RSS_KEY
from atfnd.model.reception import DEFER, OF_NAPI, SUSPEND, TIMEOUT
from atfnd.model.toeplitz import rss_queue, symmetric_key
from tests.applications import CPUS, delivered
from tests.bed import Bed, a_bed
from tests.daemon.test_link import set_link
from tests.daemons import EVERYTHING, policy
from tests.labs import HOST, PEER, Lab, packed
from tests.nic.packets import ipv4, transport
from tests.wait import until

__all__ = ["OFF", "everywhere", "of_queues"]

DEFERRED = "reception: {deferred: {timeout: 200us, polls: 10}}"
KEEP = f"{EVERYTHING}interfaces: [{{ match: {{ name: '*' }} }}]\n"
ASKS = KEEP.replace("} }]", f"}}, serve_on: '!0', rss_hash: symmetric, {DEFERRED} }}]")
OFF, ON = {TIMEOUT: "0", DEFER: "0", SUSPEND: "0"}, {TIMEOUT: "200000", DEFER: "10", SUSPEND: "0"}
UDP, FLOWS = 17, 24
ETHERNET = bytes.fromhex("0200000009010200000009010800")
LOOSE = 2  # the queue that nobody has confined


def of_queues(lab: Lab) -> list[dict[str, str]]:
    """What the kernel says of how each queue is received."""
    settings = lab.nic.settings()
    queues = range(len(lab.nic.queues()))
    return [{kind: settings[f"{kind}:{queue}"] for kind in OF_NAPI} for queue in queues]


def everywhere(lab: Lab, wanted: dict[str, str]) -> None:
    until(lambda: all(each == wanted for each in of_queues(lab)), f"all are {wanted}", 30)


def cpus(lab: Lab) -> list[int | None]:
    return [queue.cpu for queue in lab.nic.queues()]


def key(lab: Lab) -> str:
    found = lab.nic.setting(RSS_KEY)
    assert found is not None
    return found


def standing(lab: Lab) -> tuple[object, ...]:
    return cpus(lab), key(lab), of_queues(lab)


def as_asked(lab: Lab) -> None:
    until(lambda: 0 not in cpus(lab), "no queue is on CPU 0", 30)
    symmetric = symmetric_key(len(bytes.fromhex(key(lab)))).hex()
    until(lambda: key(lab) == symmetric, "it has a symmetric hash", 30)
    everywhere(lab, ON)


def reloaded(bed: Bed, config: str) -> None:
    bed.daemon.config.write_text(config)
    assert bed.daemon.ctl("reload").returncode == 0


def manual(bed: Bed) -> set[str]:
    return {*bed.daemon.get("/v1/nics")["nics"][0]["manual"]}


def queue_of(lab: Lab, src: bytes, dst: bytes, ports: tuple[int, int]) -> int:
    """The queue that a packet came to."""

    def counts() -> list[int]:
        return [each.by_rss or 0 for each in lab.nic.stats().queues]

    before = counts()
    with lab.open("wire", socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("s0", 0))
        wire.send(ETHERNET + ipv4(UDP, src, dst, transport(*ports)))
    until(lambda: sum(counts()) > sum(before), "it is counted")
    return next(i for i, (now, was) in enumerate(zip(counts(), before, strict=True)) if now > was)


def apart(lab: Lab) -> int:
    """How many of some flows have their two directions on queues of different numbers."""
    choose, there = random.Random(1), packed(HOST[socket.AF_INET])
    found = 0
    for _ in range(FLOWS):
        here = packed(PEER[socket.AF_INET])[:2] + choose.randbytes(2)
        ports = choose.randrange(1024, 65536), choose.randrange(1024, 65536)
        forth, back = (here, there, ports), (there, here, ports[::-1])
        found += queue_of(lab, *forth) != queue_of(lab, *back)
    return found


def test_all_come_with_the_policy_and_with_the_link_and_go_back(lab: Lab, tmp_path: Path) -> None:
    found, name = standing(lab), lab.nic.name
    assert 0 in cpus(lab)
    assert apart(lab) > FLOWS // 3
    with a_bed(lab, tmp_path, "bpf", ASKS) as bed:
        bed.start()
        as_asked(lab)
        assert apart(lab) == 0
        assert "serve_on is !0" in bed.daemon.ctl("events", "--json").stdout
        (nic,) = bed.daemon.get("/v1/nics")["nics"]
        assert nic["rss"]["key"].replace(":", "") == key(lab)
        row = bed.daemon.get("/v1/queues")["queues"][0]
        assert row["reception"]["mode"] == row["reception_wanted"]["mode"] == "deferred"
        assert row["reception_why_not"] is None
        assert "deferred 200us x 10" in bed.daemon.ctl("queues").stdout

        before = [queue.napi_id for queue in lab.nic.queues()]
        for state in ("down", "up"):
            set_link(lab, state)
        until(lambda: before != [q.napi_id for q in lab.nic.queues()], "its NAPIs are new ones")
        as_asked(lab)
        assert bed.daemon.events("manual") == []

        reloaded(bed, KEEP)
        until(lambda: standing(lab) == found, "all is as it was found", 30)
        reloaded(bed, ASKS)
        as_asked(lab)
        assert bed.daemon.ctl("restore", name).returncode == 0
        assert standing(lab) == found


def test_what_another_program_sets_stays(lab: Lab, tmp_path: Path) -> None:
    """Also while no daemon runs, and although the NIC is armed anew."""
    found, name = cpus(lab), lab.nic.name
    theirs = {"queue-cpu:1": "0", RSS_KEY: "11" * 40, f"{TIMEOUT}:1": "5000"}
    with a_bed(lab, tmp_path, "bpf", ASKS) as bed:
        bed.start()
        as_asked(lab)
        assert bed.daemon.ctl("disarm", name).returncode == 0
        bed.daemon.end()
        lab.nic.write_setting("queue-cpu:1", "0")
        bed.start()
        assert bed.daemon.ctl("arm", name).returncode == 0
        assert manual(bed) == {"queue-cpu:1"}
        for setting, value in theirs.items():
            lab.nic.write_setting(setting, value)
        until(lambda: manual(bed) == theirs.keys(), "it is noticed", 60)
        assert bed.daemon.ctl("restore", name).returncode == 0
        assert {setting: lab.nic.setting(setting) for setting in theirs} == theirs
        assert of_queues(lab) == [OFF, OFF | {TIMEOUT: "5000"}, OFF, OFF]
        assert cpus(lab) == [found[0], 0, *found[2:]]


def test_a_rule_has_its_mode_on_the_queue_of_its_owner_only(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", policy(order=f"strict\n    {DEFERRED}")) as bed:
        bed.start()
        app = bed.apps.udp_connected()
        queue = bed.steered(app)["target_queue"]
        until(lambda: of_queues(lab)[queue] == ON, f"queue {queue} of its owner is deferred")
        others = [each for index, each in enumerate(of_queues(lab)) if index != queue]
        assert others == [OFF] * 3
        row = bed.daemon.get("/v1/queues")["queues"][queue]
        assert row["reception_wanted"]["rule"] == "everything"
        said = bed.daemon.ctl("explain", str(app.key)).stdout
        assert "a timer that polls while there is traffic (deferred interrupts)" in said
        bed.apps.close()
        everywhere(lab, OFF)

        reloaded(bed, ASKS.replace(DEFERRED, "reception: busy"))

        def why_not() -> set[str]:
            rows = bed.daemon.get("/v1/queues")["queues"]
            return {row["reception_why_not"] for row in rows} - {None}

        until(why_not, "a mode that cannot be had is refused, with the reason")
        assert why_not() == {"busy: its NAPI cannot have a thread"}
        assert "is not received as the policy asks: busy" in bed.daemon.ctl("doctor").stdout


def test_a_loose_queue_is_confined_unless_an_admin_lets_it_loose(lab: Lab, tmp_path: Path) -> None:
    def let_loose() -> None:
        os.sched_setaffinity(lab.nic.queues()[LOOSE].pid or 0, CPUS)

    let_loose()
    with a_bed(lab, tmp_path, "bpf") as bed:
        bed.start(arm=False)
        assert cpus(lab)[LOOSE] is None
        assert bed.daemon.ctl("arm", lab.nic.name).returncode == 0
        assert cpus(lab)[LOOSE] is not None
        bed.daemon.end()
        assert cpus(lab)[LOOSE] is not None
        done = bed.daemon.restore()
        assert (done.returncode, f"queue-cpu:{LOOSE} is" in done.stdout) == (0, True)
        assert cpus(lab)[LOOSE] is None

        bed.start()
        app, rss = bed.apps.tcp(), lab.nic.rss()
        while rss_queue(rss, app.key) == LOOSE:  # once that is loose, RSS may deliver it anywhere
            app.end()
            app = bed.apps.tcp()
        bed.steered(app)
        let_loose()
        until(lambda: manual(bed) == {f"queue-cpu:{LOOSE}"}, "it is noticed", 60)
        app.migrate()
        bed.steered(app)
        delivered(bed.meter, app)
        bed.daemon.end()
        assert bed.daemon.restore().returncode == 0
        assert cpus(lab)[LOOSE] is None
