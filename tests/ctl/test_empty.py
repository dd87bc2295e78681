# SPDX-License-Identifier: GPL-2.0-or-later
"""A table without rows says why: on a terminal in its place, in a pipe on the standard error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from atfnd.model import NicReads, ReadBytes
from tests.serve.asking import ATFNCTL, atfnctl, environment, forked, lines
from tests.serve.published import Published, Serving, serving

FLOWS = (
    "no misdelivered flow in the table; 2 interfaces watched; "
    "99.50% of bytes processed on the CPU that read them, last 10 s; "
    "small or young flows, and those that the policy leaves alone, have no row; "
    "atfnctl flows --all has the others"
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    """Without flows, filters and events."""
    source = Published()
    source.views = [replace(nic, filters=(), owned=frozenset()) for nic in source.views]
    source.log = []
    with serving(tmp_path / "atfnd.sock", source) as running:
        yield running


def on_a_terminal(daemon: Serving, *words: str) -> str:
    done = forked([ATFNCTL, *words], environment(daemon) | {"COLUMNS": "300"})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SENTENCES = [
    ("flows", FLOWS),
    ("flows --state wanted --comm ngi*",
     "no flow has state wanted, comm ngi*; 0 flows in the table"),
    ("filters --nic eth1",
     "no filter in eth1 (room for 4096, not armed, steering method filters)"),
    ("policy bulk --flows", "no flow matches bulk"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), SENTENCES)
def test_the_reason(daemon: Serving, words: str, sentence: str) -> None:
    assert on_a_terminal(daemon, *words.split()) == f"{sentence}\n"
    piped = atfnctl(daemon, *words.split())
    assert (piped.returncode, piped.stderr) == (0, f"{sentence}\n")
    assert len(piped.stdout.splitlines()) == 1  # the header, for scripts
    if "policy" not in words:
        assert lines(daemon, *words.split(), "--json") == ["[]"]


def test_what_is_not_known_is_left_out(daemon: Serving) -> None:
    """No figure, where nothing was read and where the observer does not see reads."""
    source = daemon.source
    status = source.status
    none_yet = NicReads("lab:lab", ReadBytes(0, 0), ReadBytes(0, 0), ReadBytes(0, 0), 10**10)
    for reads, reason in (
        ((none_yet,), "no data read yet"),
        (None, "not measured: the bpf observer does not see where packets go"),
    ):
        answer = partial(replace, status(), reads=reads)
        daemon.do(partial(setattr, source, "status", answer))
        expected = f"no misdelivered flow in the table; 2 interfaces watched; {reason}; "
        expected += "atfnctl flows --all has the others\n"
        assert on_a_terminal(daemon, "flows") == expected


def test_no_interface(daemon: Serving) -> None:
    daemon.do(daemon.source.views.clear)
    for verb in ("flows", "queues", "nics", "filters"):
        sentence = "no interface is watched: `atfnctl doctor NIC` says why\n"
        assert on_a_terminal(daemon, verb) == sentence
