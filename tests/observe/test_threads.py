# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads and socket holders, from a made-up /proc and from the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.observe.processes.threads import SocketOwners, ThreadUse, read_threads


def write_thread(
    root: Path, pid: int, tid: int, *, cpu: int, ran: int, slices: int = 1, state: str = "S"
) -> None:
    folder = root / str(pid) / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    rest = ["0"] * 10 + ["7", "8"] + ["0"] * 23 + [str(cpu)] + ["0"] * 13
    (folder / "stat").write_text(f"{tid} (a ) b) {state} {' '.join(rest)}\n")
    (folder / "schedstat").write_text(f"{ran} 0 {slices}\n")


def test_reads_a_thread_whose_name_has_brackets(tmp_path: Path) -> None:
    assert read_threads(5, str(tmp_path)) == {}  # it is gone
    write_thread(tmp_path, 5, 6, cpu=3, ran=100, slices=2, state="R")
    assert read_threads(5, str(tmp_path))[6] == (6, "a ) b", 3, True, 100, 2)
    (tmp_path / "5/task/6/schedstat").unlink()  # clock ticks have to do
    assert read_threads(5, str(tmp_path))[6][4:] == (15, None)


def test_active_is_what_ran_since_the_last_poll_or_is_new_or_running(tmp_path: Path) -> None:
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
    write_thread(tmp_path, 5, 5, cpu=0, ran=100, state="R")
    write_thread(tmp_path, 5, 8, cpu=0, ran=0)
    use.begin(4)
    assert {thread.tid for thread in use.active(5) or ()} == {5, 8}
    use.begin(5 + ThreadUse.STALE_NS)
    assert use.active(5) is None, "an old baseline is dropped"


def walk(owners: SocketOwners, inode: int, now_ns: int = 1) -> tuple[int, ...]:
    """Steps until the inode has been looked for; bounded by what one pass can take."""
    while (found := owners.of(inode, now_ns)) is None:
        owners.step(now_ns)
    return found


def fake_fd(root: Path, pid: int, fd: int, target: str) -> None:
    folder = root / str(pid) / "fd"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(fd)).symlink_to(target)


def test_a_step_is_bounded_and_every_holder_is_found(tmp_path: Path) -> None:
    for fd in range(100):
        fake_fd(tmp_path, 5, fd, f"socket:[{fd}]")
    fake_fd(tmp_path, 6, 3, "socket:[99]")
    owners = SocketOwners(str(tmp_path), links=30)
    assert owners.of(99, 1) is None
    assert [owners.step(1) for _ in range(4)] == [True, True, True, False]
    assert sorted(owners.of(99, 1) or ()) == [5, 6]


@pytest.mark.parametrize("known", [False, True], ids=["nobody", "a holder in doubt"])
def test_a_holder_is_looked_for_again_after_a_while(tmp_path: Path, known: bool) -> None:
    if known:
        fake_fd(tmp_path, 5, 3, "socket:[42]")
    owners = SocketOwners(str(tmp_path))
    before = walk(owners, 42)
    assert before == ((5,) if known else ())
    if known:
        (tmp_path / "5/fd/3").unlink()
    fake_fd(tmp_path, 6, 3, "socket:[42]")
    owners.step(2)
    assert owners.of(42, 2) == before
    later = 2 + SocketOwners.RETRY_NS
    if known:
        owners.doubt(42, later)
    else:
        owners.of(42, later)
    owners.step(later)
    assert owners.of(42, later) == (6,)
