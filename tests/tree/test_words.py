# SPDX-License-Identifier: GPL-2.0-or-later
"""Words that the tree does not use: riddles, and names that were replaced.

What a person reads says subject, verb, object, with the kernel's noun. A word that was replaced
does not come back, except in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

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
