# SPDX-License-Identifier: GPL-2.0-or-later
"""One YAML file as a plain tree, and where in the file each part of it stands.

PyYAML composes the nodes; values are read from them here, because YAML 1.1's own reading turns
`10:30` into 630, `010` into 8 and `no` into false. Here `true` and `false` are booleans, plain
decimal digits are integers, and everything else is text, to be parsed where it is used. Anchors,
aliases, tags and merge keys are refused: what is written is what is meant.
"""

from __future__ import annotations

import re

import yaml

from atfnd.policy.file.problem import Problem

__all__ = ["Document", "Path", "Tree"]

Tree = None | bool | int | str | tuple["Tree", ...] | dict[str, "Tree"]
Path = tuple[str | int, ...]

INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
SURROGATE = re.compile("[\ud800-\udfff]")
ESCAPES = 'in double quotes: "\\x41", "\\u0041" or "\\U00000041"'
DEPTH = "a policy is at most a few mappings deep"
LINE_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")  # as PyYAML counts them


class _PlainLoader(yaml.SafeLoader):
    """Composes nodes; refuses what would give a value another meaning than its text."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem, note = None, "write out what is meant, at each place"
        if isinstance(event, yaml.AliasEvent):
            problem = "a YAML alias is not read here"
        elif getattr(event, "anchor", None) is not None:
            problem = "a YAML anchor is not read here"
        elif getattr(event, "tag", None) is not None:
            problem = "a YAML tag is not read here"
            note = 'a text that begins with `!` is quoted: "!eth0"'
        elif isinstance(event, yaml.ScalarEvent) and SURROGATE.search(event.value):
            problem, note = "half of a surrogate pair is no character", ESCAPES
        if problem is not None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark, note=note)
        return super().compose_node(parent, index)


class _MalformedError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Document:
    """A composed file. `problems` lists what is wrong with it as YAML; then `tree` may be None."""

    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.tree: Tree = None
        self._text = data.decode("utf-8-sig", errors="replace")
        self._lines = LINE_BREAK.split(self._text)
        self._values: dict[Path, yaml.Node] = {}
        self._keys: dict[Path, yaml.Node] = {}
        try:
            root = self._compose(data)
            if root is not None:
                self.tree = self._read(root, ())
            if self.tree is None:
                hint = "a policy begins with `version: 1`"
                self.problems.append(self._after("", "the file says nothing", hint))
        except _MalformedError as error:
            self.problems.append(error.problem)

    def problem(
        self, path: Path, message: str, hint: str | None = None, *, key: bool = False
    ) -> Problem:
        """A problem at the value (or the key) at `path`, or at the closest part around it."""
        nodes = self._keys if key else self._values
        while path not in nodes:
            path = path[:-1]
        return self._at_node(nodes[path], message, hint)

    def line(self, path: Path) -> int:
        """The line, from 1, on which the value at `path` begins."""
        return int(self._values[path].start_mark.line) + 1

    def words(self, path: Path) -> str:
        """What stands in the file at `path`, for a message."""
        node = self._values[path]
        if isinstance(node, yaml.ScalarNode):
            words = self._text[node.start_mark.index : node.end_mark.index]
            return f"`{words}`" if words else "nothing"
        return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"

    def _compose(self, data: bytes) -> yaml.Node | None:
        """The root node; _MalformedError when the file is not YAML."""
        try:
            data.decode()
            loader = _PlainLoader(self._text)
        except UnicodeDecodeError as error:
            before = data[: error.start].decode("utf-8-sig")
            raise _MalformedError(self._after(before, "not UTF-8", "save it as UTF-8")) from None
        except yaml.reader.ReaderError as error:
            before = self._text[: error.position]
            raise _MalformedError(self._after(before, "a control character", ESCAPES)) from None
        try:
            return loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            raise _MalformedError(self._malformed(error)) from None
        except RecursionError:
            raise _MalformedError(self._after("", "nested too deeply", DEPTH)) from None
        except (ValueError, OverflowError):  # chr() of an escape, int() of a %YAML directive
            before = self._text[: loader.get_mark().index]
            problem = self._after(before, "no such character or version", ESCAPES)
            raise _MalformedError(problem) from None

    def _read(self, node: yaml.Node, path: Path) -> Tree:
        self._values[path] = node
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._read(item, (*path, i)) for i, item in enumerate(node.value))
        tree: dict[str, Tree] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(self._at_node(key, "a key is a single word", "`key: value`"))
                continue
            at = (*path, key.value)
            if at in self._keys:
                first = self._keys[at].start_mark
                hint = f"first written at line {first.line + 1}, column {first.column + 1}"
                self.problems.append(self._at_node(key, f"duplicate key `{key.value}`", hint))
                continue
            self._keys[at] = key
            tree[key.value] = self._read(value, at)
        return tree

    def _at_node(self, node: yaml.Node, message: str, hint: str | None) -> Problem:
        start, end = node.start_mark, node.end_mark
        one_line = isinstance(node, yaml.ScalarNode) and start.line == end.line
        width = max(end.column - start.column, 1) if one_line else 1
        return self._at(start.line + 1, start.column + 1, width, message, hint)

    def _at(self, line: int, column: int, width: int, message: str, hint: str | None) -> Problem:
        return Problem(self.file, line, column, width, self._lines[line - 1], message, hint)

    def _after(self, before: str, message: str, hint: str | None = None) -> Problem:
        """A problem at the character that follows `before`."""
        lines = LINE_BREAK.split(before)
        return self._at(len(lines), len(lines[-1]) + 1, 1, message, hint)

    def _malformed(self, error: yaml.MarkedYAMLError) -> Problem:
        mark = error.problem_mark
        assert mark is not None  # what composing raises says where it stopped
        message = ", ".join(words for words in (error.context, error.problem) if words)
        hint = error.note or "quote a value that has signs of YAML in it"
        if "\\t" in message:
            hint = "YAML is indented with spaces"
        elif error.context_mark is not None and error.context_mark.line != mark.line:
            hint = f"it begins at line {error.context_mark.line + 1}"
        return self._at(mark.line + 1, mark.column + 1, 1, message, hint)


def _scalar(node: yaml.ScalarNode) -> Tree:
    if node.style is not None:
        return str(node.value)
    match node.value:
        case "" | "~" | "null":
            return None
        case "true" | "false":
            return bool(node.value == "true")
        case word if INTEGER.fullmatch(word):
            return int(word)
        case word:
            return str(word)
