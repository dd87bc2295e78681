# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads and socket holders, from a made-up /proc and from the real one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.observe.processes.threads import SocketOwners, ThreadUse, read_threads
from tests.wait import until


def write_thread(
    root: Path, pid: int, tid: int, *, cpu: int, ran: int, slices: int = 1, state: str = "S"
) -> None:
    folder = root / str(pid) / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    rest = ["0"] * 10 + ["7", "8"] + ["0"] * 23 + [str(cpu)] + ["0"] * 13
    (folder / "stat").write_text(f"{tid} (a ) b) {state} {' '.join(rest)}\n")
    (folder / "schedstat").write_text(f"{ran} 0 {slices}\n")


@pytest.fixture
def alive() -> Iterator[threading.Event]:
    done = threading.Event()
    yield done
    done.set()


def test_reads_a_thread_whose_name_has_brackets(tmp_path: Path) -> None:
    write_thread(tmp_path, 5, 6, cpu=3, ran=100, slices=2, state="R")
    thread = read_threads(5, str(tmp_path))[6]
    assert thread == (6, "a ) b", 3, True, 100, 2)


def test_without_schedstat_clock_ticks_have_to_do(tmp_path: Path) -> None:
    write_thread(tmp_path, 5, 6, cpu=3, ran=100)
    (tmp_path / "5/task/6/schedstat").unlink()
    assert read_threads(5, str(tmp_path))[6][4:] == (15, None)


def test_a_process_that_is_gone_has_no_threads(tmp_path: Path) -> None:
    assert read_threads(5, str(tmp_path)) == {}


def test_active_is_what_ran_since_the_last_poll(tmp_path: Path) -> None:
    use = ThreadUse(str(tmp_path))
    for tid in (5, 6, 7):
        write_thread(tmp_path, 5, tid, cpu=0, ran=100)
    use.begin(1)
    assert use.active(5) is None
    write_thread(tmp_path, 5, 6, cpu=1, ran=150)
    write_thread(tmp_path, 5, 7, cpu=1, ran=100, slices=2)
    assert use.active(5) is None, "sampled once per poll"
    use.begin(2)
    assert {thread.tid for thread in use.active(5) or ()} == {6, 7}
    use.begin(3)
    assert use.active(5) == ()


def test_new_and_running_threads_are_active(tmp_path: Path) -> None:
    use = ThreadUse(str(tmp_path))
    write_thread(tmp_path, 5, 5, cpu=0, ran=100, state="R")
    use.begin(1)
    use.active(5)
    write_thread(tmp_path, 5, 6, cpu=0, ran=0)
    use.begin(2)
    assert {thread.tid for thread in use.active(5) or ()} == {5, 6}


def test_an_old_baseline_is_dropped(tmp_path: Path) -> None:
    use = ThreadUse(str(tmp_path))
    write_thread(tmp_path, 5, 5, cpu=0, ran=100)
    use.begin(1)
    use.active(5)
    use.begin(2 + ThreadUse.STALE_NS)
    assert use.active(5) is None


def test_real_threads_run_where_they_are_pinned(alive: threading.Event) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    tids: dict[int, int] = {}

    def pinned(cpu: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {cpu})
        tids[cpu] = threading.get_native_id()
        alive.wait()

    for cpu in cpus:
        threading.Thread(target=pinned, args=(cpu,), daemon=True).start()
    until(lambda: len(tids) == len(cpus), "threads pinned themselves")
    sample = read_threads(os.getpid())
    assert {cpu: sample[tid].cpu for cpu, tid in tids.items()} == {cpu: cpu for cpu in cpus}


def walk(owners: SocketOwners, inode: int, now_ns: int = 1) -> tuple[int, ...]:
    """Steps until the inode has been looked for; bounded by what one pass can take."""
    while (found := owners.of(inode, now_ns)) is None:
        owners.step(now_ns)
    return found


def test_finds_every_holder_of_a_socket() -> None:
    with socket.socket() as held:
        inode = os.fstat(held.fileno()).st_ino
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=[held.fileno()],
        )
        with child:
            assert set(walk(SocketOwners(), inode)) == {os.getpid(), child.pid}


def fake_fd(root: Path, pid: int, fd: int, target: str) -> None:
    folder = root / str(pid) / "fd"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(fd)).symlink_to(target)


def test_a_step_is_bounded(tmp_path: Path) -> None:
    for fd in range(100):
        fake_fd(tmp_path, 5, fd, f"socket:[{fd}]")
    owners = SocketOwners(str(tmp_path), links=30)
    assert owners.of(99, 1) is None
    assert [owners.step(1) for _ in range(4)] == [True, True, True, False]
    assert owners.of(99, 1) == (5,)


def test_nobody_is_an_answer_and_is_not_asked_again_at_once(tmp_path: Path) -> None:
    owners = SocketOwners(str(tmp_path))
    assert walk(owners, 42) == ()
    fake_fd(tmp_path, 5, 3, "socket:[42]")
    owners.step(2)
    assert owners.of(42, 2) == ()
    later = 2 + SocketOwners.RETRY_NS
    owners.of(42, later)
    owners.step(later)
    assert owners.of(42, later) == (5,)


def test_a_doubted_holder_is_looked_for_again(tmp_path: Path) -> None:
    fake_fd(tmp_path, 5, 3, "socket:[42]")
    owners = SocketOwners(str(tmp_path))
    assert walk(owners, 42) == (5,)
    (tmp_path / "5/fd/3").unlink()
    fake_fd(tmp_path, 6, 3, "socket:[42]")
    later = 2 + SocketOwners.RETRY_NS
    owners.doubt(42, later)
    owners.step(later)
    assert owners.of(42, later) == (6,)


def test_no_walk_without_a_question(tmp_path: Path) -> None:
    owners = SocketOwners(str(tmp_path / "there-is-no-such-proc"))
    assert owners.step(1) is False
