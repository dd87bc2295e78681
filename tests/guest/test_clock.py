# SPDX-License-Identifier: GPL-2.0-or-later
"""The clock that can be set jumps under a daemon: nothing is decided by it, it is only shown."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.applications import delivered
from tests.bed import a_bed
from tests.daemons import policy, standing
from tests.labs import Lab

__all__: list[str] = []

YEAR_S = 365 * 86400


@contextmanager
def jumped(seconds: int) -> Iterator[None]:
    """clock_settime(2), and back."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)
    try:
        yield
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - seconds)


def test_a_jump_back(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", policy(order="strict")) as bed:
        bed.start()
        apps = [bed.apps.udp_connected(), bed.apps.tcp_connected()]
        for app in apps:
            delivered(bed.meter, app)
        with jumped(-10 * YEAR_S):
            for app in apps:
                app.migrate()
                delivered(bed.meter, app)
            assert 0 < bed.daemon.status()["uptime_s"] < YEAR_S
            reported = datetime.fromisoformat(bed.daemon.events()[-1]["time"])
            assert reported.year == datetime.now(reported.tzinfo).year
            before = standing(lab)
            bed.daemon.end(signal.SIGKILL)
            bed.start()
            assert standing(lab) == before
            assert [row["what"] for row in bed.daemon.events("adopt")] == [
                "2 filters taken over, 0 orphans deleted"
            ]
        for app in apps:
            app.migrate()
            delivered(bed.meter, app)
        status = bed.daemon.status()
        assert (status["events_lost"], status["resyncs"], status["table_entries"]) == (0, 0, 2)
        assert bed.daemon.end() == 0
        assert "Traceback" not in bed.daemon.said()
