# SPDX-License-Identifier: GPL-2.0-or-later
"""NetworkManager's profiles that set what we steer with: nm-settings-keyfile(5). Reads only.

NetworkManager notes in /run/NetworkManager/devices/IFINDEX which profile is active on an interface.
It applies the profile's `[ethtool]` whenever it activates the profile: at the start, and after a
carrier loss.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from atfnd.model import LinkFile
from atfnd.observe.nics.link_files import Candidate

__all__ = ["nm_profiles"]

FOLDERS = ("etc", "run", "usr/lib")  # each with NetworkManager/system-connections in it
STEERS = ("feature-ntuple", "feature-rxhash", "channels-", "ring-")  # beginnings


def nm_profiles(candidates: Iterable[Candidate], root: Path = Path("/")) -> tuple[LinkFile, ...]:
    """Active profiles with such settings, and their interfaces; without those that turn filters or
    hashing on."""
    profiles = {uuid: (path, settings) for path, uuid, settings in _profiles(root)}
    found: dict[Path, set[str]] = {}
    for candidate in candidates:
        active = profiles.get(_active(candidate.ifindex, root))
        if active is not None:
            found.setdefault(active[0], set()).add(candidate.name)
    settings_of = {path: settings for path, settings in profiles.values() if settings}
    return tuple(
        LinkFile(
            f"/{path.relative_to(root)}", settings_of[path], frozenset(names), "NetworkManager"
        )
        for path, names in sorted(found.items())
        if path in settings_of
    )


def _profiles(root: Path) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    for folder in FOLDERS:
        for path in sorted((root / folder / "NetworkManager/system-connections").glob("*")):
            keys = _read(path)
            if uuid := keys.get("connection", "uuid", fallback=""):
                pairs = keys.items("ethtool") if keys.has_section("ethtool") else []
                yield path, uuid, tuple(f"{k}={v}" for k, v in pairs if _steers(k, v))


def _steers(key: str, value: str) -> bool:
    turns_on = key.startswith("feature-") and value.lower() in ("true", "yes", "on", "1")
    return key.startswith(STEERS) and not turns_on


def _active(ifindex: int, root: Path) -> str:
    state = _read(root / f"run/NetworkManager/devices/{ifindex}")
    return state.get("device", "connection-uuid", fallback="")


def _read(path: Path) -> configparser.ConfigParser:
    """A file that is no key file counts as empty."""
    keys = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    with suppress(OSError, UnicodeDecodeError, configparser.Error):
        keys.read_string(path.read_text())
    return keys
