# SPDX-License-Identifier: GPL-2.0-or-later
"""What the operator said holds: for the file cut at any byte, for the next run, for every NIC."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from atfnd.program.journals.operator_journal import ALL, OperatorJournal

NICS = ["eth0", "eth1"]
SAID = st.tuples(st.sampled_from(["arm", "disarm", "pause", "resume"]), st.sampled_from(NICS))
STEPS = st.lists(st.one_of(SAID, st.just(("disarm", ALL))), max_size=12)


def known(orders: OperatorJournal) -> list[tuple[bool | None, bool]]:
    return [(orders.armed(nic), orders.paused(nic)) for nic in (*NICS, "eth9")]


@given(STEPS)
def test_the_last_word_holds_for_the_next_run(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.journal"
        orders = OperatorJournal(path)
        for verb, nic in steps:
            orders.say(verb, nic)
            if verb in ("arm", "disarm"):
                assert orders.armed("eth9" if nic == ALL else nic) is (verb == "arm")
                assert not orders.paused("eth9" if nic == ALL else nic)
            else:
                assert orders.paused(nic) is (verb == "pause")
        for _ in range(2):  # also written anew
            before = known(orders)
            orders.close()
            orders = OperatorJournal(path)
            assert known(orders) == before
        orders.close()


def test_an_order_that_cannot_be_read_disarms_all(tmp_path: Path) -> None:
    path = tmp_path / "orders.journal"
    orders = OperatorJournal(path)
    orders.say("disarm", "eth0")
    orders.say("arm", "eth1")
    orders.close()
    text = path.read_bytes()
    path.write_bytes(text.replace(b"eth0", b"eth7"))
    orders = OperatorJournal(path)
    assert orders.trouble is not None
    assert [orders.armed(nic) for nic in ("eth0", "eth1", "eth9")] == [False, False, False]
    orders.close()
