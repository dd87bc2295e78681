# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd doctor --facts` of this machine, and `atfnd check --for-host` with them, without root."""

from __future__ import annotations

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

__all__: list[str] = []


def asked(*words: str, wrapped: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    atfnd = [*wrapped, "atfnd"] if wrapped else [sys.executable, "-m", "atfnd"]
    return subprocess.run([*atfnd, *words], capture_output=True, text=True, timeout=120)


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
    assert interface.model_dump() == {
        "name": "eth9",
        "driver": "ice",
        "queues": 8,
        "filter_slots": None,
        "lower": (),
    }


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


def test_they_are_of_the_whole_machine() -> None:
    done = asked("doctor", "--facts", "eth0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "atfnd: --facts are of the whole machine\nhint: leave NIC out\n"


def test_facts_that_are_damaged_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text('{"version": 9}')
    done = asked("check", "--for-host", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"atfnd: {file}: it is of version 9; this atfnd reads version 1\n"
        "hint: on that machine: atfnd doctor --facts >FILE\n"
    )
