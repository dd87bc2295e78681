# SPDX-License-Identifier: GPL-2.0-or-later
"""Daemons that move interrupts: found among real processes, and what irqbalance says it spares.

The irqbalance here is a fake: a `sleep` under its name, or a socket that answers as it does. The
real one would move this machine's interrupts; it runs in the guest (tests/guest/test_doctor.py).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from atfnd.kernel.interrupts.irqbalance import spared, spared_by_module
from atfnd.model import Rival
from atfnd.observe.machine.rivals import rivals
from tests.wait import until


@contextmanager
def decoy(folder: Path, name: str, *words: str) -> Iterator[int]:
    """A process called `name` that does nothing; its pid. Bash keeps the words in its cmdline."""
    path = folder / name
    shutil.copy(shutil.which("bash") or "/bin/bash", path)
    process = subprocess.Popen(
        [str(path), "-c", "read x", name, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    comm = Path(f"/proc/{process.pid}/comm")
    try:
        until(
            lambda: comm.read_bytes() == os.fsencode(f"{name}\n"), "it has its name"
        )  # after exec began
        yield process.pid
    finally:
        process.communicate(timeout=30)


def found(pid: int, root: Path = Path("/")) -> list[Rival]:
    return [rival for rival in rivals(root) if rival.pid == pid]


def test_what_irqbalance_was_asked_to_spare(tmp_path: Path) -> None:
    words = ("--banirq=41", "--banirq", "42", "-i", "43", "-i44", "--banmod=nvme", "--banirq=x")
    with decoy(tmp_path, "irqbalance", *words) as pid:
        asked = Rival("irqbalance", pid, frozenset({41, 42, 43, 44}), answers=False)
        with answering(f"\0irqbalance{pid}.sock", SETUP):  # its bans may have changed since
            assert found(pid) == [Rival("irqbalance", pid, frozenset({52, 7}))]
        assert found(pid) == [asked]
    assert found(pid) == []


CHAINS = {
    "etc/tuned/openshift-node-performance-x": "[main]\ninclude=openshift-node,cpu-partitioning"
    "${f:regex_search_ternary:${f:exec:uname:-r}:rt:-rt:}\n[irqbalance]\nenabled=false\n",
    "usr/lib/tuned/openshift-node": "[main]\ninclude=openshift\n[sysctl]\nnet.core.somaxconn=1\n",
    "usr/lib/tuned/openshift": "[main]\ninclude=-nowhere,openshift-node\n[net]\nx=1\n",
    "usr/lib/tuned/profiles/cpu-partitioning": "[scheduler]\nisolated_cores=${isolated_cores}\n"
    "[irqbalance]\nbanned_cpus=${isolated_cores}\n",
    "usr/lib/tuned/profiles/ours": "[main]\ninclude=cpu-partitioning\n[irqbalance]\nreplace=1\n"
    "enabled=0\n[scheduler]\nisolated_cores=\n",
}


@pytest.mark.parametrize(
    ("profile", "moves"),
    [
        ("openshift-node-performance-x", ("isolated_cores",)),
        ("openshift-node", ()),
        ("cpu-partitioning", ("[irqbalance]", "isolated_cores")),
        ("ours", ()),
        ("of-an-image", None),
    ],
)
def test_what_a_profile_includes_moves_interrupts(
    tmp_path: Path, profile: str, moves: tuple[str, ...] | None
) -> None:
    for folder, text in CHAINS.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "tuned.conf").write_text(text)
    with decoy(tmp_path, "tuned") as pid:
        assert found(pid, tmp_path) == [Rival("tuned", pid)]
        (tmp_path / "etc/tuned/active_profile").write_text(f"{profile}\n")
        assert found(pid, tmp_path) == [Rival("tuned", pid, profile=profile, moves=moves)]
        container = tmp_path / f"proc/{pid}/root"
        container.parent.mkdir(parents=True)
        container.symlink_to(tmp_path / "image")
        (tmp_path / "image/etc/tuned").mkdir(parents=True)
        (tmp_path / "image/etc/tuned/active_profile").write_text("its-own")
        assert found(pid, tmp_path) == [Rival("tuned", pid, profile="its-own")]


@contextmanager
def answering(address: str, answer: bytes, reads: int = 16384) -> Iterator[list[bytes]]:
    """A fake irqbalance that answers one question; what it was asked, and by which pid. The real
    ones read 500 bytes or 16,384."""
    asked: list[bytes] = []
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(address)
        listener.listen()

        def answer_one() -> None:
            connection, _ = listener.accept()
            with connection:
                question, rights, _, _ = connection.recvmsg(reads, 200)
                asked.extend([question, *(data for _, _, data in rights)])
                connection.sendall(answer)

        thread = threading.Thread(target=answer_one)
        thread.start()
        yield asked
        thread.join(30)


SETUP = (
    b"SLEEP 10 IRQ 52 LOAD 0 DIFF 0 CLASS 5 IRQ 7 LOAD 12 DIFF 3 CLASS 0 BANNED 00000000,00000003 "
)


@pytest.mark.parametrize("abstract", [False, True])
def test_what_irqbalance_answers(tmp_path: Path, abstract: bool) -> None:
    address = "\0irqbalance1234567.sock"
    if not abstract:
        (tmp_path / "irqbalance").mkdir()
        address = str(tmp_path / "irqbalance/irqbalance1234567.sock")
    with answering(address, SETUP) as asked:
        assert spared(1234567, tmp_path) == frozenset({52, 7})
    question, credentials = asked
    assert question.strip() == b"setup"
    assert int.from_bytes(credentials[:4], "little") == os.getpid()


def test_what_it_leaves_alone_by_module(tmp_path: Path) -> None:
    """As irqbalance, by a part of the driver's name, and by the interrupts of the PCI device."""
    for device, driver, irqs in (("0", "virtio-pci", (40, 41)), ("1", "mlx5_core", (50, 51))):
        folder = tmp_path / "sys/bus/pci/devices" / device
        (folder / "msi_irqs").mkdir(parents=True)
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (folder / "driver").symlink_to(tmp_path / "drivers" / driver)
        (folder / "irq").write_text("11\n" if device == "0" else "12\n")
        for irq in irqs:
            (folder / "msi_irqs" / str(irq)).touch()
    (tmp_path / "proc/7").mkdir(parents=True)
    for words, expected in (
        (("--banmod=mlx5",), {50, 51, 12}),
        (("-m", "virtio", "--banirq=3"), {40, 41, 11}),
        (("-mvirtio-pci", "--banmod", "mlx5_core"), {40, 41, 11, 50, 51, 12}),
        (("--banmod=ice",), set()),
        ((), set()),
    ):
        (tmp_path / "proc/7/cmdline").write_text("\0".join(("irqbalance", *words, "")))
        assert spared_by_module(7, tmp_path) == expected


def test_an_irqbalance_that_does_not_answer_says_nothing(tmp_path: Path) -> None:
    assert spared(1234567, tmp_path) is None
    with closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.bind("\0irqbalance1234568.sock")
        silent.listen()
        assert spared(1234568, tmp_path) is None


@pytest.mark.parametrize("name", ["irqbalanced", os.fsdecode(b"\xff\xfe")])
def test_another_name_is_another_process(tmp_path: Path, name: str) -> None:
    with decoy(tmp_path, name) as pid:
        assert found(pid) == []


def test_bpftune(tmp_path: Path) -> None:
    with decoy(tmp_path, "bpftune") as pid:
        assert found(pid, tmp_path) == [Rival("bpftune", pid)]
