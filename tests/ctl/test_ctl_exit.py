# SPDX-License-Identifier: GPL-2.0-or-later
"""Every exit code of atfnctl."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.serve.asking import atfnctl
from tests.serve.published import Published, Serving


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tcp", "10.0.0.2:1", "10.9.0.1:2"], "=> atfnd does not steer it"),
        (["--pair", "eth1", "eth0:3"], "=> No packet was forwarded from eth1 to eth0 (queue 3)"),
    ],
)
def test_1_the_answer_is_no(daemon: Serving, words: list[str], said: str) -> None:
    done = atfnctl(daemon, "explain", *words)
    assert (done.returncode, done.stderr) == (1, "")
    assert said in done.stdout
    answer = json.loads(atfnctl(daemon, "explain", *words, "--json").stdout)
    assert (answer.get("flow"), answer.get("pair")) == (None, None)


def test_1_something_stands_in_the_way(daemon: Serving) -> None:
    done = atfnctl(daemon, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "lab:lab",
        "  ok       steers each flow by a filter of its own",
        "eth1",
        "  warning  irqbalance (pid 7) moves it",
        "           -> ban them",
        "machine",
        "  note     eth9 is not watched",
        "           -> --nic eth9",
        "1 warning, 0 blockers",
    ]
    done = atfnctl(daemon, "doctor", "eth1", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["level"] == "warning"


def test_0_nothing_stands_in_the_way(daemon: Serving) -> None:
    done = atfnctl(daemon, "doctor", "lab:lab")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 warnings, 0 blockers")


def test_1_the_daemon_refused(daemon: Serving) -> None:
    lab = daemon.source.views[0]
    plain = replace(lab, name="plain0", caps=replace(lab.caps, filters=False))
    daemon.do(lambda: daemon.source.views.append(plain))
    done = atfnctl(daemon, "arm", "plain0")
    assert done.returncode == 1
    assert done.stderr == "atfnd: plain0 has no filters\nhint: use another interface\n"


@pytest.mark.parametrize(
    "words",
    [
        ["nope"],
        ["status", "--nope"],
        ["flows", "--limit", "0"],
        ["flows", "--pid", "-1"],
        ["flows", "--state", "happy"],
        ["flows", "--watch", "--json"],
        ["doctor", "nope"],
        ["pairs", "--for", "61"],
        ["gain", "--for", "soon"],
        ["explain"],
        ["events", "--since", "soon"],
        ["events", "--limit", "0"],
        ["explain", "--pair", "eth0"],
        ["arm", "nope"],
        ["arm", "../status"],
        ["disarm", "nope", "more"],
    ],
)
def test_2_usage_or_bad_input(daemon: Serving, words: list[str]) -> None:
    done = atfnctl(daemon, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr
    assert daemon.source.views == Published().views


@pytest.mark.parametrize(
    "words",
    [["status"], ["flows", "--watch"], ["explain", ":1"], ["events", "--follow"], ["arm", "eth1"],
     ["doctor"], ["gain"], ["top"]],
)  # fmt: skip
def test_3_daemon_unreachable(tmp_path: Path, words: list[str]) -> None:
    done = atfnctl(tmp_path / "none.sock", *words)
    assert done.returncode == 3
    message, hint = done.stderr.splitlines()
    assert message == f"atfnd: atfnd is not running: nothing listens on {tmp_path}/none.sock"
    assert "systemctl start atfnd" in hint


def test_3_a_socket_nobody_answers_on(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert atfnctl(path, "status").returncode == 3
    (tmp_path / "file").touch()
    assert atfnctl(tmp_path / "file", "status").returncode == 3


def test_3_the_daemon_dies_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "dying.sock"
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(path))
        dying.listen()

        def die() -> None:
            connection, _ = dying.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            connection.close()

        thread = threading.Thread(target=die)
        thread.start()
        done = atfnctl(path, "status")
        thread.join(10)
    assert done.returncode == 3
    assert done.stderr.startswith(f"atfnd: no answer from atfnd on {path}")


def test_the_socket_option_wins_over_the_environment(daemon: Serving, tmp_path: Path) -> None:
    done = atfnctl(tmp_path / "none.sock", "status", "--socket", str(daemon.socket))
    assert done.returncode == 0
