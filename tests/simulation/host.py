# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the whole machine: the budget of a softirq, as /proc/sys/net/core has it.

As in nic.py, beside each value stands what it would be without atfnd.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable

from atfnd.model.softirq_budget import PACKETS, TIME
from tests.simulation.world import World

__all__ = ["Host"]

LEAST_US = 8_000  # two ticks of the kernel's timer


class Host:
    """`is_ours` says by the journal whether a value may be atfnd's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.values = {PACKETS: "300", TIME: str(LEAST_US)}
        self.untouched = dict(self.values)
        self.refusals: deque[int] = deque()  # errnos of writes to come
        self.lies: deque[int] = deque()  # of writes to come that are done, and refused
        self.changed: dict[str, str] = {}  # ours that another program wrote over
        self.is_ours: Callable[[str, str], bool] = lambda name, value: True

    # ---- `kernel.interrupts.softirq_budget`

    def read(self, name: str) -> str | None:
        return self.values.get(name)

    def write(self, name: str, value: str) -> None:
        world = self._world
        world.operation(f"set {name}")
        if name in self.changed:
            world.broken("foreign setting", f"{name} is {self.changed[name]} by another program, "
                         f"and atfnd sets it to {value}")  # fmt: skip
        if self.refusals or (name == TIME and int(value) < LEAST_US):
            code = self.refusals.popleft() if self.refusals else errno.EINVAL
            world.note(f"host refused {errno.errorcode[code]}", f"{name} is refused")
            raise OSError(code, os.strerror(code))
        self.values[name] = value
        world.note(f"set {name}", f"atfnd sets {name} to {value}")
        world.operation(f"{name} is set")
        if self.lies:
            code = self.lies.popleft()
            world.note(f"host done, and refused {errno.errorcode[code]}", f"{name} is refused")
            raise OSError(code, os.strerror(code))

    # ---- what happens to it

    def admin_sets(self, name: str, value: str) -> None:
        """Another program writes it, and it is not ours from now on."""
        self.values[name] = self.untouched[name] = value
        self.changed.pop(name, None)
        if not self.is_ours(name, value):
            self.changed[name] = value

    def not_as_found(self) -> str | None:
        """What is not as it would be without atfnd. None: nothing."""
        return next(
            (
                f"{name} is {value}, and was {self.untouched[name]}"
                for name, value in self.values.items()
                if value != self.untouched[name]
            ),
            None,
        )
