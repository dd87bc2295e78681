# SPDX-License-Identifier: GPL-2.0-or-later
"""The rooms of design section 2: which may import which, and which may write for a NIC."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]

# A room not named here may import what is not reserved below.
IMPORTS_ONLY = {
    "model": {"model"},
    "errors": {"errors"},
    "trust": {"trust"},
    "socket_path": {"socket_path"},
    "engine": {"engine", "move", "compare", "model"},
    "diagnose": {"diagnose", "model"},
    "compare": {"compare", "model"},
    "move": {"move", "model"},
    "policy": {"policy", "model", "errors", "trust"},
    "serve": {"serve", "model", "errors", "socket_path"},
    "ctl": {"ctl", "model", "errors", "socket_path"},
}
# One pure module of a room, beside the rooms above.
AND_OF = {"engine": "policy.match.match"}
IMPORTED_ONLY_BY = {
    "kernel": {"kernel", "observe", "nic", "program", "lab"},
    "bpf": {"bpf", "kernel", "observe", "nic", "lab"},
    "daemon": {"daemon", "cli"},
    "cli": {"cli", "__main__"},
    "lab": {"lab", "cli"},
}
# What writes for a NIC: module of `program` -> name -> the files that may import it. `program`
# itself, `lab` and the offline `restore` of `cli` write too.
_EXECUTOR, _UNDOING = "daemon/executor.py", "daemon/undoing.py"
WRITES: dict[str, dict[str, set[str]]] = {
    "actuator": {"apply": {_EXECUTOR}, "NicActuator": {"daemon/moving.py"}},
    "balance": {
        name: {_EXECUTOR} for name in ("banned", "journal", "lift", "lifted", "restored", "unban")
    },
    "blind_actuator": {"BlindActuator": {"daemon/moving.py"}},
    "filter": {"apply": set()},
    "queue_cpu": {"apply": set()},
    "restore": {"restored": set()},
    "setting": {name: {_EXECUTOR, _UNDOING} for name in ("apply", "undo", "written")},
    "undo": {"Undo": {_UNDOING}},
}
NIC_WRITES = {"probe", "set_queue_cpu", "set_rss", "write_setting"}  # methods of `nic.Nic`
FILTER_WRITES = {"delete", "insert"}  # of what is called `nic`
MAY_WRITE = {"cli", "kernel", "lab", "nic", "program"}
Sources = Mapping[str, str]  # path below atfnd/ -> source


def room_of(path: str) -> str:
    first = PurePosixPath(path).parts[0]
    return first.removesuffix(".py")


def imported(path: str, source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each import of ours, without the name of the package. The package itself (its
    version) is none."""
    package = ["atfnd", *PurePosixPath(path).parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "atfnd" and parts[1:] and not parts[1].startswith("__version"):
                yield node.lineno, ".".join(parts[1:])


def imported_rooms(path: str, source: str) -> Iterator[tuple[int, str]]:
    """(line, room) of each import of ours."""
    yield from ((line, what.partition(".")[0]) for line, what in imported(path, source))


def bad_imports(sources: Sources) -> list[str]:
    found = []
    for path, source in sources.items():
        room = room_of(path)
        for line, what in imported(path, source):
            wanted, allowed, also = what.partition(".")[0], IMPORTS_ONLY.get(room), AND_OF.get(room)
            of_also = also is not None and f"{what}.".startswith(f"{also}.")
            if allowed is not None and wanted not in allowed and not of_also:
                found.append(f"{path}:{line}: {room} imports only {', '.join(sorted(allowed))}")
            if room not in IMPORTED_ONLY_BY.get(wanted, {room}):
                found.append(f"{path}:{line}: {room} must not import {wanted}")
    return found


def cycles(sources: Sources) -> list[str]:
    graph: dict[str, set[str]] = {}
    for path, source in sources.items():
        room = room_of(path)
        graph.setdefault(room, set()).update(r for _, r in imported_rooms(path, source))
        graph[room].discard(room)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def writers(sources: Sources) -> list[str]:
    """What writes for a NIC, outside the executor and what it drives."""
    found = []
    for path, source in sources.items():
        if room_of(path) not in MAY_WRITE:
            found += [f"{path}:{line}: {what}" for line, what in _writes(path, source)]
    return found


def _writes(path: str, source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (
                    (node.lineno, n.name) for n in names if n.name.startswith("atfnd.program")
                )
            case ast.ImportFrom(module="atfnd.program", names=names):
                for each in names:
                    if not all(path in by for by in WRITES.get(each.name, {}).values()):
                        yield node.lineno, f"all of program.{each.name}"
            case ast.ImportFrom(module=str(module), names=names):
                writing = WRITES.get(module.removeprefix("atfnd.program."), {})
                for each in names:
                    if path not in writing.get(each.name, {path}):
                        yield node.lineno, each.name
            case ast.Call(func=ast.Attribute(value=on, attr=called)):
                name = getattr(on, "attr", getattr(on, "id", ""))
                writes = called in NIC_WRITES and not name.endswith("executor")
                writes |= called in FILTER_WRITES and name == "nic"
                if writes and path != _EXECUTOR:
                    yield node.lineno, f".{called}()"


def ours() -> Sources:
    files = sorted((ROOT / "atfnd").rglob("*.py"))
    return {str(f.relative_to(ROOT / "atfnd")): f.read_text(encoding="utf-8") for f in files}


RULES = [bad_imports, cycles, writers]


@pytest.mark.parametrize("rule", RULES, ids=lambda f: f.__name__)
def test_rooms(rule: object) -> None:
    assert callable(rule)
    assert "\n".join(rule(ours())) == ""
