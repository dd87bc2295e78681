# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest: what it promises its users, and every file of tests/guest/ in one. Files that want the
same machine share one start of it: that of EVERY_NIC, or their constant GUEST.

`GUEST = ["--cpus", "2x1x2"]`: options of `python -m tests.guest`, read without importing the file.
`SECOND_GUEST`: the same, of another machine that its tests are to pass on, too.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import pytest

from tests.__main__ import ONCE_MORE
from tests.guest.boot import BUILD, ROOT, Outcome, run
from tests.guest.debian import build
from tests.guest.machine import Machine
from tests.tiers import DEMAND
from tests.wait import until

FILES = sorted((ROOT / "tests/guest").glob("test_*.py"))
FILES_S = 2400.0
COMMAND_S = 300.0
EVERY_NIC = ["--nic", "every"]
AT_ONCE = 8  # files: a start takes half a minute, and two guests run beside each other

# Start-up is what costs under TCG: nothing is loaded or written that the tests do not need.
PYTEST = (
    *("--durations=10", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
    *("-o", "timeout=600", "-o", "console_output_style=classic"),
)
ENVIRONMENT = ("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTHONDONTWRITEBYTECODE=1")
SLOW = re.compile(r"\d+\.\d\ds (setup|call|teardown) ")  # of `pytest --durations`

pytestmark = pytest.mark.timeout(FILES_S + 300)


class Group(NamedTuple):
    """Files that share a start of a machine."""

    machine: Machine
    files: tuple[Path, ...]


def machines_of(file: Path) -> list[Machine]:
    """What GUEST says, and SECOND_GUEST if there is one. OperatorError: their options are wrong."""
    words = {"GUEST": EVERY_NIC}
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="GUEST" | "SECOND_GUEST" as name)], value=value):
                words[name] = ast.literal_eval(value)
    parser = argparse.ArgumentParser(prog=file.name)
    Machine.add_arguments(parser)
    return [Machine.of(parser.parse_args(each)) for each in words.values()]


def together(wanted: Iterable[tuple[Machine, Path]]) -> list[Group]:
    """Files that want the same machine, AT_ONCE at most; those of a machine that many want come
    last."""
    wanting: dict[Machine, list[Path]] = {}
    for machine, file in wanted:
        wanting.setdefault(machine, []).append(file)
    groups = []
    for machine, files in sorted(wanting.items(), key=lambda each: len(each[1])):
        starts = -(-len(files) // AT_ONCE)
        groups += [Group(machine, tuple(files[first::starts])) for first in range(starts)]
    return groups


def that_failed(group: Group, report: str) -> Group:
    """The tests of which pytest's summary says so, in place of their files."""
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", report, re.MULTILINE)
    return group._replace(files=tuple(map(Path, failed)))


def named(group: Group) -> str:
    machine = group.machine
    cpus = f"{machine.sockets}x{machine.cores}x{machine.threads}"
    first, *others = [file.stem for file in group.files]
    return f"{machine.kernel} {machine.init} {cpus} {first} and {len(others)} more"


@pytest.fixture(scope="module", autouse=True)
def bytecode() -> None:
    """The guest cannot keep what it compiles."""
    for folder in ("atfnd", "tests", "bench"):
        assert compileall.compile_dir(ROOT / folder, quiet=1)


def reported(group: Group) -> tuple[Outcome, str]:
    """pytest's report; it ran when the exit code is 0 or 1."""
    report = io.BytesIO()
    command = ["env", *ENVIRONMENT, sys.executable, "-m", "pytest", *PYTEST]
    outcome = run([*command, *map(str, group.files)], group.machine, FILES_S, report, report)
    return outcome, report.getvalue().decode()


def shell(command: str) -> tuple[Outcome, str, str]:
    stdout, stderr = io.BytesIO(), io.BytesIO()
    outcome = run(["bash", "-c", command], Machine(), COMMAND_S, stdout, stderr)
    return outcome, stdout.getvalue().decode(), stderr.getvalue().decode()


def qemus() -> list[str]:
    """Those of this checkout."""
    done = subprocess.run(
        ["pgrep", "-af", f"qemu-system.*{BUILD}/"], capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_a_command_runs_here_and_changes_nothing_here(tmp_path: Path) -> None:
    """What its kernel warns of is reported."""
    (tmp_path / "kept").write_text("host\n")
    outcome, stdout, stderr = shell(
        f"cd {tmp_path} && cat kept && echo guest >kept && cat kept && touch new /tmp/x /etc/x &&"
        f" cd - && echo 'an error' >&2 && echo 'WARNING: planted' >/dev/kmsg && exit 200"
    )
    assert outcome.exit_code == 200
    assert (stdout, stderr) == (f"host\nguest\n{Path.cwd()}\n", "an error\n")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "host\n"
    assert not Path("/etc/x").exists()
    (complaint,) = outcome.complaints
    assert "planted" in complaint


@pytest.mark.demand
def test_nothing_outlives_a_runner_that_is_killed() -> None:
    argv = [sys.executable, "-m", "tests.guest", "--nic", "virtio:2", "--", "sh", "-c"]
    with subprocess.Popen([*argv, "echo on; tail -f /dev/null"], stdout=subprocess.PIPE) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == b"on\n"
        assert len(qemus()) == 1
        os.kill(runner.pid, signal.SIGKILL)
    until(lambda: qemus() == [], "QEMU is gone")
    shell("true")  # the next one clears up
    assert list(BUILD.glob("run-*")) == []


def groups(*, on_demand: bool) -> list[Group]:
    files = [file for file in FILES if (file.stem in DEMAND) is on_demand]
    return together((machine, file) for file in files for machine in machines_of(file))


@pytest.mark.parametrize(
    "group",
    [
        *groups(on_demand=False),
        *(pytest.param(each, marks=pytest.mark.demand) for each in groups(on_demand=True)),
    ],
    ids=named,
)
def test_in_the_guest(group: Group) -> None:
    if group.machine.init == "systemd":
        build()
    outcome, said = reported(group)
    complaints, failed = outcome.complaints, that_failed(group, said)
    if outcome.exit_code == 1 and 0 < len(failed.files) <= ONCE_MORE:
        print(f"{indent(said, '  ')}\nwhat failed, once more")
        outcome, said = reported(failed)
        complaints += outcome.complaints
    assert outcome.exit_code == 0, f"{said}\n{outcome.console}"
    assert complaints == ()
    print(indent("\n".join(shown(said)), "  "))


def shown(report: str) -> list[str]:
    """How it ended, what was not run and what was slow."""
    *lines, last = report.splitlines()
    return [last, *(each for each in lines if each.startswith("not run: ") or SLOW.match(each))]
