# SPDX-License-Identifier: GPL-2.0-or-later
"""pytest with the extension modules that AddressSanitizer and UndefinedBehaviorSanitizer watch.

`make sanitize` builds them below build/sanitize and runs this with libasan preloaded. What they
find ends the process with a report.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import pytest

__all__ = ["main"]

BUILD = Path("build/sanitize")
MODULES = {
    "atfnd.bpf._bpf": BUILD / "bpf/_bpf.abi3.so",
    "bench.extension._bench": BUILD / "bench/_bench.abi3.so",
}
TESTS = (  # wherever below tests/
    "test_forwarded.py",
    "test_handshakes.py",
    "test_bpf_busy.py",
    "test_bpf_map.py",
    "test_hold.py",
    "test_inet_diag.py",
    "test_lab_table.py",
    "test_meter.py",
    "test_observer_bpf.py",
    "test_observer_left.py",
    "test_observer_reads.py",
    "test_policy_compile.py",
    "test_sockdiag.py",
    "test_transit.py",
)


def _load(name: str, path: Path) -> None:
    """Put the module where its package's other importers find it."""
    loader = ExtensionFileLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    package, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(package), attribute, module)


def main(arguments: list[str]) -> int:
    """pytest's exit status. RuntimeError when libasan is not preloaded."""
    if "libasan" not in Path("/proc/self/maps").read_text():
        raise RuntimeError("start it by `make sanitize`: libasan has to be preloaded")
    del os.environ["LD_PRELOAD"]  # other programs run as they are
    for name, path in MODULES.items():
        _load(name, path)
    files = [str(next(Path("tests").rglob(name))) for name in TESTS]
    # Reports go to the real stderr.
    return pytest.main(["--capture=sys", *(arguments or files)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
