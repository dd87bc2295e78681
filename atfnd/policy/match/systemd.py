# SPDX-License-Identifier: GPL-2.0-or-later
"""The units of systemd that a control group's path names (systemd.unit(5), systemd.slice(5))."""

from __future__ import annotations

__all__ = ["UNIT_TYPES", "units_in"]

# Those that have a control group: the others hold no process.
UNIT_TYPES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")


def units_in(cgroup: str) -> tuple[str, ...]:
    """Every unit that a group is in, outermost first: of
    `/user.slice/user-0.slice/user@0.service/app.slice/a.scope` all five, of `/` none.

    A unit that is named as a controller's file has an underscore before its group's name
    (systemd, docs/CGROUP_DELEGATION.md)."""
    words = (word.removeprefix("_") for word in cgroup.split("/"))
    return tuple(word for word in words if word.endswith(UNIT_TYPES) and not word.startswith("."))
