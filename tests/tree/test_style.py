# SPDX-License-Identifier: GPL-2.0-or-later
"""What ruff does not know: licences, and errors and tests that nobody would look at."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("atfnd", "tests", "bench", "docs")
SUFFIXES = {".py", ".pyi", ".c", ".h", ".js", ".css"}

SPDX = re.compile(r"(#|//|/\*) SPDX-License-Identifier: GPL-2\.0-or-later")


def no_license(path: str, source: str) -> Iterator[str]:
    if not SPDX.match(source):
        yield "does not begin with its SPDX line"


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
