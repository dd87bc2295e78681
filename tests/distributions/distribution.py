# SPDX-License-Identifier: GPL-2.0-or-later
"""The distributions that are tried: their archives and their Pythons."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEBIAN", "DISTRIBUTIONS", "KEYRINGS", "KEYRINGS_OF", "RELEASER", "Distribution"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """One release for amd64. `name` is a word of the command line, `title` is as in
    docs/support.md, `python` is what `/usr/bin/python3` is there."""

    name: str
    title: str
    python: str
    suite: str
    archive: str
    suites: tuple[str, ...]  # of `archive`, with the one that updates it
    components: str
    keyring: str  # a file of KEYRINGS

    def sources(self) -> tuple[str, ...]:
        """The lines of its sources.list."""
        return tuple(f"deb {self.archive} {suite} {self.components}" for suite in self.suites)


DEBIAN = "http://deb.debian.org/debian"
_UBUNTU = "http://archive.ubuntu.com/ubuntu"
# Packages with keyrings, and the release of Debian that has both.
KEYRINGS, KEYRINGS_OF = "debian-archive-keyring,ubuntu-archive-keyring", "trixie"

DISTRIBUTIONS = (
    Distribution(
        name="debian-12",
        title="Debian 12",
        python="3.11",
        suite="bookworm",
        archive=DEBIAN,
        suites=("bookworm", "bookworm-updates"),
        components="main",
        keyring="debian-archive-keyring.gpg",
    ),
    Distribution(
        name="debian-13",
        title="Debian 13",
        python="3.13",
        suite="trixie",
        archive=DEBIAN,
        suites=("trixie", "trixie-updates"),
        components="main",
        keyring="debian-archive-keyring.gpg",
    ),
    Distribution(
        name="ubuntu-24.04",
        title="Ubuntu 24.04",
        python="3.12",
        suite="noble",
        archive=_UBUNTU,
        suites=("noble", "noble-updates"),
        components="main universe",
        keyring="ubuntu-archive-keyring.gpg",
    ),
)

# Builds the wheel that all of them install: the oldest C library and the oldest Python.
RELEASER = DISTRIBUTIONS[0]
