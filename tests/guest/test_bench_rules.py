# SPDX-License-Identifier: GPL-2.0-or-later
"""The bench `rules` with numbers so small that it proves only that it runs, and cleans up."""

from __future__ import annotations

import json
import os

import pytest

from bench import plot, rules


def test_every_contender_is_measured_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = rules.measure(2, sizes=(4, 40), batch=4)
    for contenders in measured.values():
        assert {name: set(steps) for name, steps in contenders.items()} == {
            name: set(rules.STEPS) for name in ("ethtool", "atfnd", "ioctl")
        }
        for steps in contenders.values():
            assert all(len(each) == 2 and min(each) > 0 for each in steps.values())
    monkeypatch.setattr(plot, "bars", lambda *_, **__: None)  # drawn on the host
    report = rules.report(json.loads(json.dumps(measured)))
    assert len(report.targets) == 2 * len(rules.STEPS)
    assert not os.path.exists("/sys/class/net/sim0")
    assert not os.path.exists("/run/netns/peer")
