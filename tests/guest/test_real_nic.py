# SPDX-License-Identifier: GPL-2.0-or-later
"""`NIC=... make test-nic`, on the NICs of the guest as on any other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.guest.simlab import ports, sh
from tests.guest.wired import simnic, wired

__all__: list[str] = []

GUEST = ["--nic", "igb:2", "--nic", "virtio:2"]


def proven(name: str) -> str:
    """What pytest says of tests/nic on this NIC."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/nic"]
    environment = {**os.environ, "NIC": name}
    environment.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD", None)  # ours; make does not set it
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_nic_with_filters() -> None:
    with simnic(queues=4, table=64) as (port, _):
        filters = sh("ethtool", "-n", port.name)
        assert "passed" in proven(port.name)
        assert sh("ethtool", "-n", port.name) == filters


@pytest.mark.parametrize("driver", ["igb", "virtio_net"])
def test_a_nic_without(driver: str) -> None:
    with wired(*ports(driver)[:2]) as port:
        table = sh("ethtool", "-x", port.name)
        assert "passed" in proven(port.name)
        assert sh("ethtool", "-x", port.name) == table
