# SPDX-License-Identifier: GPL-2.0-or-later
"""systemd .link files that set what we steer with: systemd.link(5), systemd-udevd(8). Reads only.

Of files with the same name, the one in the first folder counts; an empty one (or a link to
/dev/null) masks it. An interface takes the first file, by name, whose [Match] fits it: udevd notes
which (/run/udev/data/nIFINDEX, E:ID_NET_LINK_FILE). Where it noted nothing, the matches on driver,
name and address are tried here; a file with any other match then counts as not fitting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from atfnd.model import LinkFile

__all__ = ["Candidate", "link_files"]

FOLDERS = ("etc", "run", "usr/local/lib", "usr/lib")  # each with systemd/network in it
_LISTS = "IRQAffinity", "ReceivePacketSteeringCPUMask"  # several lines add up
_CHANNELS = "CombinedChannels", "RxChannels"
STEERS = (*_LISTS, "IRQAffinityPolicy", "NTupleFilter", *_CHANNELS)

_Sections = dict[str, list[tuple[str, str]]]


class Candidate(NamedTuple):
    """An interface, as far as a [Match] section may ask for it."""

    name: str
    ifindex: int
    driver: str | None
    address: str | None


def link_files(candidates: Iterable[Candidate], root: Path = Path("/")) -> tuple[LinkFile, ...]:
    """Files with such settings and the interfaces they are for, by name; without settings that turn
    filters on or RPS off, and files that fit no interface."""
    files = _in_force(root)
    owners: dict[Path, set[str]] = {}
    for candidate in candidates:
        path = _noted(candidate, root)
        if path is None:
            path = next((p for p, file in files.items() if _fits(file, candidate)), None)
        if path is not None:
            owners.setdefault(path, set()).add(candidate.name)
    found = []
    for path, names in owners.items():
        settings = tuple(_steering(files.get(path, {}).get("Link", ())))
        if settings:
            found.append(LinkFile(f"/{path.relative_to(root)}", settings, frozenset(names)))
    return tuple(sorted(found))


def _steering(link: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What is in force: the last line, or all that a list has; an empty one ends those before."""
    values: dict[str, list[str]] = {}
    for key, value in link:
        if key in STEERS:
            before = values.get(key, []) if key in _LISTS else []
            values[key] = [*before, value] if value else []
    for key, lines in values.items():
        if lines and not _harmless(key, lines[-1].lower()):
            yield f"{key}={' '.join(lines)}"


def _harmless(key: str, value: str) -> bool:
    """It is what atfnd would have, or systemd ignores it: no number of channels is 0."""
    if key == "NTupleFilter":
        return value in ("yes", "y", "true", "t", "on", "1")
    if key in _CHANNELS:
        return value != "max" and not value.strip("0")
    return key == "ReceivePacketSteeringCPUMask" and value == "disable"


def _in_force(root: Path) -> dict[Path, _Sections]:
    """Every .link file that is not masked, in the order they are tried, with its drop-ins."""
    folders = [root / folder / "systemd/network" for folder in FOLDERS]
    paths: dict[str, Path] = {}
    for folder in folders:
        for path in folder.glob("*.link"):
            paths.setdefault(path.name, path)
    files = {}
    for name, path in sorted(paths.items()):
        sections = _read(path)
        if sections:
            files[path] = _with_drop_ins(sections, name, folders)
    return files


def _with_drop_ins(sections: _Sections, name: str, folders: list[Path]) -> _Sections:
    """`NAME.link.d/*.conf`, by name; of those with one name, the one in the first folder."""
    extra: dict[str, Path] = {}
    for folder in folders:
        for path in folder.glob(f"{name}.d/*.conf"):
            extra.setdefault(path.name, path)
    for _, path in sorted(extra.items()):
        for section, entries in _read(path).items():
            sections.setdefault(section, []).extend(entries)
    return sections


def _read(path: Path) -> _Sections:
    """The syntax of systemd.syntax(7), but for its line continuation."""
    sections: _Sections = {}
    current: list[tuple[str, str]] = []
    text = ""
    with suppress(FileNotFoundError):  # a dangling symbolic link
        text = path.read_text(errors="replace")
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1], [])
        elif line and line[0] not in "#;":
            key, _, value = line.partition("=")
            current.append((key.strip(), value.strip()))
    return sections


def _noted(candidate: Candidate, root: Path) -> Path | None:
    with suppress(FileNotFoundError):
        for line in (root / f"run/udev/data/n{candidate.ifindex}").read_text().splitlines():
            if line.startswith("E:ID_NET_LINK_FILE="):
                return root / line.partition("=")[2].lstrip("/")
    return None


def _fits(file: _Sections, candidate: Candidate) -> bool:
    """Every key of [Match] must fit; a file without one fits no interface. Several lines of a key
    add up, and an empty one ends those before."""
    asked: dict[str, list[str]] = {}
    for key, line in file.get("Match", ()):
        asked[key] = [*asked.get(key, []), *_patterns(line)] if line else []
    asked = {key: patterns for key, patterns in asked.items() if patterns}
    known = {
        "OriginalName": candidate.name,
        "Driver": candidate.driver,
        "MACAddress": candidate.address,
        "PermanentMACAddress": candidate.address,
    }
    return bool(asked) and all(
        (value := known.get(key)) is not None and _one_of(value, wanted)
        for key, wanted in asked.items()
    )


def _patterns(line: str) -> list[str]:
    """Shell patterns between blanks; a leading `!` is for all of the line."""
    sign = "!" if line.startswith("!") else ""
    return [f"{sign}{word}" for word in line.removeprefix("!").lower().split()]


def _one_of(value: str, patterns: Iterable[str]) -> bool:
    """None of those with `!`; and one of the others, if there are any (net_condition_test_strv(),
    src/libsystemd-network)."""
    fits = {each: fnmatchcase(value.lower(), each.removeprefix("!")) for each in patterns}
    wanted = [fit for each, fit in fits.items() if not each.startswith("!")]
    return not any(fit for each, fit in fits.items() if each.startswith("!")) and (
        not wanted or any(wanted)
    )
