# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the kernel shows the budget of the receive softirq."""

from __future__ import annotations

import subprocess
import sys

from atfnd.kernel.interrupts.softirq_budget import read_budget
from atfnd.model import BUDGET_SETTINGS

READ = """
from atfnd.kernel.interrupts.softirq_budget import read_budget
from atfnd.model import BUDGET_SETTINGS
print([read_budget(name) for name in BUDGET_SETTINGS])
"""


def test_the_first_network_namespace_has_it_and_no_other() -> None:
    assert all(int(read_budget(name) or 0) > 0 for name in BUDGET_SETTINGS)
    elsewhere = ["unshare", "--net", sys.executable, "-c", READ]
    done = subprocess.run(elsewhere, capture_output=True, text=True, check=True)
    assert done.stdout == "[None, None]\n"
