# SPDX-License-Identifier: GPL-2.0-or-later
"""Each reason is given somewhere, with as many values as its words name."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

from atfnd.model.reason import Code

ROOT = Path(__file__).parents[2]
NAMED = {
    code.name: sum(name is not None for _, name, *_ in Formatter().parse(code.value))
    for code in Code
}


def test_reasons_are_given_with_what_their_words_name() -> None:
    given, wrong = set[str](), []
    for file in sorted((ROOT / "atfnd").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="Code"), attr=name):
                    given.add(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id="Code"), attr=name), args=args):
                    several = any(isinstance(each, ast.Starred) for each in args)
                    if not several and len(args) != NAMED[name]:
                        wrong.append(f"{file}:{node.lineno}: {name} names {NAMED[name]}")
    assert wrong == []
    assert given == NAMED.keys()
