# SPDX-License-Identifier: GPL-2.0-or-later
"""Read locality over time, and which counter is whose. Pure. (To the byte, in a daemon:
tests/daemon/test_read_locality.py.)"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import ReadBytes
from atfnd.observe.nics.reads import Reads, Slots

S = 1_000_000_000


def test_recent_is_the_last_ten_seconds_however_often_it_is_looked() -> None:
    total = [ReadBytes()]
    reads = Reads(lambda: total[0], 0)
    for half in range(1, 61):
        total[0] = ReadBytes(min(50 * half, 1500), 0, 0)
        reads.look(half * S // 2, armed=True)
    shown = reads.shown("eth0")
    assert shown is not None
    assert (shown.recent, shown.recent_ns) == (ReadBytes(), 10 * S)
    assert shown.recent.share is None
    assert shown.armed.share == 1.0


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
