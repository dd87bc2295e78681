# SPDX-License-Identifier: GPL-2.0-or-later
"""`--version` of both programs: which one is installed."""

from __future__ import annotations

import pytest

from atfnd import __version__
from tests.daemons import ATFND
from tests.serve.asking import ATFNCTL, forked

__all__: list[str] = []


@pytest.mark.parametrize(("program", "name"), [(ATFND, "atfnd"), (ATFNCTL, "atfnctl")])
def test_version(program: str, name: str) -> None:
    done = forked([program, "--version"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} {__version__}\n", "")
