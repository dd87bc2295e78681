# SPDX-License-Identifier: GPL-2.0-or-later
"""What arming may change of a NIC besides its filters: as sysfs, procfs and ethtool have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bed import Bed, a_bed
from tests.guest.simlab import NAME, a_simlab, ethtool

__all__ = ["QUEUES", "SOCK_FLOWS", "on_simnic", "set_settings", "set_up_arfs", "settings", "table"]

QUEUES = Path("/sys/class/net") / NAME / "queues"
SOCK_FLOWS = Path("/proc/sys/net/core/rps_sock_flow_entries")


@contextmanager
def on_simnic(folder: Path, **parameters: object) -> Iterator[Bed]:
    """A daemon's bed on simnic; aRFS is set up on it, as an admin would."""
    before = SOCK_FLOWS.read_text()
    try:
        with a_simlab(**parameters) as lab, a_bed(lab, folder, "bpf") as bed:
            yield bed
            if bed.daemon.process is not None:
                bed.daemon.end()
    finally:
        SOCK_FLOWS.write_text(before)


def set_up_arfs() -> None:
    SOCK_FLOWS.write_text("32768")
    for queue in QUEUES.glob("rx-*"):
        (queue / "rps_flow_cnt").write_text("2048")


def settings(bed: Bed) -> dict[str, str]:
    """Every file that arming may change, and the indirection table."""
    files = [SOCK_FLOWS, *QUEUES.glob("rx-*/rps_*"), *QUEUES.glob("tx-*/xps_*")]
    files += [Path(f"/proc/irq/{q.irq}/smp_affinity_list") for q in bed.lab.nic.queues() if q.irq]
    return {str(file): file.read_text().strip() for file in files} | {"rss": str(table())}


def table() -> list[int]:
    """The indirection table, as `ethtool -x` prints it."""
    rows = re.findall(r"^ +\d+:((?: +\d+)+)$", ethtool("-x", NAME), re.MULTILINE)
    return [int(queue) for row in rows for queue in row.split()]


def set_settings(values: dict[str, str]) -> None:
    """Write back what `settings` read, but for the table."""
    for file, value in values.items():
        if file != "rss":
            Path(file).write_text(value)
