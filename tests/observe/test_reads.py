# SPDX-License-Identifier: GPL-2.0-or-later
"""Read locality over time, and which counter is whose. Pure."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.ctl.tables import status_table
from atfnd.model import NicReads, ReadBytes, Status
from atfnd.observe.nics.reads import Reads, Slots
from atfnd.serve.api.moves import status_view
from tests.serve.published import Published

__all__: list[str] = []

S = 1_000_000_000


def read(total: list[ReadBytes]) -> Reads:
    return Reads(lambda: total[0], 0)


def test_bytes_count_as_read_while_armed_or_not() -> None:
    total = [ReadBytes(10, 20, 1)]
    reads = read(total)
    reads.look(2 * S, armed=False)
    total[0] = ReadBytes(40, 21, 3)
    reads.look(3 * S, armed=True)
    shown = reads.shown("eth0")
    assert shown is not None
    assert (shown.unarmed, shown.armed) == (ReadBytes(10, 20, 1), ReadBytes(30, 1, 2))
    assert (shown.recent, shown.recent_ns) == (ReadBytes(40, 21, 3), 3 * S)


def test_recent_is_the_last_ten_seconds_however_often_it_is_looked() -> None:
    total = [ReadBytes()]
    reads = read(total)
    for half in range(1, 61):
        total[0] = ReadBytes(min(50 * half, 1500), 0, 0)
        reads.look(half * S // 2, armed=True)
    shown = reads.shown("eth0")
    assert shown is not None
    assert (shown.recent, shown.recent_ns) == (ReadBytes(), 10 * S)
    assert shown.recent.share is None
    assert shown.armed.share == 1.0


def test_what_is_not_measured_is_not_shown() -> None:
    reads = Reads(lambda: None, 0)
    reads.look(S, armed=True)
    assert reads.shown("eth0") is None


@given(st.lists(st.sets(st.sampled_from("abcdef"), max_size=6), max_size=30), st.integers(1, 4))
def test_a_counter_is_of_one_nic_and_stays_its(sets: list[set[str]], count: int) -> None:
    slots, before = Slots(count), dict[str, int]()
    for nics in sets:
        now = dict(slots.assign(nics))
        assert now.keys() == nics
        used = [slot for slot in now.values() if slot != slots.none]
        assert len(set(used)) == len(used) == min(count, len(nics))
        for nic in before.keys() & nics:
            assert before[nic] in (now[nic], slots.none)
        before = now


def reported(status: Status) -> dict[str, str]:
    view = dict(status_view(status, 10 * S))
    columns = [list(column.cells) for column in status_table(view).columns]
    return {str(name): str(value) for name, value in zip(*columns, strict=True)}


def test_the_status_says_why_there_is_no_locality() -> None:
    status, none = Published().status(), ReadBytes()
    nothing = NicReads("eth0", none, none, none, 3 * S)
    said = reported(replace(status, reads=(nothing,)))
    assert (said["locality"], said["since start"]) == ("no data read yet", "-")
    said = reported(replace(status, reads=(nothing._replace(unarmed=ReadBytes(1024, 1024)),)))
    assert said["locality"] == "no data read lately"
    assert said["since start"] == "50.00% of 2.0K while not armed"
    udp = ReadBytes(unseen=5)
    said = reported(replace(status, reads=(nothing._replace(armed=udp, recent=udp),)))
    assert said["locality"].startswith("not known: the kernel keeps no CPU for unconnected UDP")
    said = reported(replace(status, reads=None, observer="sock_diag"))
    assert said["locality"].startswith("not measured: the sock_diag observer")
