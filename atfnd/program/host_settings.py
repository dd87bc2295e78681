# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the whole machine, which no single NIC owns: they are written, undone and found to
have been changed by others as those of a NIC (`setting`)."""

from __future__ import annotations

from atfnd.kernel.interrupts.softirq_budget import read_budget, write_budget

__all__ = ["HOST", "HostSettings"]

HOST = "/host"  # no interface can have this name


class HostSettings:
    """The budget of the receive softirq (`model.softirq_budget.BUDGET_SETTINGS`)."""

    name = HOST

    def setting(self, name: str) -> str | None:
        """As the kernel has it now; None: it does not show it in our network namespace."""
        return read_budget(name)

    def write_setting(self, name: str, value: str) -> None:
        """KeyError: it is not there. OSError: the kernel refuses."""
        write_budget(name, value)
