# SPDX-License-Identifier: GPL-2.0-or-later
"""A release: writes its version wherever one stands, commits that, and tags it: `make release`.

    python -m docs.release 1.0.0rc1

Python, Debian, RPM and git each have their spelling of a release candidate (`Release`). Before
anything is written, the tree has to be clean, and CHANGELOG.md has to begin with the entry of this
version, which says `unreleased`; it gets today's date. Nothing is pushed. Needs the standard
library and git.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from email.utils import format_datetime
from math import inf
from pathlib import Path
from typing import NamedTuple

__all__ = ["Refusal", "Release", "release"]

ROOT = Path(__file__).parents[1]
PACKAGE, SPEC = "atfnd/__init__.py", "packaging/atfnd.spec"
IN_PACKAGE = '^__version__ = "(.*)"$'
NEWS = "CHANGELOG.md says what is new."


class Refusal(Exception):
    """Why there is no release; nothing was changed."""


class Release(NamedTuple):
    """A version, and how each of those that read it spells it."""

    number: str  # 1.0.0
    candidate: int | None  # None: it is no candidate

    @classmethod
    def of(cls, text: str) -> Release:
        """Of any of the spellings but Debian's, which has a revision. Refusal: it is none."""
        found = re.fullmatch(r"v?(\d+\.\d+\.\d+)(?:[-~]?rc([1-9]\d*))?", text)
        if found is None:
            raise Refusal(f"no version: {text!r}; for example: make release VERSION=1.0.0rc1")
        return cls(found[1], int(found[2]) if found[2] else None)

    @property
    def python(self) -> str:
        """PEP 440: 1.0.0rc1."""
        return self._spelled("rc")

    @property
    def rpm(self) -> str:
        """1.0.0~rc1, which sorts before 1.0.0."""
        return self._spelled("~rc")

    @property
    def debian(self) -> str:
        """1.0.0~rc1-1, deb-version(7)."""
        return f"{self.rpm}-1"

    @property
    def semantic(self) -> str:
        """1.0.0-rc1, in CHANGELOG.md; with a `v` before it, the tag."""
        return self._spelled("-rc")

    def is_newer(self, other: Release) -> bool:
        return self._order() > other._order()

    def _spelled(self, candidate: str) -> str:
        return self.number + ("" if self.candidate is None else f"{candidate}{self.candidate}")

    def _order(self) -> tuple[list[int], float]:
        return [int(part) for part in self.number.split(".")], self.candidate or inf


def release(text: str, now: datetime) -> str:
    """Commit and tag the version. Returns the tag. Refusal: something is not as it has to be."""
    version = Release.of(text)
    tag = f"v{version.semantic}"
    if dirty := _git("status", "--porcelain"):
        raise Refusal(f"the tree is not clean:\n{dirty}")
    if _git("tag", "--list", tag):
        raise Refusal(f"there is a tag {tag}")
    _git("var", "GIT_COMMITTER_IDENT")  # refused where git does not know the user
    files = _written(version, now)
    for name, after in files.items():
        (ROOT / name).write_text(after, encoding="utf-8")
    try:
        _git("commit", "-q", "-m", f"Release {version.semantic}", "--", *files)
    except Refusal:
        _git("checkout", "-q", "HEAD", "--", *files)
        raise
    _git("tag", "-a", tag, "-m", f"atfnd {version.semantic}")
    return tag


def _written(version: Release, now: datetime) -> dict[str, str]:
    """What each file that has a version says from now on."""
    [present] = re.findall(IN_PACKAGE, _read(PACKAGE), re.MULTILINE)
    if Release.of(present).is_newer(version):
        raise Refusal(f"{version.semantic} is older than {present}")
    head = f"## {version.semantic} - unreleased"
    if re.findall("^## .*$", _read("CHANGELOG.md"), re.MULTILINE)[:1] != [head]:
        raise Refusal(f"the first entry of CHANGELOG.md is not `{head}`")
    spec = _changed(_read(SPEC), r"^Version: +(\S+)$", version.rpm)
    spec = _changed(spec, r"(?<=atfnd-)([\w.~]+?)(?=/|\.tar\.gz)", version.rpm, times=2)
    [maintainer] = re.findall("^Maintainer: (.*)$", _read("debian/control"), re.MULTILINE)
    if maintainer.endswith(".example>"):
        raise Refusal(f"{maintainer} receives no mail: name somebody in debian/control")
    dated = f"## {version.semantic} - {now:%Y-%m-%d}"
    rpm_entry = f"* {now:%a %b %d %Y} {maintainer} - {version.rpm}-1\n- {NEWS}\n\n"
    debian = _without(
        _read("debian/changelog"), rf"atfnd \({re.escape(version.debian)}\)", "atfnd "
    )
    spec = _without(spec, rf"\* .* - {re.escape(version.rpm)}-1$", r"\* ")
    debian_entry = (
        f"atfnd ({version.debian}) bookworm; urgency=medium\n\n  * {NEWS}\n\n"
        f" -- {maintainer}  {format_datetime(now)}\n\n"
    )
    return {
        "CHANGELOG.md": _changed(_read("CHANGELOG.md"), f"^({head})$", dated),
        PACKAGE: _changed(_read(PACKAGE), IN_PACKAGE, version.python),
        "debian/changelog": debian_entry + debian,
        SPEC: _changed(spec, r"^%changelog\n()", rpm_entry),
        "pyproject.toml": _changed(_read("pyproject.toml"), '^version = "(.*)"$', version.python),
    }


def _changed(text: str, pattern: str, to: str, times: int = 1) -> str:
    """The text with another first group of the pattern."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if len(found) != times:
        raise Refusal(f"{len(found)} places instead of {times} match {pattern}")
    for each in reversed(found):
        text = text[: each.start(1)] + to + text[each.end(1) :]
    return text


def _without(text: str, head: str, next_head: str) -> str:
    """The text without the entry of this head: the version that is prepared has one already."""
    return re.sub(rf"^{head}[^\0]*?(?=^{next_head}|\Z)", "", text, flags=re.MULTILINE)


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Refusal(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.rstrip()


if __name__ == "__main__":
    try:
        tag = release(sys.argv[1], datetime.now(UTC))
        print(f"tagged {tag}; to publish it: git push --follow-tags")
    except Refusal as refusal:
        print(f"no release: {refusal}", file=sys.stderr)
        sys.exit(2)
