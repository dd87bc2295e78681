# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy that is for another machine: what is checked with its facts, and facts that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atfnd.cli.commands import check as check_verb
from atfnd.errors import OperatorError
from atfnd.policy.file.host import MOST_BYTES, Host, HostInterface, read_host
from atfnd.policy.file.load import check
from atfnd.policy.file.problem import PolicyError

HOST = Host(
    name="dtn1",
    cpus=2048,  # more than this machine has
    online=(0, 1, 2),
    interfaces=(
        HostInterface(name="lo", queues=1),
        HostInterface(name="ens1f0", driver="ice", queues=64, filter_slots=512),
    ),
    users={"root": 0, "globus-of-dtn1": 4711},
)
FLOW = "flows:\n- { name: a, match: { ports: 1, user: USER }, placement: { cpus: CPU } }\n"


def written(folder: Path, rules: str) -> Path:
    file = folder / "a.yaml"
    file.write_text(f"version: 1\n{rules}")
    return file


def flow(user: str = "0", cpu: int = 0) -> str:
    return FLOW.replace("USER", user).replace("CPU", str(cpu))


def facts(folder: Path, **other: object) -> Path:
    """Those of HOST, some of them written as something else."""
    file = folder / "dtn1.json"
    file.write_text(json.dumps(json.loads(HOST.model_dump_json()) | other))
    return file


def wrong(file: Path, host: Host | None) -> list[tuple[str, str | None]]:
    try:
        check(files=[file], host=host)
    except PolicyError as refusal:
        return [(each.message, each.hint) for each in refusal.problems]
    return []


def refusal(file: Path) -> str:
    with pytest.raises(OperatorError) as caught:
        read_host(file)
    assert caught.value.exit_code == 2
    assert caught.value.hint == "on that machine: atfnd doctor --facts >FILE"
    return caught.value.message.replace(f"{file}", "FILE")


def test_it_says_for_which_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, flow())
    check_verb([file], for_host=facts(tmp_path))
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "for dtn1: 3 of 2048 CPUs online, 2 interfaces, 2 users"
    assert second == f"policy OK: {file}"
    check_verb([file], for_host=facts(tmp_path, name="d\x1b[2Jtn"))  # it does not steer a terminal
    assert capsys.readouterr().out.startswith("for d?[2Jtn: ")


@pytest.mark.parametrize(
    ("rules", "here", "there"),
    [
        (flow(cpu=2047), "impossible CPU 2047", None),
        (flow(cpu=2048), "impossible CPU 2048",
         ("impossible CPU 2048", "dtn1 can have CPUs 0 to 2047")),
        (flow("globus-of-dtn1"), "there is no user `globus-of-dtn1` here", None),
        (flow("globus-at-dtn1"), "there is no user `globus-at-dtn1` here",
         ("there is no user `globus-at-dtn1` on dtn1", "did you mean globus-of-dtn1?")),
        (flow("daemon"), None,
         ("there is no user `daemon` on dtn1", "a uid is taken as it is")),
        (flow("815"), None, None),
    ],
)  # fmt: skip
def test_cpus_and_users_are_those_of_that_machine(
    tmp_path: Path, rules: str, here: str | None, there: tuple[str, str] | None
) -> None:
    file = written(tmp_path, rules)
    assert [message for message, _ in wrong(file, None)] == ([] if here is None else [here])
    assert wrong(file, HOST) == ([] if there is None else [there])


@pytest.mark.parametrize(("name", "there"), [("ens*", True), ("nosuch*", False)])
def test_interfaces_are_those_of_that_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, there: bool
) -> None:
    rule = f'interfaces:\n- {{ match: {{ name: "{name}" }}, armed: true }}\n'
    check(files=[written(tmp_path, rule)], host=HOST)
    said = capsys.readouterr().err
    assert (f"no interface of dtn1 matches `{name}` now" in said) is not there
    assert ("hint: there are: ens1f0, lo\n" in said) is not there


def test_the_rights_of_a_file_here_say_nothing_of_that_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, flow())
    file.chmod(0o666)
    check(files=[file], host=HOST)
    assert capsys.readouterr().err == ""
    check(files=[file])
    assert "atfnd run will refuse it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{\n"version": 1,', "FILE:2:14: damaged: Expecting property name"),
        (b"[" * 200_000, "FILE: damaged: it is no JSON"),
        (b"9" * 5000, "FILE: damaged: it is no JSON"),
        (b"[1]", "FILE: it holds no facts of a machine"),
        (b'{"version": "\\u001b[2J"}', "FILE: it is of version ?[2J; this atfnd reads version 1"),
        (b'{"version": 1}', "FILE: damaged: name: Field required"),
        ({"users": {"root": None}}, "FILE: damaged: users.root: "),
        ({"interfaces": [{"name": "eth0", "queues": -1}]}, "FILE: damaged: interfaces.0.queues: "),
        ({"colour\n": "red"}, "FILE: damaged: colour?: "),
    ],
    ids=range(9),
)
def test_what_holds_no_facts_is_one_line(
    tmp_path: Path, text: bytes | Mapping[str, Any], said: str
) -> None:
    file = tmp_path / "dtn1.json"
    if isinstance(text, bytes):
        file.write_bytes(text)
    else:
        facts(tmp_path, **text)
    assert refusal(file).startswith(said)
    assert "\n" not in refusal(file)


def test_only_a_regular_file_with_an_end_is_read(tmp_path: Path) -> None:
    file = tmp_path / "dtn1.json"
    assert refusal(file) == "FILE: cannot be read: No such file or directory"
    os.mkfifo(file)
    assert refusal(file) == "FILE: cannot be read: it is a FIFO, not a regular file"
    file.unlink()
    file.touch()
    os.truncate(file, 1 << 40)  # a hole of a terabyte
    assert refusal(file) == f"FILE: cannot be read: it is over {MOST_BYTES} bytes"
