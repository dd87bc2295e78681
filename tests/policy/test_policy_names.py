# SPDX-License-Identifier: GPL-2.0-or-later
"""What a name that nothing can have is answered with."""

from __future__ import annotations

import pytest

from tests.policy.test_policy_errors import FLOW, answered

BAD = [
    (FLOW + "{command: 7}", "5:22: expected a command line, got `7`", "quote it"),
    (FLOW + '{command: "a|"}', "5:22: `a|` has an empty name in it", None),
    (FLOW + '{command: ""}', "5:22: an empty name", None),
    (FLOW + '{process: "!"}', "5:22: `!` excludes nothing", "write a name after the `!`"),
    (FLOW + '{process: "a|! "}', "5:22: `a|! ` excludes nothing", "write a name after the `!`"),
    (FLOW + '{unit: "!!"}', "5:19: `!!` excludes nothing", "write a name after the `!`"),
    (FLOW + '{process: "!a|"}', "5:22: `!a|` has an empty name in it", None),
    (FLOW + '{cgroup: "!a.slice"}', "5:21: `a.slice` can match no cgroup", "did you mean /a.sl"),
    (FLOW + '{unit: "a.service|!nginx"}', "5:19: `nginx` can match no unit", "did you mean nginx"),
    (
        FLOW + '{process: "!systemd-networkd"}',
        "5:22: `systemd-networkd` can match no process",
        "did you mean systemd-network?",
    ),
    (FLOW + "{interface: [eth0]}", "5:24: expected an interface name, got a list", "quote it"),
    (FLOW + "{interfaces: eth0}", "5:13: unknown key `interfaces`", "did you mean interface?"),
    (FLOW + "{user: rooot}", "5:19: there is no user `rooot` here", "did you mean root?"),
    (FLOW + "{user: [0, qqqqqqqq]}", "5:23: there is no user `qqqqqqqq` here", "a uid is taken"),
    (FLOW + "{user: -1}", "5:19: no such uid: `-1`", "uids are 0 to"),
    (FLOW + "{user: 4294967295}", "5:19: no such uid: `4294967295`", "uids are 0 to"),
    (FLOW + "{user: }", "5:18: expected a user name or a uid, got nothing", None),
    (FLOW + "{user: []}", "5:19: `user` is empty", None),
    (
        FLOW + "{cgroup: /sys/fs/cgroup/system.slice}",
        "5:21: `/sys/fs/cgroup/system.slice` can match no cgroup",
        "did you mean /system.slice?",
    ),
    (FLOW + "{cgroup: a.slice}", "5:21: `a.slice` can match no cgroup", "did you mean /a.slice?"),
    (FLOW + "{cgroup: /a/}", "5:21: `/a/` can match no cgroup", "did you mean /a or /a/*?"),
    (FLOW + "{unit: nginx}", "5:19: `nginx` can match no unit", "did you mean nginx.service?"),
    (
        FLOW + "{unit: system.slice/a.service}",
        "5:19: `system.slice/a.service` can match no unit",
        "did you mean a.service?",
    ),
    (FLOW + "{unit: a.timer}", "5:19: `a.timer` can match no unit", "did you mean a.timer.serv"),
    (
        FLOW + "{direction: acepted}",
        "5:24: expected accepted or connected, got `acepted`",
        "did you mean accepted?",
    ),
    (FLOW + "{direction: }", "5:23: expected accepted or connected, got nothing", None),
    (FLOW + "{min_rate: 500}", "5:23: `500` has no unit, expected a rate", "units: bit, kbit"),
    (FLOW + "{min_rate: 500mb}", "5:23: unknown unit `mb`, expected a rate", "units: bit, kbit"),
    ("version: 1\ndaemon:\n", "2:8: expected a mapping, got nothing", None),
]


@pytest.mark.parametrize(("text", "place", "hint"), BAD)
def test_says_what_is_wrong_and_where(text: str, place: str, hint: str | None) -> None:
    answered(text, place, hint)
