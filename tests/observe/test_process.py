# SPDX-License-Identifier: GPL-2.0-or-later
"""What /proc says of a process: real ones, and trees of files for what this machine is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.model import Process
from atfnd.observe.processes.process import Processes

NOW_NS = 10**12


def tree(root: Path, cgroup: str = "0::/a.service\n", command: bytes = b"a\0-b\0") -> Path:
    folder = root / "7"
    folder.mkdir(exist_ok=True)
    (folder / "cmdline").write_bytes(command)
    (folder / "status").write_text("Name:\tUid: 5\nUid:\t1\t33\t1\t1\nGid:\t0\t0\t0\t0\n")
    (folder / "cgroup").write_text(cgroup)
    return folder


def of(root: Path) -> Process:
    return Processes(str(root)).of(7, NOW_NS)


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/system.slice/a.service\n", "/system.slice/a.service"),
        ("0::/a:b/c\n", "/a:b/c"),
        ("0::/a.scope (deleted)\n", "/a.scope"),
        ("1:name=systemd:/a.service\n0::/\n", "/a.service"),  # hybrid
        ("4:memory:/other\n1:name=systemd:/a.service\n", "/a.service"),  # version 1
        ("1:name=systemd:/a.service\n0::/b.service\n", "/b.service"),
        ("4:memory:/other\n0::/\n", "/"),
        ("4:memory:/other\n", None),
        ("", None),
    ],
)
def test_the_path_of_its_control_group(tmp_path: Path, cgroup: str, path: str | None) -> None:
    tree(tmp_path, cgroup)
    assert of(tmp_path) == Process("a -b", 33, path)


def test_what_is_hidden_is_unknown(tmp_path: Path) -> None:
    folder = tree(tmp_path, command=b"")
    assert of(tmp_path).command == ""  # of a kernel thread
    for name in ("cmdline", "status", "cgroup"):
        (folder / name).unlink()
        assert None in of(tmp_path)
    assert of(tmp_path) == Process()


def test_a_command_line_nobody_asks_for_is_not_read(tmp_path: Path) -> None:
    tree(tmp_path)
    found = Processes(str(tmp_path), command=False).of(7, NOW_NS)
    assert found == Process(None, 33, "/a.service")


def test_it_is_read_again_when_it_may_be_another(tmp_path: Path) -> None:
    tree(tmp_path)
    processes = Processes(str(tmp_path))
    first = processes.of(7, NOW_NS)
    tree(tmp_path, command=b"other\0")
    assert processes.of(7, NOW_NS + Processes.FRESH_NS - 1) is first
    assert processes.of(7, NOW_NS + Processes.FRESH_NS).command == "other"
