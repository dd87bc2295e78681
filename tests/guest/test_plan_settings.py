# SPDX-License-Identifier: GPL-2.0-or-later
"""What `atfnctl plan` says of RPS and RFS, typed by hand, leaves them as the armed daemon does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.plans import plan, typed
from tests.guest.settings import on_simnic, set_settings, set_up_arfs, settings
from tests.guest.simlab import NAME
from tests.wait import until

__all__: list[str] = []


@pytest.mark.parametrize(("queues", "rules"), [(4, 1), (1, 0)], ids=["one owner", "RFS"])
def test_settings_by_hand_are_as_by_the_daemon(tmp_path: Path, queues: int, rules: int) -> None:
    with on_simnic(tmp_path, queues=queues, table=64, rules=rules) as bed:
        if rules:
            set_up_arfs()
        bed.start(arm=False)
        before = settings(bed)
        typed(plan(bed))
        by_commands = settings(bed)
        changed = {Path(each).name for each in before if by_commands[each] != before[each]}
        assert "rps_flow_cnt" in changed
        set_settings(before)
        assert settings(bed) == before
        bed.daemon.order("arm", NAME)
        until(lambda: settings(bed) == by_commands, "the daemon has made the same", 60)
