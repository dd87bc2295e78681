# SPDX-License-Identifier: GPL-2.0-or-later
"""`make run`: on a lab NIC with a server that needs no download, and what it says of figures."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from bench import demo, servers
from bench.demo import Pace
from bench.demo_report import Found, enough, medians, sentence, table
from bench.verdicts import Run

RUN = Run(0, "", "rss", 4000.0, 90e3, 1200e3, 20e3, 0.0, 0.5, 0.5, 0.0)
SAME = (1.0, 0.98, 1.02, 1.0, 1.01, 0.99, 1.0, 1.0)
MORE, LESS = (1.2,) * 7 + (1.1,), (0.8,) * 7 + (0.9,)
NO_DIFFERENCE = "No difference here: neither CPU nor p99 of a request changes beyond the noise."


@pytest.fixture
def nothing_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No server is unpacked; the folder where they would be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "atfnd/applications"


def found(
    cpu: Sequence[float] = SAME,
    p99: Sequence[float] = SAME,
    unpinned_cpu: Sequence[float] = SAME,
    others: Sequence[float] = (0.0,) * 8,
) -> Found:
    """RSS, RFS, which takes as much, and atfnd with these ratios to them, a round each."""

    def by_name(cpu: Sequence[float]) -> dict[str, list[Run]]:
        ours = [
            RUN._replace(turn=turn, cpu_ns=RUN.cpu_ns * a, p99_ns=1200e3 * b, others=loud)
            for turn, (a, b, loud) in enumerate(zip(cpu, p99, others, strict=False))
        ]
        theirs = [RUN._replace(turn=run.turn) for run in ours]
        return {"rss": theirs, "rfs": theirs, "atfnd": ours}

    return {"pinned": by_name(cpu), "unpinned": by_name(unpinned_cpu)}


def test_it_runs_where_nothing_can_be_downloaded(
    nothing_downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RESULT", tmp_path / "run.json")
    monkeypatch.setattr(servers, "INSTALLED", nothing_downloaded)
    said = io.StringIO()
    demo.run(Console(file=said, width=80), Pace(400.0, 1, 3.0, 1.0))
    result = json.loads((tmp_path / "run.json").read_text())
    assert result["server"] == "rr"
    assert result["locality_atfnd"] > result["locality_rss"]
    for name in ("rss", "rfs", "atfnd"):
        for kind in ("", "_unpinned"):
            assert 0 <= result[f"locality_{name}{kind}"] <= 1
            assert result[f"cpu_us_per_request_{name}{kind}"] is None  # one round says nothing
    assert result["handoffs_per_1000_requests_rfs"] > 0
    assert 0 < result["steered"] <= result["flows"]
    assert "atfnctl flows, the server pinned:" in said.getvalue()
    last = said.getvalue().splitlines()[-1]
    assert last == result["says"]
    assert last.startswith("Too few rounds: ")
    assert not nothing_downloaded.exists()


def test_a_server_that_is_there_is_taken(
    nothing_downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    monkeypatch.setattr(servers, "INSTALLED", installed)
    for tree, program, name in (
        (installed, "usr/bin/redis-server", "redis"),
        (installed, "usr/sbin/nginx", "nginx"),
        (nothing_downloaded, "usr/sbin/nginx", "nginx"),
    ):
        (tree / program).parent.mkdir(parents=True)
        (tree / program).touch()
        assert servers.at_hand() == (name, tree)


WORSE = "Here atfnd is worse in CPU/request (pinned, 1.2 [1.1, 1.2] × RSS)"
ONCE = (1.0, *MORE[1:])  # not in each round


@pytest.mark.parametrize(
    ("those", "said"),
    [
        (found(), NO_DIFFERENCE),
        (found(ONCE), NO_DIFFERENCE),
        (found(ONCE, others=(0.6, *[0.4] * 7)), WORSE),  # that round was loud
        (found(MORE[:6], MORE, MORE[:6]), "Here atfnd is worse in"),
        (found(MORE[:5], MORE, MORE[:5]), "Too few rounds: 5 of 6 quiet rounds. Nothing can be"),
        (found(MORE, LESS, others=[0.6] * 8), "Too noisy: 0 of 6 quiet rounds. Nothing can be"),
        (found(p99=MORE), "Here atfnd is worse in p99 (pinned, 1.2 [1.1, 1.2] × RSS)"),
    ],
)
def test_the_sentence_says_what_the_quiet_rounds_allow(those: Found, said: str) -> None:
    assert sentence(those).startswith(said)


def test_without_quiet_rounds_there_are_no_figures_of_cpu() -> None:
    loud = found(MORE, LESS, others=[0.6] * 8)
    assert shown(loud)[2] == "pinned atfnd 50.0% – – 500"
    assert medians(loud)["p99_us_atfnd"] is None
    assert not enough(loud)
    rows = shown(found(cpu=(10.06,) * 8, p99=(5.03,) * 8))
    assert rows[2] == "pinned atfnd 50.0% 201 [201, 201] 6036 [6036, 6036] 500"


def shown(those: Found) -> list[str]:
    """The rows of the table."""
    said = io.StringIO()
    Console(file=said, width=80).print(table(those))
    lines = [line.split() for line in said.getvalue().splitlines() if line.strip()]
    return [" ".join(line) for line in lines if line[0] in ("pinned", "unpinned")]
