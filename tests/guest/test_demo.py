# SPDX-License-Identifier: GPL-2.0-or-later
"""`make run` on the test driver, through the real ioctl path, on four CPUs. Flows are steered with
no NAPI thread to hold: by ports' rules, and queues that follow their servers.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from bench import demo

__all__: list[str] = []


def test_a_server_reads_on_the_core_that_its_packets_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RESULT", tmp_path / "run.json")
    found = demo.run(Console(width=80), *demo.BEDS["simnic"])
    assert list(found) == ["pinned", "unpinned"]
    assert all(list(found[kind]) == ["rss", "rfs", "arfs", "atfnd"] for kind in found)
    share = {name: runs[0].read_locality or 0.0 for name, runs in found["pinned"].items()}
    assert share["atfnd"] > max(0.8, 1.5 * share["rss"]), share  # RSS: one flow in four
    assert found["pinned"]["rfs"][0].handoffs > 2 * found["pinned"]["atfnd"][0].handoffs
    result = json.loads((tmp_path / "run.json").read_text())
    assert result["locality_atfnd"] == round(share["atfnd"], 4)
    assert result["steered"] > 0
    assert not os.path.exists("/sys/class/net/sim0")
