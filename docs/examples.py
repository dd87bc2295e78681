# SPDX-License-Identifier: GPL-2.0-or-later
"""The section EXAMPLES of atfnd(8) and atfnctl(1): the commands of a first hour (docs/tutorial.md).

tests/cli/test_manual.py has the parsers of both programs read each command.
"""

from __future__ import annotations

__all__ = ["EXAMPLES"]

EXAMPLES: dict[str, dict[str, tuple[str, ...]]] = {  # page -> what for -> the commands
    "atfnd.8": {
        "What could atfnd do on this machine, and on one interface of it? This needs no daemon and "
        "writes nothing:": ("atfnd doctor", "atfnd doctor eth2"),
        "Start the service. It observes, and changes no interface until one is armed:": (
            "systemctl enable --now atfnd",
        ),
        "Or observe in the foreground, until Ctrl-C:": ("atfnd run --nic 'en*'",),
        "Check the policy, then put it into force:": ("atfnd check", "systemctl reload atfnd"),
        "What would another policy have decided? Record what the daemon observes, and replay it:": (
            "atfnctl record --seconds 300 seen.jsonl",
            "atfnd replay seen.jsonl --policy other.yaml",
        ),
        "Stop the service and take everything back that it wrote to the interfaces:": (
            "systemctl disable --now atfnd",
            "atfnd restore",
        ),
        "Try atfnd on the lab NIC; `kill %1` ends the daemon:": (
            "atfnd lab up",
            "atfnd run --nic lab:lab --run-dir /run/atfnd-lab &",
            "atfnctl top --socket /run/atfnd-lab/atfnd.sock",
            "kill %1; wait %1",
            "atfnd restore --run-dir /run/atfnd-lab",
            "atfnd lab down",
        ),
    },
    "atfnctl.1": {
        "Look. Nothing is changed by these:": (
            "atfnctl status",
            "atfnctl flows",
            "atfnctl top",
        ),
        "What would arming gain under the load that there is, and what would it write?": (
            "atfnctl gain eth2 --for 60s",
            "atfnctl plan --nic eth2",
        ),
        "Steer one interface, and see whether packets arrive where they are read:": (
            "atfnctl arm eth2",
            "atfnctl flows --nic eth2",
            "atfnctl explain :40112",
            "atfnctl events --nic eth2 --since 10m",
        ),
        "Does it pay?": ("atfnctl measure eth2 --for 10m",),
        "Take everything out for a change of queues, then go on:": (
            "atfnctl pause eth2",
            "ethtool -L eth2 combined 8",
            "atfnctl resume eth2",
        ),
        "Stop every change of every interface at once; filters stay:": ("atfnctl disarm",),
        "Go back to the state before atfnd:": ("atfnctl restore eth2",),
        "For programs: the flows whose packets arrive on another CPU than they should:": (
            "atfnctl flows --json | jq '.[] | select(.placed == false)'",
        ),
    },
}
