# SPDX-License-Identifier: GPL-2.0-or-later
"""`NIC=... make test-nic`, on the NICs of the guest as on any other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.guest.simlab import ports, sh
from tests.guest.wired import simnic, wired
from tests.zygote import Forked

__all__: list[str] = []

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
