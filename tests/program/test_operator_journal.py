# SPDX-License-Identifier: GPL-2.0-or-later
"""What the operator said holds: for the file cut at any byte, for the next run, for every NIC."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.program.journals.operator_journal import ALL, OperatorJournal
from tests.bed import a_bed
from tests.daemons import standing
from tests.labs import Lab

__all__: list[str] = []

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_kill_switch_outlives_the_daemon(
    shared_lab: Lab, tmp_path: Path, number: signal.Signals
) -> None:
    """Whatever --arm says; until `arm`."""
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        app = bed.apps.tcp()
        bed.steered(app)
        assert bed.daemon.ctl("disarm").stdout == "every interface is disarmed\n"
        frozen = standing(shared_lab)
        bed.daemon.end(number)
        bed.start()
        assert bed.daemon.status()["armed"] == []
        app.migrate()
        bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
        assert standing(shared_lab) == frozen
        assert bed.daemon.ctl("arm", shared_lab.nic.name).returncode == 0
        bed.steered(app)
        bed.daemon.end(number)
        bed.start(arm=False)
        app.migrate()
        bed.steered(app)


def test_a_pause_outlives_the_daemon(shared_lab: Lab, tmp_path: Path) -> None:
    name = shared_lab.nic.name
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        app = bed.apps.tcp()
        bed.steered(app)
        assert bed.daemon.ctl("pause", name).returncode == 0
        for number in (signal.SIGKILL, signal.SIGTERM):
            bed.daemon.end(number)
            bed.start()
            bed.row(app, lambda row: row["state"] == "observed", "is only observed")
            assert shared_lab.nic.filters() == []
        assert bed.daemon.ctl("resume", name).stdout == f"{name} is resumed\n"
        bed.steered(app)
