# SPDX-License-Identifier: GPL-2.0-or-later
"""What `atfnctl plan` says of RPS and RFS, typed by hand, leaves them as the armed daemon does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.knobs import knobs, on_simnic, set_knobs, set_up_arfs
from tests.guest.plans import plan, typed
from tests.guest.simlab import NAME
from tests.wait import until

__all__: list[str] = []


@pytest.mark.parametrize(("queues", "rules"), [(4, 1), (1, 0)], ids=["one owner", "RFS"])
def test_knobs_by_hand_are_as_by_the_daemon(tmp_path: Path, queues: int, rules: int) -> None:
    with on_simnic(tmp_path, queues=queues, table=64, rules=rules) as bed:
        if rules:
            set_up_arfs()
        bed.start(arm=False)
        before = knobs(bed)
        typed(plan(bed))
        by_hand = knobs(bed)
        changed = {Path(each).name for each in before if by_hand[each] != before[each]}
        assert "rps_flow_cnt" in changed
        set_knobs(before)
        assert knobs(bed) == before
        bed.daemon.order("arm", NAME)
        until(lambda: knobs(bed) == by_hand, "the daemon has made the same", 60)
