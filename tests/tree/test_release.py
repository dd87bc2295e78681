# SPDX-License-Identifier: GPL-2.0-or-later
"""`make release`, in a repository of its own that has the files in which the version stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.release import Refusal, Release
from tests.tree.test_packaging import versions

ROOT = Path(__file__).parents[2]
FILES = (
    "CHANGELOG.md",
    "Makefile",
    "atfnd/__init__.py",
    "debian/changelog",
    "debian/control",
    "docs/__init__.py",
    "docs/release.py",
    "packaging/atfnd.spec",
    "pyproject.toml",
)
NEWS = "# Changelog\n\n## 7.0.0-rc1 - unreleased\n\n### Added\n\n- All.\n"
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{role}_NAME": "Somebody" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "somebody@atfnd.example" for role in ("AUTHOR", "COMMITTER")},
}


def ran(tree: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    usual = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "MAKE", "MFLAGS"))}
    return subprocess.run(words, cwd=tree, env=usual | GIT | more, capture_output=True, text=True)


def git(tree: Path, *words: str) -> str:
    done = ran(tree, "git", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip()


def release(tree: Path, version: str, **more: str) -> subprocess.CompletedProcess[str]:
    words = ("make", "-s", "release", f"VERSION={version}", f"PYTHON={sys.executable} -B")
    return ran(tree, *words, **more)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    for name in FILES:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, made / name)
    (made / "CHANGELOG.md").write_text(NEWS)
    control = made / "debian/control"
    control.write_text(re.sub("<.*>", "<somebody@atfnd.invalid>", control.read_text()))
    git(made, "init", "-q", "-b", "main")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "Begin")
    return made


def refusal(tree: Path, version: str, **more: str) -> str:
    """Why there is no release; nothing was changed."""
    before = git(tree, "rev-parse", "HEAD"), git(tree, "status", "--porcelain"), git(tree, "tag")
    done = release(tree, version, **more)
    assert done.returncode == 2
    after = git(tree, "rev-parse", "HEAD"), git(tree, "status", "--porcelain"), git(tree, "tag")
    assert after == before
    [said] = re.findall(r"^no release: (.*)", done.stderr, re.MULTILINE)
    return str(said)


def test_a_candidate_and_then_its_version_are_written_committed_and_tagged(tree: Path) -> None:
    done = release(tree, "7.0.0rc1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "tagged v7.0.0-rc1; to publish it: git push --follow-tags\n"
    said = versions(tree)
    assert {said.pop("package"), said.pop("project")} == {"7.0.0rc1"}
    assert {*said.values()} == {"7.0.0~rc1"}
    assert (tree / "debian/changelog").read_text().startswith("atfnd (7.0.0~rc1-1) bookworm;")
    log = tree / "CHANGELOG.md"
    assert re.search(r"^## 7\.0\.0-rc1 - \d{4}-\d\d-\d\d$", log.read_text(), re.M)
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "cat-file", "-t", "v7.0.0-rc1") == "tag"
    assert git(tree, "rev-parse", "v7.0.0-rc1^{commit}") == git(tree, "rev-parse", "HEAD")
    assert git(tree, "log", "--format=%s") == "Release 7.0.0-rc1\nBegin"
    assert refusal(tree, "7.0.0rc1") == "there is a tag v7.0.0-rc1"
    entry = "# Changelog\n\n## 7.0.0 - unreleased\n"
    log.write_text(log.read_text().replace("# Changelog\n", entry))
    git(tree, "commit", "-q", "-a", "-m", "Say what is new")
    assert release(tree, "7.0.0").returncode == 0
    assert set(versions(tree).values()) == {"7.0.0"}
    heads = re.findall(r"^atfnd \((.*)\)", (tree / "debian/changelog").read_text(), re.MULTILINE)
    assert heads[:2] == ["7.0.0-1", "7.0.0~rc1-1"]


def test_a_maintainer_has_to_exist(tree: Path) -> None:
    control = tree / "debian/control"
    control.write_text(re.sub("<.*>", "<maintainers@atfnd.example>", control.read_text()))
    git(tree, "commit", "-q", "-a", "-m", "Name nobody")
    assert "receives no mail: name somebody in debian/control" in refusal(tree, "7.0.0rc1")


def test_the_tree_has_to_be_clean(tree: Path) -> None:
    (tree / "new").touch()
    assert refusal(tree, "7.0.0rc1") == "the tree is not clean:"


@pytest.mark.parametrize("version", ["7.0.0rc2", "7.0.0", "7.0.1"])
def test_the_changelog_has_to_begin_with_its_entry(tree: Path, version: str) -> None:
    head = f"## {Release.of(version).semantic} - unreleased"
    assert refusal(tree, version) == f"the first entry of CHANGELOG.md is not `{head}`"


def test_a_commit_that_git_refuses_changes_nothing(tree: Path) -> None:
    hook = tree / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    hook.chmod(0o755)
    assert refusal(tree, "7.0.0rc1") == "git commit: not today"


@pytest.mark.parametrize("text", ["", "1.0", "1.0.0rc", "1.0.0rc0", "1.0.0b1", "1.0.0~rc1-1", "x"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(Refusal, match="no version: "):
        Release.of(text)
