# SPDX-License-Identifier: GPL-2.0-or-later
"""Words that the tree does not use: riddles, and names that were replaced.

What a person reads says subject, verb, object, with the kernel's noun. A word that was replaced
does not come back, except in quotes. Names in the code are looked at part by part: `told_cpu` and
`PortRules` are made of words too.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "atfnd", "bench", "completions", "debian", "docs", "monitoring", "packaging", "policies",
    "tests",
)  # fmt: skip
SUFFIXES = {".py", ".pyi", ".md", ".c", ".h", ".js", ".css", ".html", ".yaml", ".in"}
EXCEPT = ("tests/tree/test_words.py",)  # it has them all

_TOLD = r"\b(?:is|are|was|were|be|been|being) told\b"
_VERB = r"(?:is|was|has|had|may|can|comes?|came|listens?|reads?|waits?|keeps?|owns?)"
_WHO = rf"\b[Ww]ho(?:ever)? {_VERB}\b"
_PERSON = r"(?<!\buser )(?<!\busers )(?<!\beveryone )(?<!\beverybody )(?<!\badministrator )"
# Each with what to say instead. A name in quotes or backquotes is not meant.
WORDS = {
    _TOLD: "reported, asked, or what is heard",
    r"\bwhoever\b": "name the program or the person",
    r"\btold of\b": "reported",
    r"\b_?told(?:_\w+)?\b(?= [=:])|\bdef \w*told\b": "reported",
    r"\blet(?:s|ting)? go\b|\blet_go\b": "release, or leave alone",
    r"\bha(?:s|ve) (?:his|its|their) way\b": "what is done",
    r"\b(?:he|him|his)\b": "it: a program, a thread, another program",
    _PERSON + _WHO + r"(?! None)": "the noun: the thread, the socket, the user",
    r"\bknobs?\b": "setting",
    r"\bphantoms?\b": "ineffective filter",
    r"\bnewborns?\b": "handshake",
    r"\b(?:its|the|our|and) hands\b": "actuator",
    r"\bby_hand\b": "shell commands",
    r"\b_?living\b(?= [=:(])": "socket lookup",
    r"\ball the same\b": "nevertheless",
    r"\b[Oo]ur rules?\b|\b[Rr]ules? of ours\b": "filter: a rule is the policy's",
    r"\bno rule (?:catches|is in place)\b|\brules are out\b|\brules? stays? in the NIC": "filter",
}  # fmt: skip
QUOTED = re.compile(r"""(["'`])[\w.-]+\1""")

# Words that names in atfnd/ do not have, as parts of the name, in lower case, joined by `_`.
# What a NIC holds is a filter. `PortRules` are the policy's rules for ports.
NAMES = {
    r"told": "reported",
    r"let_go|lets_go": "release",
    r"knobs?": "setting",
    r"phantoms?|newborns?": "ineffective filter, handshake",
    r"by_hand|his|hers?": "shell_commands, the noun",
    r"(?:mask|nic|lab|ntuple|foreign|stray|exact)_rules?": "filter",
    r"rules?_(?:in(?!_force)|on|budget|slots|max|words|u32|is_lost)": "filter",
    r"(?:by|check|read|without|with|no)_rules?|un?ruled|ruled": "filter",
}
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
COMMENT = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def names(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Each name of the code, not of comments and strings, and its line."""
    if suffix in (".py", ".pyi"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
        return
    code = COMMENT.sub(lambda hit: "\n" * hit[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        yield from ((number, name) for name in re.findall(r"[A-Za-z_]\w*", line))


def misnamed(text: str, suffix: str) -> Iterator[str]:
    """Line, name, and what to say instead."""
    for number, name in names(text, suffix):
        parts = "_".join(PARTS.findall(name)).lower()
        for word, instead in NAMES.items():
            if re.search(rf"(?:^|_)(?:{word})(?:_|$)", parts):
                yield f"{number}: `{name}`, say {instead}"


def found(text: str) -> Iterator[str]:
    """Line, word, and what to say instead."""
    for number, line in enumerate(text.splitlines(), 1):
        said = QUOTED.sub("", line)
        for word, instead in WORDS.items():
            if hit := re.search(word, said):
                yield f"{number}: `{hit[0]}`, say {instead}"


def texts() -> dict[str, str]:
    files = [f for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*"))]
    files += sorted(ROOT.glob("*.md"))
    return {
        name: f.read_text(encoding="utf-8")
        for f in files
        if f.suffix in SUFFIXES and f.is_file()
        if not (name := str(f.relative_to(ROOT))).startswith(EXCEPT)
    }


def test_no_riddle_and_no_word_that_was_replaced() -> None:
    sources = texts()
    assert len(sources) > 500
    hits = [f"{name}:{what}" for name, text in sources.items() for what in found(text)]
    assert "\n".join(hits) == ""


def test_no_name_is_made_of_a_word_that_was_replaced() -> None:
    sources = {
        name: text
        for name, text in texts().items()
        if name.startswith("atfnd/") and Path(name).suffix in {".py", ".pyi", ".c", ".h"}
    }
    assert len(sources) > 250
    hits = [
        f"{name}:{what}"
        for name, text in sources.items()
        for what in misnamed(text, Path(name).suffix)
    ]
    assert "\n".join(hits) == ""


@pytest.mark.parametrize(
    ("line", "suffix"),
    [
        ("told_cpu = 1", ".py"),
        ("class ToldOf: ...", ".py"),
        ("self._let_go(key)", ".py"),
        ("from atfnd.engine.filters import stray_rules", ".py"),
        ("count = table.rules_in(nic)", ".py"),
        ("class Unruled: ...", ".py"),
        ("__u32 mask_rules[2]; /* filters by mask */", ".h"),
        ("static __u32 told_cpu;", ".c"),
        ("NIC_RULES", ".h"),
    ],
)
def test_each_name_is_found(line: str, suffix: str) -> None:
    assert len(list(misnamed(f"first = 1\n{line}\n", suffix))) == 1


@pytest.mark.parametrize(
    ("line", "suffix"),
    [
        ("rule_name = flow.rule_name  # told_cpu", ".py"),
        ('"mask_rules"', ".py"),
        ("answers: PortRules", ".py"),
        ("/* told_cpu */ int cpu;", ".c"),
        ("ETHTOOL_GRXCLSRULE = 0x2F", ".py"),
        ("overrule(sockets, this_history)", ".py"),
    ],
)
def test_other_names_are_not(line: str, suffix: str) -> None:
    assert list(misnamed(f"{line}\n", suffix)) == []


@pytest.mark.parametrize(
    "line",
    [
        '"""The daemon is told of each socket."""',
        "# nobody was told yet",
        "It ends when whoever asked goes away.",
        "told = nic.filters()",
        "def is_told(self) -> bool:",
        "hold.let_go()",
        "# another program changed it: we let go of it",
        "the administrator has his way",
        "# his filter stays",
        "Who listens there gets the queue.",
        "# sent by who reads",
        "every knob is journaled",
        "a phantom is deleted",
        "the machine with the kernel in its hands",
        "by_hand = commands(plan)",
        "living = lookup(key)",
        "the NIC delivers elsewhere all the same",
        'f"{nic}: no rule catches it; RSS sends it to queue 1."',
        '"it is paused: our rules are out"',
        "# a rule of ours at this location",
    ],
)
def test_each_is_found(line: str) -> None:
    assert len(list(found(f"first\n{line}\n"))) >= 1


@pytest.mark.parametrize(
    "line",
    [
        '"knob": "setting",',
        "any user who may forward ports by ssh",
        "newcomer = None if who is None else table.get(who)",
        "the rule of the policy that steers it",
        "the kernel hands its packets on",
    ],
)
def test_plain_words_are_not(line: str) -> None:
    assert list(found(line)) == []
