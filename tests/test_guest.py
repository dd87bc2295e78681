# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest: what it promises its users."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from tests.guest import boot
from tests.guest.boot import BUILD, TIMED_OUT, Outcome, run
from tests.guest.collected import MOST, machines_of, together
from tests.guest.machine import Machine
from tests.wait import until

COMMAND_S = 300.0

pytestmark = pytest.mark.timeout(COMMAND_S + 300)


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


def test_what_takes_too_long_is_ended() -> None:
    outcome, _, _ = shell("exec sleep 1000", timeout_s=1)
    assert outcome.exit_code == TIMED_OUT
    assert qemus() == []


def test_a_panic_is_reported_with_the_console() -> None:
    outcome, _, _ = shell("echo c >/proc/sysrq-trigger; sleep 1000")
    assert outcome.exit_code is None
    assert "sysrq triggered crash" in outcome.console.lower()


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


def test_nothing_outlives_a_runner_that_is_killed() -> None:
    argv = [sys.executable, "-m", "tests.guest", "--nic", "virtio:2", "--", "sh", "-c"]
    with subprocess.Popen([*argv, "echo on; sleep 1000"], stdout=subprocess.PIPE) as runner:
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


def test_files_that_want_the_same_machine_share_a_start_of_it() -> None:
    smt = Machine(2, 1, 2)
    files = [Path(f"test_{n}.py") for n in range(MOST + 3)]
    made = together([*((Machine(), each) for each in files), (smt, files[0])])
    assert [(group.machine, len(group.files)) for group in made] == [
        (Machine(), MOST // 2 + 2), (Machine(), MOST // 2 + 1), (smt, 1),
    ]  # fmt: skip
    assert {each for group in made[:2] for each in group.files} == {*files}
