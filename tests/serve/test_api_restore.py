# SPDX-License-Identifier: GPL-2.0-or-later
"""The kill switch and `restore`, as the API and atfnctl give them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.asking import atfnctl, get, refusal
from tests.serve.published import Serving, serving, three_flows

__all__: list[str] = []


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


def test_one_request_disarms_all(daemon: Serving) -> None:
    assert get(daemon, "/v1/disarm", "-XPOST") == {"armed": []}
    assert not any(nic["armed"] for nic in get(daemon, "/v1/nics")["nics"])
    assert refusal(daemon, "/v1/disarm")[0] == 405
    done = atfnctl(daemon, "disarm")
    assert (done.returncode, done.stdout) == (0, "every interface is disarmed\n")


def test_restore_says_what_became_of_each(daemon: Serving) -> None:
    answer = get(daemon, "/v1/nics/lab:lab/restore", "-XPOST")
    assert (answer["armed"], answer["clear"]) == (False, True)
    (row,) = answer["restored"]
    assert (row["what"], row["done"], row["errno"]) == ("rss", True, None)
    done = atfnctl(daemon, "restore", "lab:lab")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "lab:lab: rss left at 0-3: another program set it",
        "lab:lab is disarmed: nothing of ours is in it",
    ]


def test_what_is_not_restored_is_an_exit_code(daemon: Serving) -> None:
    done = atfnctl(daemon, "restore")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "eth1: xps is left",
        "eth1 is disarmed: something of ours is left",
    ]
    (mine, theirs) = json.loads(atfnctl(daemon, "restore", "--json").stdout)
    assert (mine["clear"], theirs["clear"]) == (True, False)
    assert [row["errno"] for row in theirs["restored"]] == [None, "EPERM"]


def test_no_such_interface(daemon: Serving) -> None:
    assert refusal(daemon, "/v1/nics/eth7/restore", "-XPOST")[0] == 404
    assert atfnctl(daemon, "restore", "eth7").returncode == 2
