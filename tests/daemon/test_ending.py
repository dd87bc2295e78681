# SPDX-License-Identifier: GPL-2.0-or-later
"""How a daemon ends, and that nothing is left of it but its rules."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

from tests.applications import Application
from tests.bed import a_bed
from tests.daemons import OBSERVERS, standing
from tests.labs import Lab
from tests.wait import until

SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


def bpf_objects(pid: int) -> set[tuple[str, str]]:
    """("prog" or "link", id) of everything this process has open."""
    found: set[tuple[str, str]] = set()
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # a connection of ours that it just closed
            text = each.read_text()
            found.update(re.findall(r"^(prog|link)_id:\t(\d+)$", text, re.MULTILINE))
    return found


def loaded(kind: str, number: str) -> bool:
    command = ["bpftool", kind, "show", "id", number]
    return subprocess.run(command, capture_output=True, timeout=30).returncode == 0


def none_loaded(objects: set[tuple[str, str]]) -> bool:
    return not any(loaded(*each) for each in objects)


def test_nothing_is_left_but_the_rules_and_either_observer_takes_them_over(
    lab: Lab, tmp_path: Path
) -> None:
    with a_bed(lab, tmp_path, "bpf") as bed:
        apps: list[Application] = []
        for number, observer in product(SIGNALS, OBSERVERS):
            bed.start(observer=observer)  # the socket of a killed one is no obstacle
            if not apps:
                apps += [bed.apps.tcp(), bed.apps.udp_connected()]
                bed.steered(apps[0])
            apps[0].migrate()
            for app in apps:
                bed.steered(app)
            assert bed.daemon.process is not None
            pid = bed.daemon.process.pid

            def held(pid: int = pid) -> set[tuple[str, str]]:
                """Some go when nothing has moved for long."""
                found = bpf_objects(pid)
                return found if all(loaded(*each) for each in found) else set()

            objects = until(held, "with either observer, moves are watched") or set()
            before = standing(lab)
            assert bed.daemon.end(number) == (-number if number == signal.SIGKILL else 0)
            left = {"lock", "filters.journal", "originals.journal", "orders.journal"}
            left |= {"atfnd.sock", "atfnd-root.sock"} if number == signal.SIGKILL else set()
            assert {each.name for each in bed.daemon.run_dir.iterdir()} == left
            assert standing(lab) == before
            assert len(lab.nic.filters()) == len(apps)
            until(partial(none_loaded, objects), "its BPF objects are freed")
        assert "Traceback" not in bed.daemon.said()
