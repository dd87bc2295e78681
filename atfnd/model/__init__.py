# SPDX-License-Identifier: GPL-2.0-or-later
"""Every value that crosses rooms: what each file here offers. No I/O, imports nothing of ours.

Addresses are packed bytes (4 or 16), ports are host-order integers, CPUs and queues are integers.
`None` means "the kernel did not say". Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

from atfnd.model.ban import *
from atfnd.model.birth import *
from atfnd.model.change import *
from atfnd.model.cpu_time import *
from atfnd.model.finding import *
from atfnd.model.flow import *
from atfnd.model.gain import *
from atfnd.model.measured import *
from atfnd.model.nic import *
from atfnd.model.pairs import *
from atfnd.model.placement import *
from atfnd.model.policy import *
from atfnd.model.reads import *
from atfnd.model.reception import *
from atfnd.model.softirq_budget import *
from atfnd.model.status import *
from atfnd.model.topology import *
