# SPDX-License-Identifier: GPL-2.0-or-later
"""`NIC=... make test-nic`, on the NICs of the guest as on any other."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.guest.simlab import NAME, a_lab_between, a_simlab, ports, sh
from tests.zygote import Forked

PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_timeout")  # the others take long to load here


def proven(name: str) -> str:
    """What pytest says of tests/hardware on this NIC."""
    command = [sys.executable, "-m", "pytest", "-q", *PLUGINS, "tests/hardware"]
    environment = {**os.environ, "NIC": name}
    with Forked(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        said, _ = running.communicate()
    assert running.returncode == 0, said
    return str(said)


def test_a_nic_with_filters() -> None:
    with a_simlab(queues=4, table=64):
        filters = sh("ethtool", "-n", NAME)
        assert "passed" in proven(NAME)
        assert sh("ethtool", "-n", NAME) == filters


def test_a_nic_without() -> None:
    near, far = ports("igb")[:2]
    with a_lab_between(near, far):
        table = sh("ethtool", "-x", near)
        assert "passed" in proven(near)
        assert sh("ethtool", "-x", near) == table
