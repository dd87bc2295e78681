# SPDX-License-Identifier: GPL-2.0-or-later
"""How a daemon ends, and that nothing is left of it but its rules."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bed import a_bed
from tests.daemons import OBSERVERS, standing
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_but_the_rules(
    shared_lab: Lab, tmp_path: Path, observer: str, number: signal.Signals
) -> None:
    with a_bed(shared_lab, tmp_path, observer) as bed:
        bed.start()
        apps = [bed.apps.tcp(), bed.apps.udp_connected()]
        for app in apps:
            bed.steered(app)
        assert bed.daemon.process is not None
        pid = bed.daemon.process.pid

        def held() -> set[tuple[str, str]]:  # some go when nothing has moved for long
            found = bpf_objects(pid)
            return found if all(loaded(*each) for each in found) else set()

        objects = until(held, "with either observer, moves are watched")
        before = standing(shared_lab)
        assert bed.daemon.end(number) == (-number if number == signal.SIGKILL else 0)
        left = {"lock", "filters.journal", "originals.journal", "orders.journal"}
        left |= {"atfnd.sock", "atfnd-root.sock"} if number == signal.SIGKILL else set()
        assert {each.name for each in bed.daemon.run_dir.iterdir()} == left
        assert standing(shared_lab) == before
        until(lambda: not any(loaded(*each) for each in objects), "its BPF objects are freed")
        assert "Traceback" not in bed.daemon.said()
        bed.start()  # the socket of a killed one is no obstacle
        for app in apps:
            bed.steered(app)


def test_one_observer_after_the_other(shared_lab: Lab, tmp_path: Path) -> None:
    """Each takes over what the other left."""
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        app = None
        for name in (*OBSERVERS, *OBSERVERS):
            bed.start(observer=name)
            app = app or bed.apps.tcp()
            bed.steered(app)
            app.migrate()
            bed.steered(app)
            assert len(shared_lab.nic.filters()) == 1
            assert bed.daemon.end() == 0
