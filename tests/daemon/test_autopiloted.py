# SPDX-License-Identifier: GPL-2.0-or-later
"""`reception: auto` on a lab NIC: a queue whose CPU is short of time is tried in other modes, and
what is reported is what the kernel has. Whether a mode pays here depends on what else this machine
does, so either end is right; tests/engine/test_autopilot.py has the choice."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Reception
from tests.applications import CPUS, Application
from tests.bed import Bed, a_bed
from tests.daemon.test_policy_settings import OFF, everywhere, of_queues
from tests.daemons import EVERYTHING, Row
from tests.labs import Lab
from tests.wait import until

AUTO = f"{EVERYTHING}interfaces: [{{ match: {{ name: '*' }}, reception: auto }}]\n"
TRIAL_S = 120
FIGURES = re.compile(
    r"[\d.]+ x the bytes a CPU-second, [\d.]+ x the bytes a second and [\d.]+ x the time a byte of "
    r"interrupt: interrupt [\d.]+ .?B/s at [\d.]+ .?B a CPU-second and [\d.e+]+ ns a byte, "
    r"(suspended|deferred) .* [\d.]+ .?B/s at [\d.]+ .?B a CPU-second and [\d.e+]+ ns a byte"
)


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, "bpf", AUTO) as made:
        yield made


def busy(bed: Bed) -> Application:
    """It hardly ever sleeps, and thousands of packets a second come to its core."""
    app = bed.apps.tcp()
    app.talks.tell("load 16000")
    app.talks.tell("ask")
    app.host.tell("busy")
    app.host.tell("rest")
    for pid, priority in ((app.peer.process.pid, 1), (app.pid, 1)):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))
    os.sched_setaffinity(app.peer.process.pid, {cpu for cpu in CPUS if cpu != app.cpu})
    return app


def ends(bed: Bed) -> list[Row]:
    return bed.daemon.events("kept", "back")


def has(lab: Lab, queue: int) -> str:
    """What the kernel has for this queue, as events name it."""
    return str(Reception.found(lab.nic.settings(), queue))


@pytest.mark.timeout(300)
def test_a_queue_is_tried_under_load_and_what_is_reported_is_what_the_kernel_has(
    bed: Bed, lab: Lab
) -> None:
    bed.start()
    shown = until(
        lambda: [r for r in bed.daemon.get("/v1/queues")["queues"] if r["reception_auto"]],
        "it is looked at",
    )
    assert shown is not None
    assert {row["reception_auto"].split(",")[0] for row in shown} == {"auto: interrupt"}
    assert {row["reception_wanted"]["mode"] for row in shown} == {"auto"}
    everywhere(lab, OFF)
    app = busy(bed)
    queue = bed.steered(app)["target_queue"]
    begun = until(lambda: bed.daemon.events("trial"), "a trial begins", TRIAL_S)
    assert begun is not None
    assert (begun[0]["nic"], begun[0]["rule"]) == (lab.nic.name, None)
    assert re.fullmatch(rf"queue {queue}: interrupt -> (suspended|deferred) .*", begun[0]["what"])
    assert re.match(rf"it takes \d+% of CPU {app.cpu}; it carries ", begun[0]["why"])
    until(lambda: ends(bed), "the trial ends", TRIAL_S)
    end = ends(bed)[0]
    compared = [
        each for each in (*bed.daemon.events("trial")[1:], end) if "void" not in each["why"]
    ]
    assert all(FIGURES.fullmatch(each["why"]) for each in compared), compared
    kept = end["what"].partition("-> ")[2] if end["kind"] == "kept" else "interrupt"
    until(lambda: has(lab, queue) == kept, f"queue {queue} is received by {kept}", 10)
    said = bed.daemon.ctl("explain", str(app.key)).stdout
    assert f"auto: {kept}" in " ".join(said.split())
    assert "auto: " in bed.daemon.ctl("queues").stdout
    app.end()
    until(lambda: has(lab, queue) == "interrupt", "idle, it has interrupts", 60)
    assert bed.daemon.ctl("restore", lab.nic.name).returncode == 0
    everywhere(lab, OFF)


@pytest.mark.timeout(300)
def test_a_daemon_killed_during_a_trial_leaves_what_restore_puts_back(bed: Bed, lab: Lab) -> None:
    bed.start()
    app = busy(bed)
    queue = bed.steered(app)["target_queue"]
    until(lambda: of_queues(lab)[queue] != OFF, "another mode is tried", TRIAL_S)
    bed.daemon.end(signal.SIGKILL)
    app.end()  # of a higher priority than what restores
    done = bed.daemon.restore()
    assert done.returncode == 0, done.stderr
    everywhere(lab, OFF)
