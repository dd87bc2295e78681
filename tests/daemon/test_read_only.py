# SPDX-License-Identifier: GPL-2.0-or-later
"""A /sys that cannot be written, where nothing has to be set there: all is served. Where something
has to, it is refused and said (tests/guest/test_methods.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.applications import delivered
from tests.bed import a_bed
from tests.daemons import ATFND, standing
from tests.labs import Lab

MTU = "/sys/class/net/lo/mtu"
REMOUNT = f"mount -o remount,ro,bind /sys && ! (echo 65536 >{MTU}) 2>/dev/null"
READ_ONLY = ("unshare", "--mount", "sh", "-c", f'{REMOUNT} && exec "$@"', "sh")


def test_steered_all_the_same(lab: Lab, tmp_path: Path) -> None:
    """Neither the daemon's own nor any of the NIC's namespace can be written."""
    before, name = standing(lab), lab.nic.name
    words = ["ip", "netns", "exec", f"{lab.name}-host", "sh", "-c"]
    shut = f"mount -o remount,ro /sys && ! (echo 65536 >{MTU}) 2>/dev/null"
    subprocess.run([*words, shut], check=True)
    with a_bed(lab, tmp_path, "bpf") as bed:
        bed.daemon.start("--nic", name, "--arm", name, wrapped=READ_ONLY)
        apps = [bed.apps.tcp(), bed.apps.udp_connected()]
        for app in apps:
            bed.steered(app)
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
        assert bed.daemon.events("refused") == []
        assert bed.daemon.end() == 0
        restore = [*READ_ONLY, ATFND, "restore", "--run-dir", str(bed.daemon.run_dir)]
        subprocess.run(restore, check=True, capture_output=True)
        assert standing(lab) == before
