# SPDX-License-Identifier: GPL-2.0-or-later
"""The rooms of design section 2: which may import which, and which may speak the kernel's
language."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import NamedTuple, get_args, get_origin, get_type_hints

import pytest

from atfnd.engine.command import Command
from atfnd.engine.event import Event

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
SUPERVISOR = "daemon/supervisor.py"
SPEAKS_KERNEL = {"kernel", "bpf", "observe"}
KERNEL_PATH = re.compile(r"/(proc|sys)(/|$)")

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


def kernel_speech(sources: Sources) -> list[str]:
    """Struct formats, ioctls, netlink and kernel paths outside the rooms that hold them; inside
    `observe` a path begins at a root that a test can replace."""
    found = []
    for path, source in sources.items():
        room = room_of(path)
        for line, what in _kernel_words(source):
            root = what in ("/proc", "/sys")
            if room not in SPEAKS_KERNEL or (room == "observe" and what[0] == "/" and not root):
                found.append(f"{path}:{line}: {what}")
    return found


def _kernel_words(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, n.name) for n in names if n.name == "struct")
            case ast.ImportFrom(module="struct"):
                yield node.lineno, "struct"
            case ast.ImportFrom(module="fcntl" | "socket", names=names):
                words = {"ioctl", "AF_NETLINK"}
                yield from ((node.lineno, n.name) for n in names if n.name in words)
            case ast.Attribute(attr="ioctl" | "AF_NETLINK" as word):
                yield node.lineno, word
            case ast.Constant(value=str(text)) if KERNEL_PATH.match(text):
                yield node.lineno, text


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


def not_composed(sources: Sources) -> list[str]:
    """The parts of the daemon inherit from none of each other, and none gets the supervisor."""
    trees = {p: ast.parse(source) for p, source in sources.items() if room_of(p) == "daemon"}
    classes = [
        (path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    ours, found = {node.name for _, node in classes}, []
    for path, node in classes:
        for base in node.bases:
            if ast.unparse(base).rpartition(".")[2] in ours:
                found.append(f"{path}:{node.lineno}: {node.name} inherits {ast.unparse(base)}")
    for path, tree in trees.items():
        found += [f"{path}:{line}: {what}" for line, what in _of_supervisor(path, tree)]
    return found


def _of_supervisor(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="atfnd.daemon.supervisor"):
                yield node.lineno, "imports the supervisor"
            case ast.Call(args=args, keywords=keywords) if path == SUPERVISOR:
                for each in (*args, *(keyword.value for keyword in keywords)):
                    if isinstance(each, ast.Name) and each.id == "self":
                        yield node.lineno, "hands the supervisor on"


def names_of_two(sources: Sources) -> list[str]:
    """A public class has its name for itself, so that a word means one thing in the tree."""
    files: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [f"{name}: {', '.join(at)}" for name, at in sorted(files.items()) if len(at) > 1]


# What the engine knows is changed by `Engine.handle` alone, which the executor alone calls. The
# daemon may read it, ask these questions of it, and hand a part of it to these: all change nothing.
ENGINE, FEEDS_ENGINE = {"engine", "handshakes", "memory"}, "daemon/executor.py"
ENGINE_TYPES = {
    "Balancers",
    "Engine",
    "FlowTable",
    "Forwarding",
    "Handshakes",
    "Memory",
    "NicMemory",
    "Trials",
}
QUESTIONS = {
    "by_state", "cookies", "cpu_use", "dedicated", "deferred", "filters_in",
    "flows_to_match", "of_cookie",
    "get", "has_births", "items", "keys", "knows_flows", "may_have_moved",
    "next_due_ns", "outlived", "planned", "ports_to_judge", "ports_to_match", "pressing",
    "shared_ports", "slots", "standing", "steered", "steering", "threads",
    "tried", "tried_queues", "values", "forwarding_settled", "why_forwarded", "why_no_port",
}  # fmt: skip
READERS = {
    "Agenda", "Balancing", "Joined", "OperatorCommands", "Status", "auto.said", "receiving.said",
    "copy_of", "dict", "glance", "host_settings.shown", "len", "list", "listeners",
    "matching.again", "t_delete_in_force_ns",
    "NicSession",  # it shows the view
}  # fmt: skip


def memory_changes(sources: Sources) -> list[str]:
    """Where the daemon changes what the engine knows, or may change it."""
    found = []
    for path, source in sources.items():
        if room_of(path) == "daemon":
            tree = ast.parse(source)
            attributes = {each for each in _aliases(tree, set()) if each.startswith("self.")}
            for part in _functions(tree):
                known = _aliases(part, attributes)
                found += [f"{path}:{line}: {what}" for line, what in _changes(path, part, known)]
    return found


def _functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Each with those inside it, and what stands outside of all."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.ClassDef) else [node]


def _aliases(part: ast.AST, known: set[str]) -> set[str]:
    """Names, and attributes of `self`, that stand for a part of what the engine knows."""
    known = set(known)
    for node in ast.walk(part):
        if isinstance(node, ast.arg) and node.annotation is not None:
            words = re.findall(r"\w+", ast.unparse(node.annotation))
            known |= {node.arg} if ENGINE_TYPES & set(words) else set()
    while True:
        more = {ast.unparse(target) for target, value in _bound(part) if _of_engine(value, known)}
        more = {each for each in more if re.fullmatch(r"(self\.)?\w+", each)}
        if more <= known:
            return known
        known |= more


def _bound(part: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is bound to what. What a loop takes from the NICs can be changed; entries of the table
    cannot."""
    for node in ast.walk(part):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                        yield from zip(target.elts, value.elts, strict=True)
                    else:
                        yield target, value
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield target, value
            case ast.NamedExpr(target=target, value=value):
                yield target, value
            case ast.For(target=target, iter=of) | ast.comprehension(target=target, iter=of):
                if any(isinstance(each, ast.Attribute) and each.attr == "nics"
                       for each in ast.walk(of)):  # fmt: skip
                    yield from ((each, of) for each in getattr(target, "elts", [target]))


