# SPDX-License-Identifier: GPL-2.0-or-later
"""The programs of the counted guest, built for it: `build/guest/counted/` and, for its kernel,
`build/guest/RELEASE/spinidle.ko`; and QEMU's arguments that load the plugin.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from atfnd.errors import OperatorError
from tests.guest import simnic_module
from tests.guest.fetch import Parts

__all__ = ["arguments", "build"]

HERE = Path(__file__).parent
CC = ("gcc", "-O2", "-Wall", "-Wextra", "-Werror")
PLUGIN = (*CC, "-fPIC", "-shared", "-fvisibility=hidden")


def build(parts: Parts, target: Path) -> None:
    """OperatorError: something does not compile."""
    simnic_module.build(parts, target, HERE / "spinidle")
    folder = target / "counted"
    folder.mkdir(parents=True, exist_ok=True)
    _compile(folder / "counts.so", *PLUGIN, HERE / "plugin.c", HERE / "cache.c")
    _compile(folder / "load", *CC, "-pthread", HERE / "load.c", "-lm")


def arguments(target: Path, folder: Path, cluster: int) -> list[str]:
    """For qemu-system-x86_64. The guest finds `folder` at /run/guest: it writes `go` there, and
    reads `counts`. `cluster`: CPUs that share an LLC."""
    plugin = target / "counted/counts.so"
    options = f"out={folder}/counts,go={folder}/go,cluster={cluster}"
    return ["-icount", "shift=0", "-plugin", f"{plugin},{options}"]


def _compile(program: Path, *words: str | Path) -> None:
    """In place at once: other guests may be starting."""
    made = program.with_suffix(".new")
    done = subprocess.run([*map(str, words), "-o", str(made)], capture_output=True, text=True)
    if done.returncode:
        raise OperatorError(f"{program.name} does not compile:\n{done.stderr}")
    made.replace(program)
