# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel kills a daemon because memory has run out: traffic goes on as it was, and a restart
takes its rules over."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.applications import delivered
from tests.bed import a_bed
from tests.daemon.failing import in_kernel, loaded
from tests.daemon.memory import a_memory_group
from tests.daemons import standing
from tests.labs import Lab
from tests.wait import until

LIMIT_BYTES = 400 << 20
STOP_S = 60


def test_killed_for_memory(shared_lab: Lab, tmp_path: Path) -> None:
    name = shared_lab.nic.name
    with a_memory_group() as group, a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.daemon.start("--nic", name, "--arm", name, wrapped=group.wraps())
        process = bed.daemon.process
        assert process is not None
        apps = [bed.apps.tcp(), bed.apps.udp_connected()]
        for app in apps:
            bed.steered(app)
        before, held = standing(shared_lab), set(loaded(process.pid))
        group.exhaust(LIMIT_BYTES)
        assert process.wait(STOP_S) == -signal.SIGKILL
        assert group.kills() == 1
        assert standing(shared_lab) == before
        for app in apps:
            delivered(bed.meter, app)
        until(lambda: not held & in_kernel(), "its BPF objects are freed")
        bed.start()
        (adopted,) = bed.daemon.events("adopt")
        assert adopted["what"] == "2 filters taken over, 0 orphans deleted"
        assert standing(shared_lab) == before
        for app in apps:
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
        assert bed.daemon.end() == 0
