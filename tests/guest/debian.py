# SPDX-License-Identifier: GPL-2.0-or-later
"""The Debian package as `make deb` builds it, and a newer one with the same files to upgrade to."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["NEWER", "PACKAGE", "build"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/deb"
PACKAGE = FOLDER / "tested/atfnd.deb"
NEWER = FOLDER / "tested/newer.deb"


def build() -> Path:
    """Build it, and pack it twice without compression, which an emulated machine takes long to
    undo. The package as it was built."""
    made = subprocess.run(["make", "deb"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    (package,) = FOLDER.glob("atfnd_*.deb")
    tree = FOLDER / "tested/tree"
    tree.parent.mkdir()
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    _pack(tree, PACKAGE)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1+newer", control.read_text()))
    _pack(tree, NEWER)
    shutil.rmtree(tree)
    return package


def _pack(tree: Path, package: Path) -> None:
    subprocess.run(["dpkg-deb", "-Znone", "-b", tree, package], check=True, capture_output=True)
