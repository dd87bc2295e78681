# SPDX-License-Identifier: GPL-2.0-or-later
"""The house style that ruff does not know: how files are named and opened."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("atfnd", "tests", "bench", "docs")
SUFFIXES = {".py", ".pyi", ".c", ".h", ".js", ".css"}

SPDX = re.compile(r"(#|//|/\*) SPDX-License-Identifier: GPL-2\.0-or-later")
NOT_A_SUBJECT = {"utils", "util", "helpers", "helper", "misc", "common", "manager"}
LEFT_FOR_LATER = re.compile(r"\b(TO[D]O|FIX[M]E)\b")


def no_license(path: str, source: str) -> Iterator[str]:
    if not SPDX.match(source):
        yield "does not begin with its SPDX line"


def bad_name(path: str, source: str) -> Iterator[str]:
    for part in PurePosixPath(path).with_suffix("").parts:
        yield from (f"`{word}` is no subject" for word in part.split("_") if word in NOT_A_SUBJECT)


def left_for_later(path: str, source: str) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), 1):
        if found := LEFT_FOR_LATER.search(line):
            yield f"line {number}: {found[0]}"


def bad_opening(path: str, source: str) -> Iterator[str]:
    """A module says what it is about, and one of ours what it offers."""
    if not path.endswith(".py"):
        return
    tree = ast.parse(source)
    if tree.body and ast.get_docstring(tree) is None:
        yield "no docstring"
    names = set(_top_level_names(tree))
    public = {name for name in names if not name.startswith("_")}
    if path.startswith("atfnd/") and public and "__all__" not in names:
        yield f"no __all__, but {', '.join(sorted(public))}"


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def swallows_errors(path: str, source: str) -> Iterator[str]:
    if not path.endswith(".py"):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            last = node.body[-1]
            passed_on = isinstance(last, ast.Raise) and last.exc is None
            for kind in kinds:
                name = None if kind is None else ast.unparse(kind)
                if name in (None, "Exception") or (name == "BaseException" and not passed_on):
                    yield f"line {node.lineno}: except {name or 'everything'}"


def sleeps_or_skips(path: str, source: str) -> Iterator[str]:
    """A test waits for a condition (tests/wait.py) and never looks away."""
    if not path.startswith("tests/") or not path.endswith(".py") or path == "tests/wait.py":
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep")):
                yield f"line {node.lineno}: sleep"
            case ast.Attribute(attr="skip" | "skipif" | "xfail" | "importorskip" as word):
                yield f"line {node.lineno}: {word}"


RULES: list[Callable[[str, str], Iterator[str]]] = [
    no_license,
    bad_name,
    left_for_later,
    bad_opening,
    swallows_errors,
    sleeps_or_skips,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_style(rule: Callable[[str, str], Iterator[str]]) -> None:
    files = [f for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*"))]
    sources = {
        str(f.relative_to(ROOT)): f.read_text(encoding="utf-8")
        for f in files
        if f.suffix in SUFFIXES
    }
    assert sources
    found = [f"{path}: {what}" for path, source in sources.items() for what in rule(path, source)]
    assert "\n".join(found) == ""
