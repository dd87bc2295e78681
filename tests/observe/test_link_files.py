# SPDX-License-Identifier: GPL-2.0-or-later
"""What sets again what we steer with: systemd's .link files and NetworkManager's profiles, as real
files in a temporary root."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.model import LinkFile
from atfnd.observe.nics.link_files import Candidate, link_files
from atfnd.observe.nics.nm_profiles import nm_profiles

ETH0 = Candidate("eth0", 2, "ixgbe", "02:00:00:00:00:01")
ETH1 = Candidate("eth1", 3, "igb", "02:00:00:00:00:02")
SPREAD = "[Link]\nIRQAffinityPolicy=spread\n"


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def reported(root: Path) -> list[tuple[str, tuple[str, ...], set[str]]]:
    return [(f.path, f.settings, set(f.interfaces)) for f in link_files([ETH0, ETH1], root)]


ETC, USR = "etc/systemd/network", "usr/lib/systemd/network"


@pytest.mark.parametrize(
    ("match", "names"),
    [
        ("OriginalName=*", {"eth0", "eth1"}),
        ("OriginalName=eth1 wlan*", {"eth1"}),
        ("OriginalName=!eth1", {"eth0"}),
        ("OriginalName=eth0\nOriginalName=eth1", {"eth0", "eth1"}),
        ("OriginalName=eth*\nOriginalName=!eth1", {"eth0"}),
        ("OriginalName=eth0\nOriginalName=\nOriginalName=eth1", {"eth1"}),
        ("Driver=nothing\nDriver=\nOriginalName=eth0", {"eth0"}),
        ("Driver=ixgbe i40e", {"eth0"}),
        ("Driver=ixgbe\nOriginalName=eth1", set()),
        ("MACAddress=02:00:00:00:00:02", {"eth1"}),
        ("PermanentMACAddress=02:00:00:00:00:01", {"eth0"}),
        ("Property=ID_MODEL=9999\nOriginalName=*", set()),  # not known here
        ("", set()),
    ],
)
def test_which_interfaces_a_file_is_for(tmp_path: Path, match: str, names: set[str]) -> None:
    write(tmp_path, f"{ETC}/10-a.link", f"# a comment\n[Match]\n{match}\n\n{SPREAD}")
    path = "/etc/systemd/network/10-a.link"
    assert reported(tmp_path) == ([(path, ("IRQAffinityPolicy=spread",), names)] if names else [])


def test_what_udev_noted_counts(tmp_path: Path) -> None:
    write(tmp_path, f"{ETC}/10-a.link", f"[Match]\nOriginalName=nothing\n{SPREAD}")
    note = "I:4711\nE:ID_NET_NAME=x\nE:ID_NET_LINK_FILE=/etc/systemd/network/10-a.link\n"
    write(tmp_path, "run/udev/data/n3", note)
    assert link_files([ETH0, ETH1], tmp_path) == (
        LinkFile(
            "/etc/systemd/network/10-a.link", ("IRQAffinityPolicy=spread",), frozenset({"eth1"})
        ),
    )


def test_the_first_file_that_fits_is_the_only_one(tmp_path: Path) -> None:
    write(tmp_path, f"{ETC}/05-plain.link", "[Match]\nOriginalName=eth0\n[Link]\nMTUBytes=9000\n")
    write(tmp_path, f"{USR}/99-default.link", f"[Match]\nOriginalName=*\n{SPREAD}")
    assert reported(tmp_path) == [
        ("/usr/lib/systemd/network/99-default.link", ("IRQAffinityPolicy=spread",), {"eth1"})
    ]


def test_a_file_of_the_same_name_in_etc_wins_and_an_empty_one_masks(tmp_path: Path) -> None:
    write(tmp_path, f"{USR}/50-a.link", f"[Match]\nOriginalName=*\n{SPREAD}")
    write(tmp_path, f"{ETC}/50-a.link", "[Match]\nOriginalName=*\n[Link]\nIRQAffinity=0-3\n")
    assert [settings for _, settings, _ in reported(tmp_path)] == [("IRQAffinity=0-3",)]
    write(tmp_path, f"{ETC}/50-a.link", "")
    assert reported(tmp_path) == []
    (tmp_path / f"{ETC}/50-a.link").unlink()
    (tmp_path / f"{ETC}/50-a.link").symlink_to("/nowhere")
    assert reported(tmp_path) == []


def test_a_drop_in_adds_to_its_file(tmp_path: Path) -> None:
    write(tmp_path, f"{USR}/50-a.link", "[Match]\nOriginalName=eth0\n[Link]\nMTUBytes=9000\n")
    write(tmp_path, f"{USR}/50-a.link.d/x.conf", "[Link]\nReceivePacketSteeringCPUMask=0-3\n")
    write(tmp_path, f"{ETC}/50-a.link.d/y.conf", "[Link]\nNTupleFilter=no\nIRQAffinity=\n")
    settings = ("ReceivePacketSteeringCPUMask=0-3", "NTupleFilter=no")
    assert reported(tmp_path) == [("/usr/lib/systemd/network/50-a.link", settings, {"eth0"})]


@pytest.mark.parametrize(
    ("link", "settings"),
    [
        ("NTupleFilter=yes", ()),
        ("NTupleFilter=t", ()),
        ("NTupleFilter=n", ("NTupleFilter=n",)),
        ("NTupleFilter=no\nNTupleFilter=yes", ()),
        ("NTupleFilter=no\nNTupleFilter=", ()),
        ("CombinedChannels=4", ("CombinedChannels=4",)),
        ("CombinedChannels=4\nCombinedChannels=max", ("CombinedChannels=max",)),
        ("RxChannels=2", ("RxChannels=2",)),
        ("CombinedChannels=0", ()),
        ("ReceivePacketSteeringCPUMask=disable", ()),
        (
            "ReceivePacketSteeringCPUMask=0\nReceivePacketSteeringCPUMask=2-3",
            ("ReceivePacketSteeringCPUMask=0 2-3",),
        ),
        ("IRQAffinity=0-3\nIRQAffinity=\nIRQAffinity=4", ("IRQAffinity=4",)),
    ],
)
def test_what_is_in_force_and_works_against_us(
    tmp_path: Path, link: str, settings: tuple[str, ...]
) -> None:
    write(tmp_path, f"{ETC}/10-a.link", f"[Match]\nOriginalName=eth0\n[Link]\n{link}\n")
    assert [found for _, found, _ in reported(tmp_path)] == ([settings] if settings else [])


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


CONNECTION = "NetworkManager/system-connections/Wired.nmconnection"


def activate(root: Path, ifindex: int) -> None:
    uuid = "1f6b7a3a-0b5e-4d4f-9a55-f6b6a5a0e0c1"
    state = f"[device]\nmanaged=true\nconnection-uuid={uuid}\nnm-owned=0\n"
    write(root, f"run/NetworkManager/devices/{ifindex}", state)


@pytest.mark.parametrize("folder", ["etc", "run", "usr/lib"])
def test_an_active_profile_that_steers(tmp_path: Path, folder: str) -> None:
    write(tmp_path, f"{folder}/{CONNECTION}", PROFILE.format("false"))
    assert nm_profiles([ETH0, ETH1], tmp_path) == ()
    activate(tmp_path, 2)
    settings = ("feature-ntuple=false", "channels-rx=2")
    (found,) = nm_profiles([ETH0, ETH1], tmp_path)
    path = f"/{folder}/{CONNECTION}"
    assert found == LinkFile(path, settings, frozenset({"eth0"}), "NetworkManager")


@pytest.mark.parametrize("junk", ["", "no section\n", "[connection]\nuuid", "\x00[", "[a]\nb=%(c)"])
def test_what_is_no_profile_says_nothing(tmp_path: Path, junk: str) -> None:
    write(tmp_path, f"etc/{CONNECTION}", junk)
    activate(tmp_path, 2)
    (tmp_path / "run/NetworkManager/devices/3").write_bytes(b"\xff\xfe")
    assert nm_profiles([ETH0, ETH1], tmp_path) == ()
