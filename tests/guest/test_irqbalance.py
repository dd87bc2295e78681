# SPDX-License-Identifier: GPL-2.0-or-later
"""The real irqbalance and atfnd on one NIC with MSI-X vectors: each has what is its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import Bed, a_bed
from tests.daemon.irqbalance import balancer, spares
from tests.guest.simlab import NAME, a_simlab
from tests.wait import until

ADMINS = 9001  # an interrupt that an admin has banned; it does not exist
ALL = "0-3"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with a_simlab(pairs=0, max_queues=8, queues=4) as lab, a_bed(lab, tmp_path, "bpf") as made:
        made.daemon.start("--nic", NAME, "--observer", "bpf")
        yield made
        made.daemon.end()


def irqs(bed: Bed) -> list[int]:
    return [queue.irq for queue in bed.lab.nic.queues() if queue.irq is not None]


def where(irq: int) -> Path:
    return Path(f"/proc/irq/{irq}/smp_affinity_list")


def ours(bed: Bed) -> list[int]:
    """The queues to which we gave a CPU."""
    written = [event["what"] for event in bed.daemon.events("queue-cpu")]
    return [n for n in range(4) if any(what.startswith(f"queue {n}:") for what in written)]


def places(bed: Bed) -> list[str]:
    return [where(irq).read_text().strip() for irq in irqs(bed)]


def looked(pid: int, times: int) -> None:
    """Wait until it has looked at the interrupts so often: it sleeps between two looks."""

    def woken() -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^State:\s*[^ZX]", status, re.MULTILINE), status  # its parent is this
        found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)
        return int(found[1]) if found else 0

    before = woken()
    until(lambda: woken() > before + times, "irqbalance has looked", 60)


def findings(bed: Bed) -> list[str]:
    return [each["what"] for each in bed.daemon.get(f"/v1/doctor?nic={NAME}")["findings"]]


def test_each_leaves_alone_what_is_the_others(bed: Bed) -> None:
    for irq in irqs(bed):
        where(irq).write_text(ALL)
    with balancer(f"--banirq={ADMINS}", tied=None, interval_s=5) as pid:
        until(lambda: ALL not in places(bed), "irqbalance places them: they are its", 60)
        until(lambda: any("moves its interrupts" in each for each in findings(bed)), "it is said")
        assert spares(pid) == {ADMINS}  # nothing is asked before we are armed
        for irq in irqs(bed):  # irqbalance looks at them again in seconds
            where(irq).write_text(ALL)
        bed.daemon.post(f"/v1/nics/{NAME}/arm")
        until(lambda: spares(pid) == {ADMINS, *irqs(bed)}, "it is asked", 60)
        looked(pid, 2)  # it may have been placing them when it was asked
        until(lambda: all(each.isdecimal() for each in places(bed)), "each is on a CPU", 60)
        kept = places(bed)
        looked(pid, 4)
        assert places(bed) == kept
    with balancer(f"--banirq={ADMINS}", tied=None) as pid:
        until(lambda: spares(pid) == {ADMINS, *irqs(bed)}, "the next one is asked", 60)
        until(lambda: places(bed) == kept, "what it moved before is back", 60)
        looked(pid, 4)
        assert places(bed) == kept
        assert bed.daemon.events("manual") == []

        theirs = ours(bed)[0]
        cpu = next(cpu for cpu in "0123" if cpu != kept[theirs])
        where(irqs(bed)[theirs]).write_text(cpu)  # an admin, not irqbalance
        until(lambda: bed.daemon.events("manual"), "it is noticed", 60)
        looked(pid, 4)
        assert places(bed)[theirs] == cpu

        others = [n for n in ours(bed) if n != theirs]
        done = bed.daemon.ctl("restore", NAME)
        assert done.returncode == 0, done.stdout
        assert "irqbalance's ban of interrupts" in done.stdout
        assert [n for n in range(4) if f"queue-cpu:{n} " in done.stdout] == others
        until(lambda: spares(pid) == {ADMINS}, "all are irqbalance's again", 60)
