# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab comes up, stays up, goes down, whatever happened to it before."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from atfnd.errors import OperatorError
from atfnd.kernel.system.netns import RUN_DIR, exists, in_netns
from atfnd.lab.cli import app
from atfnd.lab.down import down
from atfnd.lab.status import lab_status
from atfnd.lab.up import up
from atfnd.lab.wiring import namespaces
from atfnd.model import Match
from atfnd.nic.lab.nic import LabNic
from tests.labs import Lab, a_lab, unique_name

ANY = Match(4, None, None, 0, None, 0, None, None)


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a lab that is not there, and will not be."""
    chosen = unique_name()
    yield chosen
    down(chosen)


def left_behind(name: str) -> list[str]:
    return [entry for entry in os.listdir(RUN_DIR) if entry.startswith(f"{name}-")]


def test_up_twice_or_with_other_numbers_changes_nothing(lab: Lab) -> None:
    lab.nic.insert(ANY, 1)
    before = lab_status(lab.name)
    assert not up(lab.name)
    assert not up(lab.name, 4, 4096)
    with pytest.raises(OperatorError, match="4 queues and 4096 filters"):
        up(lab.name, queues=8)
    with pytest.raises(OperatorError):
        up(lab.name, slots=8)
    assert lab_status(lab.name) == before
    assert before.state == "up"


def test_default_numbers(name: str) -> None:
    assert up(name)
    found = lab_status(name)
    assert len(found.queues) == min(max(os.cpu_count() or 1, 2), 64)
    assert found.filter_slots == 4096
    assert all(queue.threaded for queue in found.queues)
    assert all(queue.cpu is not None for queue in found.queues)


@pytest.mark.parametrize(("queues", "slots"), [(1, None), (65, None), (None, 0), (None, 65537)])
def test_impossible_numbers(name: str, queues: int | None, slots: int | None) -> None:
    with pytest.raises(OperatorError):
        up(name, queues, slots)
    assert lab_status(name).state == "down"


@pytest.mark.parametrize("bad", ["", "../x", "A", "-x", "a b", "x" * 65])
@pytest.mark.parametrize("call", [up, down])
def test_impossible_names(call: Callable[[str], object], bad: str) -> None:
    with pytest.raises(OperatorError):
        call(bad)


@pytest.mark.parametrize("call", [up, down, lab_status])
def test_not_root(call: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OperatorError, match="needs root"):
        call("never")


def test_down_leaves_nothing_and_ends_the_lab_for_those_who_have_it_open(name: str) -> None:
    up(name)
    nic = LabNic(name)
    threads = [queue.pid for queue in nic.queues()]
    assert down(name)
    assert not left_behind(name)
    assert lab_status(name).state == "down"
    assert not down(name)
    assert not [pid for pid in threads if pid and os.path.exists(f"/proc/{pid}")]
    for call in (nic.up, nic.filters, nic.queues, nic.stats, lambda: nic.insert(ANY, 0)):
        with pytest.raises(OSError, match="No such device"):
            call()
    nic.close()


def test_opening_a_lab_that_is_not_there(name: str) -> None:
    with pytest.raises(OperatorError) as raised:
        LabNic(name)
    assert raised.value.hint == f"atfnd lab up --name {name}"


STEPS = ["write_sysctl", "_make_pairs", "_configure_links", "_start_threads", "_attach_device"]


@pytest.mark.parametrize("step", [*STEPS, "_attach"])
@pytest.mark.parametrize("then", ["up", "down"])
def test_killed_half_way_up(name: str, step: str, then: str) -> None:
    script = (
        "import os, signal\nimport atfnd.lab.up as lab\n"
        f"lab.{step} = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"lab.up({name!r}, 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    assert lab_status(name).state == "broken"
    assert lab_status(name).problems
    if then == "up":
        assert up(name, 2)
        assert lab_status(name).state == "up"
    else:
        assert down(name)
        assert not left_behind(name)


def test_killed_between_the_file_and_the_namespace(name: str) -> None:
    path = namespaces(name)["wire"]
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    assert not exists(path)
    assert lab_status(name).state == "broken"
    assert up(name, 2)
    assert lab_status(name).state == "up"


def test_a_failure_half_way_up_is_undone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("refused")

    monkeypatch.setattr("atfnd.lab.up._attach_device", refuse)
    with pytest.raises(OSError, match="refused"):
        up(name, 2)
    assert not left_behind(name)


def test_two_labs_do_not_meet(lab: Lab) -> None:
    with a_lab(queues=2, slots=8) as other:
        lab.nic.insert(ANY, 3)
        assert other.nic.filters() == []
        sender, receiver = lab.udp_pair(socket.AF_INET, 7001, 7002)
        sender.send(b"x")
        assert receiver.recv(1) == b"x"
        assert sum(queue.packets or 0 for queue in lab.nic.stats().queues) == 1
        assert sum(queue.packets or 0 for queue in other.nic.stats().queues) == 0
    assert lab_status(lab.name).state == "up"


def test_sysctls_stay_inside() -> None:
    def forwarding() -> str:
        with open("/proc/sys/net/ipv4/ip_forward") as file:
            return file.read()

    before = forwarding()
    with a_lab() as lab:
        assert in_netns(lab.netns["wire"], forwarding) == "1\n"
        assert forwarding() == before


def test_command_line(name: str) -> None:
    run = CliRunner().invoke
    asked = run(app, ["up", "--name", name, "--queues", "3", "--filters", "16"])
    up_with = "3 queues, 16 filters, packets come by NAPI threads"
    assert asked.output == f"lab {name} is up: {up_with}\n"
    assert run(app, ["up", "--name", name]).output.startswith(f"lab {name} was already up")
    assert "by filter" in run(app, ["status", "--name", name]).output
    shown = run(app, ["status", "--name", name, "--json"])
    found = json.loads(shown.output)
    assert (shown.exit_code, found["state"], len(found["queues"])) == (0, "up", 3)
    assert (found["filters"], found["filter_slots"]) == (0, 16)
    assert run(app, ["up", "--name", name, "--filters", "8"]).exit_code != 0  # it has 16
    assert run(app, ["down", "--name", name]).output == f"lab {name} is down\n"
    shown = run(app, ["status", "--name", name, "--json"])
    assert (shown.exit_code, json.loads(shown.output)["state"]) == (1, "down")


def test_a_daemon_starts_without_what_only_a_lab_needs() -> None:
    code = "import sys, atfnd.cli.commands, atfnd.cli.daemon; print('pyroute2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"
