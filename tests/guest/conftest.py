# SPDX-License-Identifier: GPL-2.0-or-later
"""The tests of this folder are for the guest: on the host, tests/test_guest.py starts one for some
files."""

from __future__ import annotations

import os

from tests import zygote

__all__ = ["collect_ignore_glob"]

if "ATFND_GUEST" in os.environ:
    zygote.start()  # it imports on another CPU while we do

collect_ignore_glob = [] if "ATFND_GUEST" in os.environ else ["test_*.py"]
