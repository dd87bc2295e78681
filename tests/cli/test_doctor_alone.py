# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd doctor` without a daemon: what it finds, what it leaves alone, and which user may ask."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from tests.cli.refusals import NO_BTF, NO_ROOT
from tests.labs import Lab

__all__: list[str] = []


def asked(*words: str, wrapped: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    atfnd = [*wrapped, "atfnd"] if wrapped else [sys.executable, "-m", "atfnd"]
    return subprocess.run([*atfnd, "doctor", *words], capture_output=True, text=True, timeout=120)


def test_it_says_what_a_nic_can_do_and_changes_nothing(shared_lab: Lab) -> None:
    name = shared_lab.nic.name
    before = shared_lab.nic.filters(), shared_lab.nic.rss(), dict(shared_lab.nic.settings())
    done = asked(name)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == name
    assert "  ok       steers each flow by a filter of its own" in lines
    assert "sockets are observed by BPF" in done.stdout, "the machine matters as well"
    assert "is not watched" not in done.stdout
    after = shared_lab.nic.filters(), shared_lab.nic.rss(), dict(shared_lab.nic.settings())
    assert after == before


def test_it_answers_in_json_with_the_machine() -> None:
    done = asked("--json")
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["clear"] else 1)
    observers = [each["what"] for each in answer["findings"] if "observed by" in each["what"]]
    assert len(observers) == 1


def test_what_it_advises_for_a_lab_can_be_done(lab: Lab) -> None:
    said = asked(lab.nic.name).stdout
    (command,) = {line.partition("or: ")[2] for line in said.splitlines() if "/threaded" in line}
    assert {queue.threaded for queue in lab.nic.queues()} == {True}
    subprocess.run(["sh", "-c", command], check=True, timeout=60)
    assert {queue.threaded for queue in lab.nic.queues()} == {False}


def test_without_root_a_lab_is_not_said_to_be_down(shared_lab: Lab) -> None:
    done = asked(shared_lab.nic.name, wrapped=NO_ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("atfnd: only root can look at lab ")


def test_what_the_kernel_hides_is_said_also_of_one_nic(shared_lab: Lab) -> None:
    done = asked(shared_lab.nic.name, wrapped=(*NO_BTF, sys.executable, "-m"))
    assert "sockets are observed by sock_diag" in done.stdout
    assert done.stdout.splitlines()[-1] != "0 warnings, 0 blockers"


def test_an_interface_that_is_not_there() -> None:
    done = asked("nosuch0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("atfnd: no interface 'nosuch0' here\nhint: ")


def test_a_user_without_root_gets_what_needs_no_root() -> None:
    done = asked(wrapped=NO_ROOT)
    assert done.stderr == ""
    assert "the kernel takes the BPF observer was not tried: that needs root" in done.stdout
    assert "CAP_" not in done.stdout
