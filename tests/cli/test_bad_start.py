# SPDX-License-Identifier: GPL-2.0-or-later
"""What a start says in one line; one that fails has an exit code, too, and changes nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from atfnd import __version__
from tests.cli.refusals import NO_BPF, NO_BTF, NO_ROOT
from tests.daemons import ATFND, Daemon, standing
from tests.labs import Lab, unique_name


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.reap()


def refused(
    daemon: Daemon, lab: Lab, *options: str, wrapped: Sequence[str] = ()
) -> tuple[int, str]:
    """Exit code and stderr of a start that fails, after a look at what it left."""
    before = standing(lab)
    code = daemon.spawn(*options, wrapped=wrapped or ["env"]).wait(60)
    assert standing(lab) == before
    assert not daemon.socket.exists()
    said = daemon.said()
    assert "Traceback" not in said
    return code, said


NO_LAB = unique_name()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "atfnd: no NIC to steer\nhint: "),
        (["--nic", "nosuch0"], "atfnd: no interface 'nosuch0' here\nhint: there are: lo"),
        (["--nic", f"lab:{NO_LAB}"],
         f"atfnd: lab {NO_LAB} is not up\nhint: atfnd lab up --name {NO_LAB}\n"),
        (["--nic", "NIC", "--arm", "NIC", "--nic", "nosuch0"],
         "atfnd: no interface 'nosuch0' here"),
        (["--nic", "NIC", "--arm", "eth7"],
         "atfnd: --arm eth7: it is not among the NICs\nhint: add --nic eth7\n"),
        (["--nic", "NIC", "--observer", "ebpf"], "'ebpf' is not one of"),
    ],
    ids=["none", "unknown", "lab", "one good", "not watched", "observer"],
)  # fmt: skip
def test_options_that_cannot_be(
    daemon: Daemon, shared_lab: Lab, options: list[str], said: str
) -> None:
    name = shared_lab.nic.name
    found = refused(daemon, shared_lab, *(each.replace("NIC", name) for each in options))
    assert found[0] == 2
    assert said in found[1]


def test_not_root(daemon: Daemon, shared_lab: Lab) -> None:
    code, said = refused(daemon, shared_lab, "--nic", shared_lab.nic.name, wrapped=NO_ROOT)
    assert (code, said) == (1, "atfnd: this needs root\nhint: run it with sudo\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\nflows:\n  - nmae: x\n", ":3:5: unknown key `nmae`"),
        (None, ": cannot be read: No such file or directory"),
    ],
)
def test_a_policy_that_is_none(
    daemon: Daemon, shared_lab: Lab, text: str | None, said: str
) -> None:
    daemon.config.unlink()
    if text is not None:
        daemon.config.write_text(text)
    code, complaint = refused(daemon, shared_lab, "--nic", shared_lab.nic.name)
    assert code == 2
    assert f"{daemon.config}{said}" in complaint
    assert not daemon.run_dir.exists()


def test_a_second_daemon_on_the_same_run_dir(daemon: Daemon, shared_lab: Lab) -> None:
    daemon.start("--nic", shared_lab.nic.name)
    first = daemon.process
    assert first is not None
    before = standing(shared_lab)
    words = [ATFND, "run", "--run-dir", str(daemon.run_dir), "--config", str(daemon.config)]
    second = subprocess.run(
        [*words, "--nic", shared_lab.nic.name], capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 1
    assert second.stderr == (
        f"atfnd: another atfnd (pid {first.pid}) already serves {daemon.socket}\n"
        "hint: stop it, or give this one its own --run-dir\n"
    )
    assert standing(shared_lab) == before
    assert daemon.status()["pid"] == first.pid
    restore = daemon.restore()
    assert (restore.returncode, restore.stderr) == (1, second.stderr)
    assert daemon.end() == 0


def test_a_start_is_said_in_one_line(daemon: Daemon, shared_lab: Lab) -> None:
    name = shared_lab.nic.name
    daemon.start("--nic", name, "--arm", name)
    said = [line for line in daemon.said().splitlines() if line.startswith("start: ")]
    assert said == [
        f"start: atfnd {__version__} watches {name}; armed: {name}; socket {daemon.socket};"
        " observer bpf (the kernel supports it)"
    ]
    assert daemon.end() == 0


REFUSALS = [
    (NO_BPF, "load the observer's BPF programs: Operation not permitted"),
    (NO_BTF, "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"),
]


@pytest.mark.parametrize(("wrapped", "why"), REFUSALS, ids=["no-bpf", "no-btf"])
def test_a_kernel_that_refuses_bpf(
    daemon: Daemon, shared_lab: Lab, wrapped: Sequence[str], why: str
) -> None:
    nic = ("--nic", shared_lab.nic.name)
    code, said = refused(daemon, shared_lab, *nic, "--observer", "bpf", wrapped=wrapped)
    assert code == 1
    last = said.splitlines()[-2:]
    assert last[0].startswith(f"atfnd: the BPF observer cannot run: {why}")
    assert last[1] == "hint: use --observer sock_diag, which needs no BPF"

    daemon.start(*nic, wrapped=wrapped)  # auto: the other observer, and why
    status = daemon.status()
    assert status["observer"] == "sock_diag"
    assert status["observer_why"].startswith(f"no BPF: {why}")
    assert daemon.end() == 0
