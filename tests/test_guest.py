# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest: what it promises its users, and every file of tests/guest/ in one."""

from __future__ import annotations

import compileall
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from atfnd.errors import OperatorError
from tests.__main__ import ONCE_MORE
from tests.guest import boot
from tests.guest.boot import BUILD, ROOT, TIMED_OUT, Outcome, run
from tests.guest.collected import Group, machines_of, run_tests, that_failed, together
from tests.guest.debian import build
from tests.guest.machine import Machine
from tests.tiers import DEMAND
from tests.wait import until

FILES = sorted((ROOT / "tests/guest").glob("test_*.py"))
FILES_S = 2400.0
COMMAND_S = 300.0
SLOW = re.compile(r"\d+\.\d\ds (setup|call|teardown) ")  # of `pytest --durations`

pytestmark = pytest.mark.timeout(FILES_S + 300)


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
    report = io.BytesIO()
    outcome = run_tests(group, report, FILES_S)
    return outcome, report.getvalue().decode()


def shell(command: str, timeout_s: float = COMMAND_S) -> tuple[Outcome, str, str]:
    stdout, stderr = io.BytesIO(), io.BytesIO()
    outcome = run(["bash", "-c", command], Machine(), timeout_s, stdout, stderr)
    return outcome, stdout.getvalue().decode(), stderr.getvalue().decode()


def qemus() -> list[str]:
    """Those of this checkout."""
    done = subprocess.run(
        ["pgrep", "-af", f"qemu-system.*{BUILD}/"], capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_a_command_runs_here_and_changes_nothing_here(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("host\n")
    outcome, stdout, stderr = shell(
        f"cd {tmp_path} && cat kept && echo guest >kept && cat kept && touch new /tmp/x /etc/x &&"
        f" cd - && echo 'an error' >&2 && exit 200"
    )
    assert (outcome.exit_code, outcome.complaints) == (200, ())
    assert (stdout, stderr) == (f"host\nguest\n{Path.cwd()}\n", "an error\n")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "host\n"
    assert not Path("/etc/x").exists()


def test_what_the_kernel_warns_of_is_reported() -> None:
    outcome, _, _ = shell("echo 'WARNING: planted' >/dev/kmsg")
    assert outcome.exit_code == 0
    assert len(outcome.complaints) == 1
    assert "planted" in outcome.complaints[0]


@pytest.mark.demand
def test_what_takes_too_long_is_ended() -> None:
    outcome, _, _ = shell("exec tail -f /dev/null", timeout_s=1)
    assert outcome.exit_code == TIMED_OUT
    assert qemus() == []


@pytest.mark.demand
def test_a_panic_is_reported_with_the_console() -> None:
    outcome, _, _ = shell("echo c >/proc/sysrq-trigger; tail -f /dev/null")
    assert outcome.exit_code is None
    assert "sysrq triggered crash" in outcome.console.lower()


@pytest.mark.demand
def test_a_guest_that_dies_before_its_command_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        boot, "KERNEL_ARGUMENTS", f"{boot.KERNEL_ARGUMENTS} rdinit=/none root=/none"
    )
    with pytest.raises(OperatorError, match=r"did not start[^$]*Kernel panic"):
        shell("true")
    tried = capsys.readouterr().err.count("no command started in attempt")
    assert tried == boot.ATTEMPTS


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


@pytest.mark.parametrize(
    "words",
    [
        ["--nic", "e1000:2"],
        ["--nic", "igb"],
        ["--nic", "igb:x"],
        ["--cpus", "4"],
        ["--cpus", "2x3", "--llcs", "2"],
    ],
)
def test_a_machine_that_cannot_be_had(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(f"GUEST = {words!r}\n")
    with pytest.raises(OperatorError, match=r"--nic|--cpus|--llcs"):
        machines_of(file)


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
