# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon tells the kernel of control groups, as the kernel shows it."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from atfnd.kernel.system.cgroup import open_root
from tests.bed import a_bed
from tests.daemons import policy
from tests.labs import Lab
from tests.observe.groups import GROUP, UNIT, a_group
from tests.wait import until

__all__: list[str] = []

LEAVE = policy(f"  - {{ name: quiet, match: {{ unit: {UNIT} }}, placement: leave }}")


def groups_known(pid: int) -> str:
    """The map `groups` of a process, as bpftool prints it."""
    ids = set[str]()
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # one that it just closed
            ids.update(re.findall(r"^map_id:\s*(\d+)$", each.read_text(), re.MULTILINE))
    for map_id in ids:
        show, dump = (["bpftool", "map", verb, "id", map_id] for verb in ("show", "dump"))
        if "name groups " in subprocess.check_output(show, text=True):
            return subprocess.check_output(dump, text=True)
    return ""


def test_a_group_is_known_from_its_first_flow_on(shared_lab: Lab, tmp_path: Path) -> None:
    with a_bed(shared_lab, tmp_path, "bpf", LEAVE) as bed, a_group() as move:
        bed.start()
        root = open_root()
        try:
            inode = os.stat(f"{GROUP}/{UNIT}", dir_fd=root).st_ino
        finally:
            os.close(root)
        move(f"{GROUP}/{UNIT}")
        app = bed.apps.tcp()
        move(None)
        try:
            process = bed.daemon.process
            assert process is not None
            until(lambda: f'"cgroup": {inode}' in groups_known(process.pid), "its group is known")
            assert bed.daemon.flow(app.key) is None
        finally:
            app.end()
