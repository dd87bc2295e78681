# SPDX-License-Identifier: GPL-2.0-or-later
"""From a Document to a PolicyFile; what does not fit becomes problems at their places."""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from atfnd.policy.file.document import Document, Path
from atfnd.policy.file.host import Host
from atfnd.policy.file.problem import Mistake, Problem, did_you_mean
from atfnd.policy.file.schema import Entry, PolicyFile

__all__ = ["decode"]

HINTS = {  # words that other readers of YAML take for something else
    "yes": "did you mean true?",
    "on": "did you mean true?",
    "no": "did you mean false?",
    "off": "did you mean false?",
}

OF_A_POD = 'a pod is known by its control group only: cgroup: "/kubepods*pod<UID>*"'


def decode(document: Document, host: Host | None = None) -> tuple[PolicyFile | None, list[Problem]]:
    """The file's content, or None, and everything that is wrong with it, in order of place. `host`
    is the machine that it is for; None: this one."""
    if document.tree is None:
        return None, document.problems
    try:
        content = PolicyFile.model_validate(document.tree, context=host)
    except ValidationError as error:
        found = document.problems + [_problem(document, e) for e in error.errors()]
        return None, sorted(found, key=lambda p: (p.line or 0, p.column or 0))
    return (None if document.problems else content), document.problems


def _problem(document: Document, error: ErrorDetails) -> Problem:
    """One finding of pydantic, with the meaning of its key where there is no better hint."""
    found = _in_words(document, error)
    return found if found.hint is not None else found._replace(hint=_meaning(error["loc"]))


def _in_words(document: Document, error: ErrorDetails) -> Problem:
    """The finding (pydantic's docs: errors/validation_errors) in our words."""
    path: Path = error["loc"]
    context: dict[str, Any] = error.get("ctx", {})
    hint: str | None
    match error["type"]:
        case "value_error":
            mistake = context["error"]
            assert isinstance(mistake, Mistake)
            return document.problem(path, mistake.message, mistake.hint)
        case "extra_forbidden":
            known = _known_keys(path[:-1])
            hint = _one_further_in(document, path) or did_you_mean(str(path[-1]), known)
            if "cgroup" in known and re.search("namespace|pod|container|label", str(path[-1])):
                hint = OF_A_POD
            hint = hint or f"known here: {', '.join(known)}"
            return document.problem(path, f"unknown key `{path[-1]}`", hint, key=True)
        case "missing":
            hint = "add `version: 1`, the policy format version" if path == ("version",) else None
            return document.problem(path[:-1], f"`{path[-1]}` is missing", hint)
        case "bool_type":
            hint = HINTS.get(str(error["input"]).lower())
            return _expected(document, path, "true or false", hint)
        case "int_type":
            text = str(error["input"])
            hint = f"did you mean {int(text)}?" if re.fullmatch("[0-9]{1,9}", text) else None
            return _expected(document, path, "a number", hint or "plain decimal digits")
        case "string_type":
            return _expected(document, path, "text", "quote it")
        case "tuple_type":
            return _expected(document, path, "a list")
        case "model_type":
            keys = ", ".join(_known_keys(path))
            return _expected(document, path, "a mapping", f"known here: {keys}")
        case "literal_error":
            wanted = str(context["expected"]).replace("'", "")
            words = re.findall(r"\w+", wanted.replace(" or ", " "))
            return _expected(document, path, wanted, did_you_mean(str(error["input"]), words))
        case "too_short" | "string_too_short":
            return document.problem(path, f"`{path[-1]}` is empty")
        case "greater_than":
            return document.problem(path, f"must be more than {context['gt']}")
        case "greater_than_equal":
            return document.problem(path, f"must be {context['ge']} or more")
        case "less_than_equal":
            return document.problem(path, f"must be {context['le']} or less")
        case other:
            raise RuntimeError(f"no words for {other} at {path}: {error['msg']}")


def _expected(document: Document, path: Path, wanted: str, hint: str | None = None) -> Problem:
    return document.problem(path, f"expected {wanted}, got {document.words(path)}", hint)


def _meaning(path: Path) -> str:
    """The meaning of the key at `path`, or of the part around it."""
    *around, last = [key for key in path if isinstance(key, str)]
    entry = _entry_at(tuple(around))
    field = _keys(entry)[last]
    return f"`{last}`: {' '.join((field.description or '').split())}"


def _known_keys(path: Path) -> list[str]:
    """The keys that the mapping at `path` may have."""
    return list(_keys(_entry_at(path)))


def _keys(entry: type[Entry]) -> dict[str, FieldInfo]:
    """What it may say, by the keys of the file."""
    return {field.alias or name: field for name, field in entry.model_fields.items()}


def _one_further_in(document: Document, path: Path) -> str | None:
    """For a key that belongs into a mapping of this mapping: `match: {name: eth0}`."""
    key = str(path[-1])
    for name, field in _entry_at(path[:-1]).model_fields.items():
        inner = field.annotation
        listed = get_origin(inner) is tuple
        if not listed and _has_entry(inner) and key in _keys(_entry_in(inner)):
            words = document.words(path)
            value = words.strip("`") if words.startswith("`") else "..."
            return f"did you mean {name}: {{{key}: {value}}}?"
    return None


def _entry_at(path: Path) -> type[Entry]:
    """What the mapping at `path` may say."""
    entry: type[Entry] = PolicyFile
    for key in path:
        if isinstance(key, str):
            entry = _entry_in(_keys(entry)[key].annotation)
    return entry


def _has_entry(annotation: Any) -> bool:
    parts = (annotation, *get_args(annotation))
    return any(isinstance(part, type) and issubclass(part, Entry) for part in parts)


def _entry_in(annotation: Any) -> type[Entry]:
    """The Entry class inside `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Entry):
        return annotation
    return next(_entry_in(inner) for inner in get_args(annotation) if inner is not type(None))