def _of_engine(node: ast.expr, known: set[str]) -> bool:
    """It is a part of what the engine knows, or is taken from it."""
    match node:
        case ast.Name(id=name):
            return name.lstrip("_") in ENGINE or name in known
        case ast.Attribute(value=value, attr=attr):
            here = attr.lstrip("_") in ENGINE or ast.unparse(node) in known
            return here or _of_engine(value, known)
        case ast.Subscript(value=value) | ast.NamedExpr(value=value):
            return _of_engine(value, known)
        case ast.Call(func=ast.Attribute(value=value, attr="get" | "items" | "values")):
            return _of_engine(value, known)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "listeners"), args=[value]):
            return _of_engine(value, known)
        case ast.IfExp(body=one, orelse=other):
            return _of_engine(one, known) or _of_engine(other, known)
        case ast.BoolOp(values=values):
            return any(_of_engine(each, known) for each in values)
    return False


def _changes(path: str, part: ast.AST, known: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(part):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign(targets=on) | ast.Delete(targets=on):
                targets = [each for target in on for each in getattr(target, "elts", [target])]
            case ast.AugAssign(target=ast.Name() as target) if _of_engine(target, known):
                yield node.lineno, "changes"
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                targets = [target]
            case ast.Call(func=called, args=args, keywords=keywords):
                name = getattr(called, "attr", getattr(called, "id", ""))
                asked = name in QUESTIONS or (name == "handle" and path == FEEDS_ENGINE)
                on_it = isinstance(called, ast.Attribute) and _of_engine(called.value, known)
                given = [*args, *(each.value for each in keywords)]
                parts = [each for each in given if _of_engine(each, known) and not _whole(each)]
                reader = ast.unparse(called).removeprefix("self.").lstrip("_") in READERS
                if (on_it and not asked) or (parts and not (asked or reader)):
                    yield node.lineno, name
        for each in targets:
            if isinstance(each, ast.Attribute | ast.Subscript) and _of_engine(each.value, known):
                yield each.lineno, "assigns"


def _whole(node: ast.expr) -> bool:
    """The engine itself is handed on."""
    return getattr(node, "attr", getattr(node, "id", "")).lstrip("_") == "engine"


def ours() -> Sources:
    files = sorted((ROOT / "atfnd").rglob("*.py"))
    return {str(f.relative_to(ROOT / "atfnd")): f.read_text(encoding="utf-8") for f in files}


RULES = [bad_imports, cycles, kernel_speech, memory_changes, names_of_two, not_composed, writers]


@pytest.mark.parametrize("rule", RULES, ids=lambda f: f.__name__)
def test_rooms(rule: object) -> None:
    assert callable(rule)
    assert "\n".join(rule(ours())) == ""


PLANTED_IMPORTS = [
    ("engine/x.py", "from atfnd.kernel.netlink.rtnl import y", 2),
    ("engine/x.py", "from atfnd.errors import OperatorError", 1),
    ("engine/x.py", "def f():\n    import atfnd.policy.match.match", 0),
    ("engine/x.py", "from atfnd.policy.match.match import Matcher", 0),
    ("engine/x.py", "from atfnd.policy.match import matching", 1),
    ("engine/x.py", "def f():\n    import atfnd.policy.file.load", 1),
    ("engine/x.py", "from ..nic import Nic", 1),
    ("engine/x.py", "from . import table", 0),
    ("engine/x.py", "from atfnd.model import Flow\nimport dataclasses", 0),
    ("model.py", "from atfnd import errors", 1),
    ("model.py", "from atfnd.errors import OperatorError", 1),
    ("errors.py", "import atfnd.model", 1),
    ("move/birth.py", "from atfnd.program.filter import insert", 1),
    ("move/mover.py", "from atfnd.bpf import _bpf", 2),
    ("ctl/verbs.py", "from atfnd.serve import api", 1),
    ("ctl/verbs.py", "from atfnd import __version__", 0),
    ("serve/api/routes.py", "if TYPE_CHECKING:\n    from atfnd.policy.file.load import load", 1),
    ("policy/file/load.py", "from atfnd.kernel import x", 2),
    ("program/x.py", "from atfnd.bpf import _bpf", 1),
    ("program/x.py", "from atfnd.kernel import x", 0),
    ("serve/x.py", "from atfnd.daemon.supervisor import Supervisor", 2),
    ("nic/lab/nic.py", "from atfnd.lab.up import up", 1),
    ("cli/commands.py", "from atfnd.daemon import x\nfrom atfnd.lab.up import up", 0),
    ("__main__.py", "from atfnd.lab.up import up", 1),
]


@pytest.mark.parametrize(("path", "source", "count"), PLANTED_IMPORTS)
def test_planted_imports(path: str, source: str, count: int) -> None:
    assert len(bad_imports({path: source})) == count


def test_planted_cycle() -> None:
    one_way = {"nic/a.py": "from atfnd.program import x", "program/b.py": "from . import c"}
    assert cycles(one_way) == []
    assert cycles(one_way | {"program/c.py": "import atfnd.nic"}) != []


PLANTED_SPEECH = [
    ("program/x.py", "import struct", 1),
    ("program/x.py", "from struct import Struct", 1),
    ("program/x.py", "import fcntl\nfcntl.ioctl(0, 1)", 1),
    ("program/x.py", "from socket import AF_NETLINK", 1),
    ("program/x.py", "import socket\nsocket.socket(socket.AF_NETLINK)", 1),
    ("program/x.py", "p = f'/proc/irq/{n}/smp_affinity'", 1),
    ("program/x.py", "p = Path('/sys')", 1),
    ("program/x.py", "p = '/system'", 0),
    ("kernel/x.py", "import struct\np = '/proc/irq'", 0),
    ("observe/x.py", "def read(root: str = '/proc'): ...", 0),
    ("observe/x.py", "p = '/proc/stat'", 1),
]


@pytest.mark.parametrize(("path", "source", "count"), PLANTED_SPEECH)
def test_planted_speech(path: str, source: str, count: int) -> None:
    assert len(kernel_speech({path: source})) == count


def test_planted_names() -> None:
    one, other = "class Flow: ...\nclass _Row: ...", "class Rule: ...\nclass _Row: ..."
    assert names_of_two({"a.py": one, "b.py": other}) == []
    assert names_of_two({"a.py": one, "b.py": f"{other}\nclass Flow: ..."}) == [
        "Flow: a.py:1, b.py:3"
    ]


# `model` holds values, which the tests of every room use. The other seven have no room.
NO_TESTS_OF_ITS_OWN = {"model"}
NO_ROOM = {"bench", "cases", "distributions", "guest", "hardware", "simulation", "tree"}


def test_tests_mirror_the_rooms() -> None:
    rooms = {each.parent.name for each in (ROOT / "atfnd").glob("*/__init__.py")}
    tested = {each.parent.name for each in (ROOT / "tests").glob("*/__init__.py")}
    assert tested == rooms - NO_TESTS_OF_ITS_OWN | NO_ROOM


def callables(hint: object, path: str = "", seen: frozenset[object] = frozenset()) -> Iterator[str]:
    """Where a value of this type may hold something to be called: it is data only if nowhere."""
    if get_origin(hint) is Callable or hint is Callable:
        yield path
    for each in get_args(hint):
        yield from callables(each, path, seen)
    if isinstance(hint, type) and hint.__module__.startswith(("atfnd.", __name__)):
        for name, of_field in {} if hint in seen else get_type_hints(hint).items():
            yield from callables(of_field, f"{path}.{name}", seen | {hint})


@pytest.mark.parametrize("kind", [*get_args(Event), *get_args(Command)], ids=lambda e: e.__name__)
def test_what_the_engine_is_given_and_says_is_data(kind: type) -> None:
    assert list(callables(kind, kind.__name__)) == []


class _Asked(NamedTuple):
    rule_of: Mapping[str, Callable[[int], int | None]]


class _Planted(NamedTuple):
    asked: Sequence[_Asked | None]
    number: int


def test_planted_callables() -> None:
    assert list(callables(_Planted, "_Planted")) == ["_Planted.asked.rule_of"]


PLANTED_WRITES = [
    ("daemon/x.py", "from atfnd.program.setting import undo", 1),
    ("daemon/x.py", "from atfnd.program import setting", 1),
    ("daemon/x.py", "import atfnd.program.setting", 1),
    ("daemon/x.py", "from atfnd.program.setting import DONE, drifted", 0),
    ("daemon/x.py", "from atfnd.program.balance import bans, unban", 1),
    ("daemon/x.py", "from atfnd.program.undo import Undo", 1),
    ("daemon/x.py", "from atfnd.program.actuator import apply, NicActuator", 2),
    ("observe/x.py", "def f(nic): return nic.probe()", 1),
    ("daemon/x.py", "def f(session): session.watch.nic.delete(7)", 1),
    ("daemon/x.py", "def f(waiting): waiting.insert(0, 7)", 0),
    ("daemon/undoing.py", "from atfnd.program.setting import undo", 0),
    ("daemon/undoing.py", "from atfnd.program.actuator import apply", 1),
    ("daemon/executor.py", "from atfnd.program import balance, setting", 0),
    ("daemon/executor.py", "from atfnd.program import undo", 1),
    ("cli/x.py", "from atfnd.program.restore import restored", 0),
]


@pytest.mark.parametrize(("path", "source", "count"), PLANTED_WRITES)
def test_planted_writes(path: str, source: str, count: int) -> None:
    assert len(writers({path: source})) == count


PLANTED_PARTS = [
    ("daemon/x.py", "class A: ...\nclass B(A): ...", 1),
    ("daemon/x.py", "class A(NamedTuple): ...", 0),
    ("daemon/x.py", "from atfnd.daemon.supervisor import Supervisor", 1),
    ("daemon/supervisor.py", "def f(self): self.part = Part(self)", 1),
    ("daemon/supervisor.py", "def f(self): self.part = Part(log=self)", 1),
    ("daemon/supervisor.py", "def f(self): self.part = Part(self.log)", 0),
    ("cli/run.py", "from atfnd.daemon.supervisor import Supervisor", 0),
]


@pytest.mark.parametrize(("path", "source", "count"), PLANTED_PARTS)
def test_planted_parts(path: str, source: str, count: int) -> None:
    assert len(not_composed({path: source})) == count


PLANTED_CHANGES = [
    ("daemon/x.py", "self._engine.memory.busy = {}", 1),
    ("daemon/x.py", "memory.nics[name].listeners = None", 1),
    ("daemon/x.py", "a, memory.left = 1, {}", 1),
    ("daemon/x.py", "memory.overflow += 1", 1),
    ("daemon/x.py", "del self._memory.nics[name]", 1),
    ("daemon/x.py", "self._engine.memory.table.put(flow)", 1),
    ("daemon/x.py", "steer.take_up(nic, self._memory, now_ns)", 1),
    ("daemon/x.py", "setattr(memory, 'busy', {})", 1),
    ("daemon/x.py", "self._engine.handshakes.closed(7, {}, 0)", 1),
    ("daemon/x.py", "self._engine.handle(Tick(), 0)", 1),
    ("daemon/executor.py", "self._engine.handle(Tick(), 0)", 0),
    ("daemon/x.py", "memory = self._engine.memory\nself._memory = memory", 0),
    ("daemon/x.py", "memory.table.get(key)\nlooks.append(busy)", 0),
    ("daemon/x.py", "Part(self._engine, len(memory.table))", 0),
    ("engine/x.py", "memory.busy = {}", 0),
]


@pytest.mark.parametrize(("path", "source", "count"), PLANTED_CHANGES)
def test_planted_changes(path: str, source: str, count: int) -> None:
    assert len(memory_changes({path: source})) == count


BY_ANOTHER_NAME = [
    "m = self._memory; m.busy = {}",
    "a, m = 1, self._engine.memory; m.busy = {}",
    "known = memory.nics['a']; known.strays.clear()",
    "known = memory.nics.get('a'); known.view = 1",
    "one = memory.nics; two = one['a']; del two.strays[1]",
    "left = memory.left; left |= {1: 2}",
    "spending = memory.nics['a'].spending; helper(spending)",
    "table = memory.table if a else None; table.put(1)",
    "if b := memory.nics['a'].buckets: b.waiting = set()",
    "for known in memory.nics.values(): known.view = 1",
    "for _, known in memory.nics.items(): known.view = 1",
    "return [known.strays.clear() for known in list(memory.nics.values())]",
    "def g(): table.put(1)\n    table = memory.table",
    "def g(table: FlowTable | None): table.put(1)",
]


@pytest.mark.parametrize("source", BY_ANOTHER_NAME)
def test_planted_changes_by_another_name(source: str) -> None:
    assert len(memory_changes({"daemon/x.py": f"def f(self, memory):\n    {source}"})) == 1


def test_planted_changes_by_an_attribute() -> None:
    source = """
class Part:
    def __init__(self, engine): self._table = engine.memory.table
    def look(self, table): table.put(1)
    def change(self): self._table.put(1)
"""
    assert memory_changes({"daemon/x.py": source}) == ["daemon/x.py:5: put"]


@pytest.mark.demand
@pytest.mark.parametrize("each", sorted(QUESTIONS | READERS))
def test_every_question_is_asked(each: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody asks the engine's memory any more may be asked no longer: without its name in the
    list, something would be found."""
    monkeypatch.setattr("tests.tree.test_layers.QUESTIONS", QUESTIONS - {each})
    monkeypatch.setattr("tests.tree.test_layers.READERS", READERS - {each})
    assert memory_changes(ours()) != []
