# SPDX-License-Identifier: GPL-2.0-or-later
"""The budget of the receive softirq, as a policy asks for it. Changes net.core.netdev_budget and
netdev_budget_usecs of this machine, and puts them back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING
from tests.labs import Lab
from tests.wait import until

CORE = Path("/proc/sys/net/core")
FILES = CORE / "netdev_budget", CORE / "netdev_budget_usecs"
FOUND, OURS = ("290", "20000"), ("280", "30000")
ASKS = f"{EVERYTHING}host: {{ softirq_budget: {{ packets: 280, time: 30ms }} }}\n"


def now() -> tuple[str, ...]:
    return tuple(file.read_text().strip() for file in FILES)


def becomes(*wanted: str) -> None:
    until(lambda: now() == wanted, f"the budget is {wanted}", 30)


@pytest.fixture
def bed(shared_lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    before = now()
    try:
        for file, value in zip(FILES, FOUND, strict=True):
            file.write_text(value)
        with a_bed(shared_lab, tmp_path, "bpf", ASKS) as made:
            yield made
    finally:
        for file, value in zip(FILES, before, strict=True):
            file.write_text(value)


def standing(bed: Bed) -> dict[str, Any]:
    """By setting: how the daemon says that it stands."""
    return {each["setting"]: each for each in bed.daemon.status()["host"]}


def states(bed: Bed, *wanted: str) -> None:
    def found() -> bool:
        return tuple(each["state"] for each in standing(bed).values()) == wanted

    until(found, f"they are {wanted}", 30)


def test_nothing_is_written_before_an_interface_is_armed(bed: Bed) -> None:
    bed.start(arm=False)
    states(bed, "wanted", "wanted")
    assert now() == FOUND
    done = bed.daemon.ctl("plan", "--nic", bed.lab.nic.name)
    planned = done.stdout + done.stderr
    assert "echo 280 > /proc/sys/net/core/netdev_budget" in planned
    assert bed.daemon.ctl("arm", bed.lab.nic.name).returncode == 0
    becomes(*OURS)
    states(bed, "set", "set")
    assert [each["original"] for each in standing(bed).values()] == [*FOUND]
    assert bed.daemon.ctl("disarm").returncode == 0
    bed.daemon.config.write_text(EVERYTHING)
    assert bed.daemon.ctl("reload").returncode == 0
    assert now() == OURS


def test_it_is_shown_with_what_it_was_and_who_asks(bed: Bed) -> None:
    bed.start()
    becomes(*OURS)
    states(bed, "set", "set")
    app = bed.apps.tcp()
    bed.steered(app)
    said = bed.daemon.ctl("explain", str(app.key)).stdout
    assert "the softirq budget of the policy does not bound it" in " ".join(said.split())
    assert "netdev-budget: 280, set, was 290" in bed.daemon.ctl("status").stdout
    said = bed.daemon.ctl("doctor").stdout
    assert "netdev-budget is 280, as the policy asks" in said
    assert "NAPI threads poll them" in said
    wrote = [each for each in bed.daemon.events("setting") if "netdev-budget" in each["what"]]
    assert [each["what"] for each in wrote] == [
        "netdev-budget = 280",
        "netdev-budget-usecs = 30000",
    ]
    line = ASKS.splitlines().index(ASKS.splitlines()[-1]) + 1
    assert wrote[0]["source"] == f"{bed.daemon.config}:{line}"


@pytest.mark.parametrize("verb", ["pause", "restore"])
def test_an_undo_of_the_last_armed_interface_puts_it_back(bed: Bed, verb: str) -> None:
    bed.start()
    becomes(*OURS)
    assert bed.daemon.ctl(verb, bed.lab.nic.name).returncode == 0
    assert now() == FOUND
    states(bed, "wanted", "wanted")


def test_another_policy_puts_back_what_it_asks_for_no_more(bed: Bed) -> None:
    bed.start()
    becomes(*OURS)
    bed.daemon.config.write_text(ASKS.replace("packets: 280, ", ""))
    assert bed.daemon.ctl("reload").returncode == 0
    assert now() == (FOUND[0], OURS[1])
    bed.daemon.config.write_text(EVERYTHING)
    assert bed.daemon.ctl("reload").returncode == 0
    assert now() == FOUND
    states(bed, "left", "left")


def test_what_somebody_else_writes_is_left_alone_until_a_resume(bed: Bed) -> None:
    bed.start()
    becomes(*OURS)
    FILES[0].write_text("270")
    states(bed, "manual", "set")
    assert "netdev-budget is 270 and should be 280" in bed.daemon.ctl("doctor").stdout
    assert now() == ("270", OURS[1])
    assert bed.daemon.ctl("resume", bed.lab.nic.name).returncode == 0
    becomes(*OURS)
    FILES[0].write_text("260")
    states(bed, "manual", "set")
    assert bed.daemon.ctl("restore", bed.lab.nic.name).returncode == 0
    assert now() == ("260", FOUND[1])


def test_a_killed_daemon_leaves_it_and_the_next_one_knows_what_it_was(bed: Bed) -> None:
    bed.start()
    becomes(*OURS)
    bed.daemon.end(signal.SIGKILL)
    assert now() == OURS
    bed.start()
    states(bed, "set", "set")
    assert [each["original"] for each in standing(bed).values()] == [*FOUND]
    assert bed.daemon.ctl("restore", bed.lab.nic.name).returncode == 0
    assert now() == FOUND


def test_restore_puts_it_back_without_a_daemon(bed: Bed) -> None:
    bed.start()
    becomes(*OURS)
    bed.daemon.end(signal.SIGKILL)
    FILES[1].write_text("40000")
    done = bed.daemon.restore()
    assert done.returncode == 0, done.stderr
    assert now() == (FOUND[0], "40000")
    assert "netdev-budget is 290 again" in done.stdout
    assert "netdev-budget-usecs left at 40000: another program set it" in done.stdout


def test_a_stop_keeps_it_or_puts_it_back_as_the_policy_says(bed: Bed) -> None:
    bed.start()
    becomes(*OURS)
    assert bed.daemon.end() == 0
    assert now() == OURS
    bed.daemon.config.write_text(ASKS.replace("daemon: {", "daemon: { on_stop: restore,"))
    bed.start()
    states(bed, "set", "set")
    assert bed.daemon.end() == 0
    assert now() == FOUND


def test_what_the_kernel_refuses_is_said_and_tried_again_when_it_is_armed(bed: Bed) -> None:
    bed.daemon.config.write_text(ASKS.replace("30ms", "1us"))  # less than two ticks of its timer
    bed.start()
    becomes(OURS[0], FOUND[1])
    states(bed, "set", "refused")
    (said,) = [each for each in bed.daemon.events("refused") if "netdev" in each["what"]]
    assert (said["errno"], said["new"]) == ("EINVAL", "1")
    assert "no less than two ticks" in bed.daemon.ctl("doctor").stdout
    bed.daemon.order("arm", bed.lab.nic.name)
    assert len([each for each in bed.daemon.events("refused") if "netdev" in each["what"]]) == 2
    bed.daemon.config.write_text(ASKS)
    assert bed.daemon.ctl("reload").returncode == 0
    assert now() == OURS
    states(bed, "set", "set")
