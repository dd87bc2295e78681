# SPDX-License-Identifier: GPL-2.0-or-later
"""The scenario of `make run` on the test driver, through the real ioctl path, on four CPUs. Flows
keep their order with no NAPI thread to hold: by ports' rules, and queues that follow their servers.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from bench import demo


def test_flows_are_placed_and_follow_their_applications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RESULT", tmp_path / "run.json")
    phases = {phase.name: phase for phase in demo.run(Console(width=140), *demo.BEDS["simnic"])}
    assert list(phases) == ["rss", "rfs", "arfs", "atfnd"]
    ours = phases["atfnd"]
    busy = [f for f in ours.reading.flows.values() if f.local_segments + f.remote_segments > 100]
    assert len(busy) > 3
    assert all(flow.local_segments > flow.remote_segments for flow in busy), busy
    share = {name: phase.reading.totals.read_locality or 0.0 for name, phase in phases.items()}
    assert share["atfnd"] > max(0.8, 1.5 * share["rss"]), share  # RSS: one byte in four
    assert json.loads((tmp_path / "run.json").read_text())["locality_atfnd"] > 0.8
    assert not os.path.exists("/sys/class/net/sim0")
