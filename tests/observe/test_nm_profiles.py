# SPDX-License-Identifier: GPL-2.0-or-later
"""NetworkManager's profiles, as it writes them, and the interfaces they are active on."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.model import LinkFile
from atfnd.observe.nics.link_files import Candidate
from atfnd.observe.nics.nm_profiles import nm_profiles

__all__: list[str] = []

ETH0, ETH1 = Candidate("eth0", 2, "ixgbe", None), Candidate("eth1", 3, "ixgbe", None)
PROFILE = """\
[connection]
id=Wired
uuid=1f6b7a3a-0b5e-4d4f-9a55-f6b6a5a0e0c1
type=ethernet

[ethtool]
feature-ntuple={}
channels-rx=2
coalesce-rx-usecs=8

[ipv4]
method=auto
"""


def profile(root: Path, text: str, folder: str = "etc") -> str:
    path = root / folder / "NetworkManager/system-connections/Wired.nmconnection"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"/{path.relative_to(root)}"


def activate(root: Path, ifindex: int) -> None:
    state = root / "run/NetworkManager/devices" / str(ifindex)
    state.parent.mkdir(parents=True, exist_ok=True)
    uuid = "1f6b7a3a-0b5e-4d4f-9a55-f6b6a5a0e0c1"
    state.write_text(f"[device]\nmanaged=true\nconnection-uuid={uuid}\nnm-owned=0\n")


@pytest.mark.parametrize("folder", ["etc", "run", "usr/lib"])
def test_an_active_profile_that_steers(tmp_path: Path, folder: str) -> None:
    path = profile(tmp_path, PROFILE.format("false"), folder)
    assert nm_profiles([ETH0, ETH1], tmp_path) == ()
    activate(tmp_path, 2)
    settings = ("feature-ntuple=false", "channels-rx=2")
    (found,) = nm_profiles([ETH0, ETH1], tmp_path)
    assert found == LinkFile(path, settings, frozenset({"eth0"}), "NetworkManager")


def test_what_helps_is_no_finding(tmp_path: Path) -> None:
    profile(tmp_path, PROFILE.format("true").replace("channels-rx=2\n", ""))
    activate(tmp_path, 2)
    assert nm_profiles([ETH0], tmp_path) == ()


@pytest.mark.parametrize("junk", ["", "no section\n", "[connection]\nuuid", "\x00[", "[a]\nb=%(c)"])
def test_what_is_no_profile_says_nothing(tmp_path: Path, junk: str) -> None:
    profile(tmp_path, junk)
    activate(tmp_path, 2)
    (tmp_path / "run/NetworkManager/devices/3").write_bytes(b"\xff\xfe")
    assert nm_profiles([ETH0, ETH1], tmp_path) == ()
