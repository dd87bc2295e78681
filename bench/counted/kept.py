# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m bench machine`: measures cells of the counted machine, and keeps them in the tree, in
`bench/machine.json`, each as soon as it is done, with the commit that it was measured at. What has
a cell of the commit that is checked out is not measured again, unless its contender is named."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atfnd.errors import OperatorError
from bench import guest
from bench.bed import succeed
from bench.counted.cells import CLIENTS, CONNECTIONS, CONTENDERS, LOADS, SERVED, STATIC, Wanted
from bench.counted.costs import LATENCIES, report
from bench.counted.counts import LATENCIES_NS
from bench.report import Report
from bench.servers import PACKAGES, PACKED, SERVERS
from tests.guest.fetch import programs
from tests.guest.machine import Machine

__all__ = ["CELLS", "CPUS", "OBSERVED", "Keeping", "cells", "count", "keep", "observed"]
__all__ += ["of_papers", "run", "wanted"]

CELLS = Path(__file__).parents[1] / "machine.json"
PAPERS, OBSERVED = CELLS.with_name("papers.json"), CELLS.with_name("observed.json")
CPUS = min(CLIENTS)  # if nothing else is asked for
KEY = ("server", "pinned", "load", "cpus", "connections", "contender")


def run(
    rounds: int,
    server: str = SERVED[0],
    loads: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    pinned: bool = True,
    cpus: int = CPUS,
) -> Report:
    """Of all contenders, or only these. OperatorError: nothing is left to be measured, or a load is
    a share of what was not measured."""
    commit = succeed("git", "rev-parse", "--short", "HEAD").strip()
    loads = loads or tuple(LOADS)[:1]
    asked = wanted(cells(), commit, server, loads, only, pinned=pinned, cpus=cpus)
    programs(PACKED, *PACKAGES)  # the guest has no network
    found = guest.run(
        "machine", rounds, [json.dumps(asked)], Keeping(commit),
        Machine(sockets=2, cores=cpus // 2, counted=True),
    )  # fmt: skip
    found.notes.append(f"its cells are in {CELLS.parent.name}/{CELLS.name}")
    return found


def of_papers(name: str, rounds: int) -> Report:
    """Of pairs.py or forwarding.py. Its cells are in the tree, too, in `bench/papers.json`."""
    commit = succeed("git", "rev-parse", "--short", "HEAD").strip()
    programs(PACKED, *PACKAGES)
    found = guest.run(name, rounds, said=Keeping(commit, PAPERS))
    found.name = name
    found.notes.append(f"its cells are in {PAPERS.parent.name}/{PAPERS.name}")
    return found


def count(rounds: int) -> Report:
    """What observing, deciding and moving execute (observed.py), in a guest."""
    programs(PACKED, *PACKAGES)
    return guest.run("observed", rounds)


def observed(rounds: int) -> Report:
    """The same, and replace what was kept in `bench/observed.json`. A test counts again and
    compares."""
    found = count(rounds)
    figures = {what: round(each, 3) for what, each in found.samples["figures"].items()}
    document = {"requests": found.samples["requests"], "figures": figures}
    OBSERVED.write_text(json.dumps(document, indent=1) + "\n")
    found.notes.append(f"kept in {OBSERVED.parent.name}/{OBSERVED.name}")
    return found


class Keeping(io.BytesIO):
    """What the guest says: lines of JSON. Each that has cells is kept."""

    def __init__(self, commit: str, path: Path = CELLS) -> None:
        super().__init__()
        self._commit, self._path, self._rest = commit, path, b""

    def write(self, data: Any) -> int:
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        for line in map(json.loads, lines):
            if "cells" in line:
                keep(report(line), self._commit, self._path)
        return super().write(data)


def wanted(
    kept: Sequence[dict[str, Any]],
    commit: str,
    server: str,
    loads: Sequence[str],
    only: Sequence[str],
    *,
    pinned: bool = True,
    cpus: int = CPUS,
) -> Wanted:
    """What is to be measured beside the cells that are kept. One filter is for a server of one
    thread that stays. OperatorError as `run`."""
    about = {"server": server, "pinned": pinned, "cpus": cpus, "connections": CONNECTIONS}
    there = {
        (each["load"], each["contender"]): each for each in kept if about.items() <= each.items()
    }
    missing = [
        (load, name)
        for load in loads
        for name in only or CONTENDERS
        if name not in STATIC or (pinned and SERVERS[server].workers == 1)
        if only or there.get((load, name), {}).get("commit") != commit
    ]
    if not missing:
        raise OperatorError(
            f"{server}: nothing that was not measured at {commit}",
            "--contender NAME measures it again",
        )
    rss = there.get(("saturated", "rss"))
    if rss is None and any(LOADS[load].share for load in loads):
        raise OperatorError(
            f"{server}: nothing says what RSS answers at most", "--load saturated comes first"
        )
    return Wanted(server, pinned, cpus, rss["requests_per_s"] if rss else None, missing)


def cells(path: Path = CELLS) -> list[dict[str, Any]]:
    """Those of the tree."""
    kept: list[dict[str, Any]] = json.loads(path.read_text())["cells"] if path.exists() else []
    return kept


def keep(found: Report, commit: str, path: Path = CELLS) -> None:
    """Write its cells into the file, a line each; all others stay."""
    kept = {tuple(each[word] for word in KEY): each for each in cells(path)}
    for each in found.samples["cells"]:
        kept[tuple(each[word] for word in KEY)] = {**each, "commit": commit}
    lines = ",\n".join(map(json.dumps, kept.values()))
    about = f'"estimates": {json.dumps(LATENCIES)},\n"latencies_ns": {json.dumps(LATENCIES_NS)}'
    path.write_text(f'{{{about},\n"cells": [\n{lines}\n]}}\n')
