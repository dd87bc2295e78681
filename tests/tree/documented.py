# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands that the documents tell a reader to type: the lines of their blocks ```sh.

Each is run by tests/daemon/test_typed_commands.py, or is in `NOT_RUN` with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from atfnd.cli.commands import app as atfnd
from atfnd.ctl.top.verb import app as atfnctl
from docs.examples import EXAMPLES

__all__ = [
    "DOCUMENTS",
    "NOT_RUN",
    "PAGES",
    "by_page",
    "inline",
    "parsed",
    "reason",
    "runs",
    "typed",
    "unmarked",
]

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(ROOT.glob("docs/**/*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCUMENTS, *ROOT.glob("tests/guest/**/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:atfnd|atfnctl) [a-z][^`\n]*)`")
# What is quoted stays whole, and so does a loop; a comment goes; a line is cut at `;` and `&&`.
PART = re.compile(
    r"""(?P<whole>'[^'\n]*'|"[^"\n]*"|^for[ ](?s:.*?)\bdone$)
    |(?:^|[ ]+)\#[^\n]*
    |[ ]*(?P<end>;|&&)[ ]*""",
    re.MULTILINE | re.VERBOSE,
)

RUN = re.compile(r"(?:(?:atfnd|atfnctl) [a-z]|(?:curl|ip netns exec lab-\w+|kill|wait) )")
# By how the command begins: why no test types it on the lab.
NOT_RUN = {
    "make ": "builds, installs or tests; tests/cli/test_install.py has the installation",
    ". .venv/": "the test has the programs of the virtual environment",
    ".venv/bin/pip ": "installs a package",
    ".venv/bin/python -m ": "of a guest: tests/test_guest.py starts one",
    "ls build/": "shows what `make deb` has built",
    "apt-get ": "installs a package: tests/guest/test_systemd.py has it",
    "systemctl ": "of the service: tests/guest/test_systemd.py",
    "journalctl ": "of the service: tests/guest/test_systemd.py",
    "usermod ": "changes a user of the machine",
    "install -m 644 ": "writes to /etc of the machine",
    "ethtool ": "of a NIC of hardware",
    "atfnctl explain --pair ": "the lab forwards nothing: tests/serve/test_explain_pair.py",
    "ip link ": "of a NIC of hardware",
    "for queue in /sys/class/net/": "settings of a NIC of hardware",
    "tuned-adm ": "another program, which is not here",
    "sysctl ": "shows settings of the machine",
    "perftune.py ": "another program, which is not here",
    "./run": "measures for minutes: `make test-distributions`",
    "./your-script ": "the reader's own",
    "NIC=": "a name for the commands below; the test has its own",
    "export ATFND_SOCKET=": "a name for the commands below; the test has its own",
    "python3 -m venv /opt/atfnd": "installs: tests/distributions has it",
    "/opt/atfnd/bin/": "the same",
    "ssh ": "of another machine",
    "atfnd check --for-host ": "with facts of another machine: tests/cli/test_doctor_alone.py",
    "atfnd run --nic 'en*'": "observes the NICs of the machine until Ctrl-C",
}


def typed(text: str) -> list[str]:
    """The commands of a page, one by one: a line may have several. A pipe is one command, and so is
    a loop."""

    def cut(part: re.Match[str]) -> str:
        if part["whole"]:
            return part["whole"].replace("\n", " ")
        return "\n" if part["end"] else ""

    cut_up = "".join(
        PART.sub(cut, block) for language, block in BLOCK.findall(text) if language == "sh"
    )
    return [line.strip() for line in cut_up.splitlines() if line.strip()]


def inline(text: str) -> list[str]:
    """The commands of `atfnd` and `atfnctl` in its sentences and tables. Square brackets are around
    what may be left out."""
    said = INLINE.findall(BLOCK.sub("", text))
    return typed("".join(f"```sh\n{re.sub(r'[][]', '', each)}\n```\n" for each in said))


def unmarked(text: str) -> list[str]:
    """First lines of blocks that begin with a command, and do not say that they are `sh`."""
    blocks = [body for language, body in BLOCK.findall(text) if not language]
    firsts = [body.partition("\n")[0] for body in blocks]
    return [line for line in firsts if RUN.match(line) or reason(line) is not None]


def by_page() -> dict[str, list[str]]:
    """Of each page that has some, and of the man pages."""
    found = {str(page.relative_to(ROOT)): typed(page.read_text()) for page in PAGES}
    for name, examples in EXAMPLES.items():
        block = "\n".join(line for lines in examples.values() for line in lines)
        found[name] = typed(f"```sh\n{block}\n```\n")
    return {name: lines for name, lines in found.items() if lines}


def reason(command: str) -> str | None:
    """Why a command is not run; None: `NOT_RUN` does not have it."""
    return next((why for begin, why in NOT_RUN.items() if command.startswith(begin)), None)


def runs(command: str) -> bool:
    """A test runs it."""
    return reason(command) is None and RUN.match(command) is not None


def parsed(program: str, words: list[str]) -> None:
    """Have the parser of `atfnd` or `atfnctl` take these words. KeyError: there is no such verb;
    click.UsageError: no such option, or a word is missing."""
    command: Any = get_command({"atfnd": atfnd, "atfnctl": atfnctl}[program])
    rest = iter(words)
    while hasattr(command, "commands"):
        command = command.commands[next(rest)]
    command.make_context(command.name, list(rest))
