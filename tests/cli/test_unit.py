# SPDX-License-Identifier: GPL-2.0-or-later
"""The unit file, read by systemd's own tools: nothing in it is unknown, and it is confined."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/service.md"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """As installed, but for its programs, which systemd looks for."""
    text = (ROOT / "atfnd.service").read_text()
    text, programs = re.subn(r"/usr/local/s?bin/atfn\w+", "/bin/true", text)
    assert programs == 2
    made = tmp_path / "atfnd.service"
    made.write_text(re.sub(r"(?m)^Documentation=.*\n", "", text))
    return made


def test_systemd_knows_every_word_of_it(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_confined_and_the_page_says_why_no_further(unit: Path) -> None:
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager"]
    done = subprocess.run([*words, unit], capture_output=True, text=True, check=True)
    level = re.search(r"Overall exposure level for atfnd.service: ([\d.]+)", done.stdout)
    assert level is not None
    assert float(level[1]) < 3.0
    said = PAGE.read_text()
    assert f"says {level[1]}." in said
    done = subprocess.run(
        [*words, "--json=short", unit], capture_output=True, text=True, check=True
    )
    open_points = {row["name"] for row in json.loads(done.stdout) if row["exposure"]}
    explained = set(re.findall(r"^\| `([A-Z][^`]*)` \|", said.replace("\\|", "|"), re.MULTILINE))
    assert explained == open_points


def test_systemd_knows_every_setting_that_policies_and_pages_advise(tmp_path: Path) -> None:
    pages = [*ROOT.glob("policies/*.yaml"), *ROOT.glob("docs/**/*.md")]
    text = "\n".join(page.read_text() for page in pages)
    setting = r"(?<=`)[A-Z][A-Za-z]+=(?=[@A-Z\d])[^`~]+(?=`)"
    lines = set(re.findall(rf"AllowedCPUs=[\d,-]+|{setting}", text))
    assert {line.partition("=")[0] for line in lines} >= {"AllowedCPUs", "SystemCallFilter"}
    made = tmp_path / "advised.service"
    made.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *sorted(lines), ""]))
    units = [made]
    for name, unit in re.findall(r"^# /etc/systemd/system/(\S+)\n([^#`]+)", text, re.MULTILINE):
        units.append(tmp_path / name)
        units[-1].write_text(unit)
    assert len(units) == 3
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), lines
