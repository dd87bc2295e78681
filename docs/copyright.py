# SPDX-License-Identifier: GPL-2.0-or-later
"""The copyright file of the Debian package: debian/copyright, and the licence of each Python
package that is installed beside atfnd, with the file that has its text.

    python -m docs.copyright DESTDIR LIB >FILE

LIB is the folder of the Python packages below DESTDIR, as `/usr/lib/atfnd`. Reads their metadata.
Core metadata: https://packaging.python.org/specifications/core-metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

__all__ = ["licences", "main"]

COPYRIGHT = Path(__file__).parents[1] / "debian/copyright"
OURS = "atfnd"
TEXTS = ("LICEN[CS]E*", "COPYING*", "NOTICE*", "AUTHORS*")
CLASSIFIER = "License :: OSI Approved :: "


def licences(destdir: Path, lib: str) -> Iterator[str]:
    """A line for each package, and below it one for each file with its licence. ValueError: a
    package has no such file."""
    folder = destdir / lib.lstrip("/")
    for metadata in sorted(folder.glob("*.dist-info/METADATA"), key=lambda file: str(file).lower()):
        said = HeaderParser().parsestr(metadata.read_text(encoding="utf-8"))
        if said["Name"] == OURS:
            continue
        texts = sorted({f for text in TEXTS for f in metadata.parent.rglob(text) if f.is_file()})
        if not texts:
            raise ValueError(f"{metadata.parent.name}: no file with its licence")
        yield f"{said['Name']} {said['Version']}: {_licence(said)}"
        yield from (f"  /{text.relative_to(destdir)}" for text in texts)


def _licence(said: Message) -> str:
    """As its metadata names it."""
    classifiers = [
        each.removeprefix(CLASSIFIER)
        for each in said.get_all("Classifier", [])
        if each.startswith(CLASSIFIER)
    ]
    named = said["License-Expression"] or ", ".join(classifiers) or said["License"]
    return str(named or "see there").splitlines()[0]


def main(destdir: str, lib: str) -> None:
    print(COPYRIGHT.read_text(encoding="utf-8").rstrip())
    print(" .")
    for line in licences(Path(destdir), lib):
        print(f" {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
