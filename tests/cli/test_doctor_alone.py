# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd doctor` without a daemon, its `--facts` and `atfnd check --for-host` with them: what it
finds, what it leaves alone, and which user may ask."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from atfnd.cli import facts as facts_module
from atfnd.cli.facts import facts_here
from atfnd.model import FoundInterface
from atfnd.policy.file.host import Host, read_host
from tests.cli.refusals import NO_ROOT
from tests.labs import Lab


def asked(*words: str, wrapped: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    atfnd = [*wrapped, "atfnd"] if wrapped else [sys.executable, "-m", "atfnd"]
    return subprocess.run([*atfnd, *words], capture_output=True, text=True, timeout=120)


def test_it_says_what_a_nic_can_do_and_changes_nothing(shared_lab: Lab) -> None:
    name = shared_lab.nic.name
    before = shared_lab.nic.filters(), shared_lab.nic.rss(), dict(shared_lab.nic.settings())
    done = asked("doctor", name)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == name
    assert "  ok       steers each flow by a filter of its own" in lines
    assert "sockets are observed by BPF" in done.stdout, "the machine matters as well"
    assert "is not watched" not in done.stdout
    after = shared_lab.nic.filters(), shared_lab.nic.rss(), dict(shared_lab.nic.settings())
    assert after == before


def test_it_answers_in_json_with_the_machine() -> None:
    done = asked("doctor", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["clear"] else 1)
    observers = [each["what"] for each in answer["findings"] if "observed by" in each["what"]]
    assert len(observers) == 1


def test_what_it_advises_for_a_lab_can_be_done(lab: Lab) -> None:
    said = asked("doctor", lab.nic.name).stdout
    (command,) = {line.partition("or: ")[2] for line in said.splitlines() if "/threaded" in line}
    assert {queue.threaded for queue in lab.nic.queues()} == {True}
    subprocess.run(["sh", "-c", command], check=True, timeout=60)
    assert {queue.threaded for queue in lab.nic.queues()} == {False}


def test_without_root_a_lab_is_not_said_to_be_down(shared_lab: Lab) -> None:
    done = asked("doctor", shared_lab.nic.name, wrapped=NO_ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("atfnd: only root can look at lab ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch0"], "atfnd: no interface 'nosuch0' here\nhint: "),
        (["--facts", "eth0"], "atfnd: --facts are of the whole machine\nhint: leave NIC out\n"),
    ],
)
def test_what_cannot_be_looked_at(words: list[str], said: str) -> None:
    done = asked("doctor", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)


def test_a_user_without_root_gets_what_needs_no_root() -> None:
    done = asked("doctor", wrapped=NO_ROOT)
    assert done.stderr == ""
    assert "the kernel takes the BPF observer was not tried: that needs root" in done.stdout
    assert "CAP_" not in done.stdout


# Facts


def test_they_are_those_of_this_machine() -> None:
    host = facts_here()
    assert host.name == os.uname().nodename
    assert host.cpus == os.sysconf("SC_NPROCESSORS_CONF")
    assert set(os.sched_getaffinity(0)) <= set(host.online)
    assert {each.name for each in host.interfaces} == {name for _, name in socket.if_nameindex()}
    assert host.users == {name: pwd.getpwnam(name).pw_uid for name in host.users}
    assert host.users["root"] == 0


def test_of_two_users_with_one_name_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [("a", 1), ("b", 2), ("a", 3), ("\udcff", 4)]
    entries = [pwd.struct_passwd((name, "", uid, uid, "", "/", "")) for name, uid in names]
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)
    assert facts_here().users == {"a": 1, "b": 2}


def test_an_interface_that_cannot_be_examined_has_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    found = FoundInterface("eth9", "ice", 8)
    monkeypatch.setattr(facts_module, "interfaces", lambda: (found,))
    monkeypatch.setattr(facts_module, "glance", refused)
    [interface] = facts_here().interfaces
    assert (interface.name, interface.driver, interface.queues) == ("eth9", "ice", 8)
    assert interface.filter_slots is None


def test_a_user_without_root_writes_them_and_a_policy_is_checked_with_them(tmp_path: Path) -> None:
    done = asked("doctor", "--facts", wrapped=NO_ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    file, policy = tmp_path / "facts.json", tmp_path / "policy.yaml"
    file.write_text(done.stdout)
    host = read_host(file)
    assert host.name == os.uname().nodename

    elsewhere = Host(**dict(host) | {"name": "elsewhere", "users": {"somebody-there": 4711}})
    file.write_text(elsewhere.model_dump_json())
    policy.write_text(
        "version: 1\n"
        "flows: [{ name: a, match: { user: somebody-there }, placement: { near: core } }]\n"
    )
    done = asked("check", "--for-host", str(file), str(policy))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("for elsewhere: ")
    done = asked("check", str(policy))
    assert done.returncode == 2
    assert "there is no user `somebody-there` here" in done.stderr
