# SPDX-License-Identifier: GPL-2.0-or-later
"""The tests of this folder are for the guest: on the host, tests/test_guest.py starts one for each
file."""

from __future__ import annotations

import os

__all__ = ["collect_ignore_glob"]

collect_ignore_glob = [] if "ATFND_GUEST" in os.environ else ["test_*.py"]
