# SPDX-License-Identifier: GPL-2.0-or-later
"""Nothing is decided by a clock that can be set (tests/guest/test_life.py sets it)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = {  # when a daemon began and when something happened, for people
    ("atfnd/ctl/verbs.py", "time"),  # what `events --since` means
    ("atfnd/daemon/reporter.py", "time"),
    ("atfnd/serve/log/event_log.py", "time"),
}
SET = {"time", "time_ns", "localtime", "gmtime", "now", "utcnow", "today", "CLOCK_REALTIME"}
OF = {"time", "datetime", "date"}


def settable(source: str) -> Iterator[str]:
    """Names of clocks that can be set, as `time.time`, and what was imported from `time`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in SET:
            if isinstance(node.value, ast.Name) and node.value.id in OF:
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (each.name for each in node.names)


def test_python_only_shows_it() -> None:
    found = {
        (str(file.relative_to(ROOT)), name)
        for file in (ROOT / "atfnd").rglob("*.py")
        for name in settable(file.read_text())
    }
    assert found == SHOWN


def test_c_never_reads_it() -> None:
    text = "".join(file.read_text() for file in (ROOT / "atfnd/bpf").rglob("*.[ch]"))
    assert "bpf_ktime_get_ns" in text
    assert not re.search(r"CLOCK_REALTIME|gettimeofday|bpf_ktime_get_(boot|tai|coarse)", text)
