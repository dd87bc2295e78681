# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds a module for a guest's kernel: tests/guest/simnic/, the test driver, becomes simnic.ko in
build/guest/RELEASE. Documentation/kbuild/modules.rst.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from atfnd.errors import OperatorError
from tests.guest.fetch import Parts

__all__ = ["build"]

# Its compiler may be older than the kernel's, and it has no pahole, so no BTF of the module.
FOR_THIS_MACHINE = (
    *("CC=gcc", "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=", "CONFIG_DEBUG_INFO_BTF_MODULES="),
)
SOURCE = Path(__file__).parent / "simnic"


def build(parts: Parts, target: Path, source: Path = SOURCE) -> None:
    """Bring the module up to date with its sources, when there are any. It has the name of their
    folder, and goes to `target`/RELEASE.

    OperatorError: it does not compile.
    """
    sources = [path for path in sorted(source.glob("*")) if _is_source(path)]
    if not sources:
        return
    state = hashlib.sha256()
    for path in sources:
        state.update(path.name.encode() + path.read_bytes())
    module = target / parts.release / f"{source.name}.ko"
    folder = module.parent / source.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "state").open("a+") as built:
        fcntl.flock(built, fcntl.LOCK_EX)
        built.seek(0)
        if built.read() == state.hexdigest() and module.exists():
            return
        _make(parts, folder, sources)
        (folder / module.name).replace(module)
        built.truncate(0)
        built.write(state.hexdigest())


def _is_source(path: Path) -> bool:
    return path.suffix in (".c", ".h") or path.name in ("Makefile", "Kbuild")


def _make(parts: Parts, folder: Path, sources: list[Path]) -> None:
    for old in folder.glob("*.[choa]"):  # sources that are gone
        old.unlink()
    for path in sources:
        shutil.copy(path, folder)
    argv = ["make", "-s", "-C", str(parts.headers), f"M={folder}", *FOR_THIS_MACHINE]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run([*argv, "modules"], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise OperatorError(f"{folder.name} does not compile:\n{done.stdout}{done.stderr}")
