# SPDX-License-Identifier: GPL-2.0-or-later
"""The files that package atfnd agree with each other, with the unit and with `make install-tree`.

Reads files, and what `make -n` prints. Builds nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from atfnd import __version__
from docs.copyright import licences

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
ROLE = PACKAGING / "ansible"
SPEC = (PACKAGING / "atfnd.spec").read_text()
CONTAINERFILE = (PACKAGING / "Containerfile").read_text()
UNIT = (ROOT / "atfnd.service").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# As on Fedora and EL, where sbin is a folder of its own.
MACROS = {
    "_prefix": "/usr",
    "_bindir": "/usr/bin",
    "_sbindir": "/usr/sbin",
    "_datadir": "/usr/share",
    "_mandir": "/usr/share/man",
    "_sysconfdir": "/etc",
    "_unitdir": "/usr/lib/systemd/system",
    "_sysusersdir": "/usr/lib/sysusers.d",
}
PLACES = ["DESTDIR=/D", "PREFIX=/usr", "SYSCONFDIR=/etc", f"UNITDIR={MACROS['_unitdir']}"]
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def dry(target: str, *options: str) -> str:
    """What make would run for the target. With `-B`, also what is done already."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    words = ["make", "-n", *options, "--no-print-directory", target, *PLACES]
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def removed() -> set[str]:
    """What `make uninstall` removes: all that `make install-tree` installs but for /etc/atfnd, as
    tests/cli/test_install.py shows."""
    lines = re.findall(r"^rm -r?f (.*)", dry("uninstall"), re.MULTILINE)
    said = subprocess.run(
        ["bash", "-c", f"set -f; printf '%s\\n' {' '.join(lines)}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.removeprefix("/D") for line in said.split()}


def configured() -> set[str]:
    """What `make install-tree` installs below /etc: folders and files."""
    recipe = dry("install-tree")
    [folders] = re.findall(r"^install -d (/D/etc/.*)", recipe, re.MULTILINE)
    copies = re.findall(r"^cp -n (\S+) (/D/etc/\S+)", recipe, re.MULTILINE)
    files = {f"{to}{Path(name).name}" if to.endswith("/") else to for name, to in copies}
    return {each.removeprefix("/D") for each in {*folders.split(), *files}}


def in_spec() -> set[str]:
    """The paths of the spec's %files, without directives and macros."""
    [section] = re.findall(r"^%files\n(.*?)^%changelog", SPEC, re.DOTALL | re.MULTILINE)
    lines = [line for line in section.splitlines() if line and not line.startswith("%license")]
    paths = [re.sub(r"^%(?:doc|dir|config\(noreplace\)) ", "", line) for line in lines]
    return {re.sub(r"%\{(\w+)\}", lambda found: MACROS[found[1]], path) for path in paths}


def capabilities(words: str) -> list[str]:
    return sorted(word.removeprefix("CAP_") for word in re.split(r"[\s,]+", words.strip()))


def plain(version: str) -> str:
    """1.0.0~rc1 (Debian, RPM), 1.0.0rc1 (Python) and 1.0.0-rc1 (tags) are one version."""
    return re.sub(r"[~-]", "", version)


def tag(name: str) -> str:
    [value] = re.findall(rf"^{name}:\s+(.*)", SPEC, re.MULTILINE)
    return str(value)


def versions(root: Path) -> dict[str, str]:
    """Each place of a tree where its version stands, and how it is spelled there. Debian's revision
    is left out."""
    package = (root / "atfnd/__init__.py").read_text()
    spec = (root / "packaging/atfnd.spec").read_text()
    debian = (root / "debian/changelog").read_text()
    [archive] = set(re.findall(r"atfnd-([\w.~]+?)(?:\.tar\.gz|/)", spec))
    return {
        "package": re.findall(r'^__version__ = "(.*)"$', package, re.MULTILINE)[0],
        "project": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"],
        "debian": re.findall(r"\Aatfnd \((.*?)(?:-\d+)?\)", debian)[0],
        "spec": re.findall(r"^Version: +(\S+)$", spec, re.MULTILINE)[0],
        "archive": archive,
        "spec's log": re.findall(r"^%changelog\n\* .* - (\S+)-\d+$", spec, re.MULTILINE)[0],
    }


def test_the_version_is_the_same_everywhere() -> None:
    said = versions(ROOT)
    assert said["package"] == __version__
    assert {plain(version) for version in said.values()} == {plain(__version__)}


def test_the_changelog_begins_with_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## (\S+) - (unreleased|\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert len(heads) == text.count("\n## ") >= 1
    assert plain(heads[0][0]) == plain(__version__)
    assert all(date != "unreleased" for _, date in heads[1:])
    assert set(re.findall(r"^### (.*)", text, re.MULTILINE)) <= SECTIONS


def test_the_container_has_the_capabilities_of_the_unit() -> None:
    [bounding] = re.findall(r"^CapabilityBoundingSet=(.*)", UNIT, re.MULTILINE)
    [added] = re.findall(r"--cap-add (\S+)", CONTAINERFILE)
    assert "--cap-drop all " in CONTAINERFILE
    assert capabilities(added) == capabilities(bounding)
    named = re.findall(r"^#   ([A-Z_]{3,}) +\S", CONTAINERFILE, re.MULTILINE)
    assert sorted(named) == capabilities(bounding)


def test_the_container_mounts_what_the_unit_keeps() -> None:
    mounts = re.findall(r"-v (\S+?):(\S+?)(?::ro)?(?= )", CONTAINERFILE)
    assert all(host == inside for host, inside in mounts)
    needed = {"/etc/atfnd", "/run/atfnd", "/sys", "/sys/fs/cgroup", "/var/lib/atfnd"}
    assert needed <= {host for host, _ in mounts}
    for word in ("RuntimeDirectory", "StateDirectory", "ConfigurationDirectory"):
        assert f"\n{word}=atfnd\n" in UNIT


def test_the_container_runs_what_the_unit_runs() -> None:
    lines = [line for line in CONTAINERFILE.splitlines() if line and not line.startswith("#")]
    text = re.sub(r" \\\n", " ", "\n".join(lines))
    instructions = [line.partition(" ")[::2] for line in text.splitlines()]
    assert [name for name, _ in instructions] == [
        "FROM",
        "COPY",
        "RUN",
        "STOPSIGNAL",
        "ENTRYPOINT",
        "CMD",
    ]
    words = [yaml.safe_load(value) for name, value in instructions if name in ("ENTRYPOINT", "CMD")]
    [started] = re.findall(r"^ExecStart=/usr/local(.*)", UNIT, re.MULTILINE)
    assert ["/usr" + started.split()[0], *started.split()[1:]] == [*words[0], *words[1]]


def test_the_spec_lists_what_is_installed() -> None:
    installed = removed() | configured()
    listed = in_spec()
    assert len(installed) > 15
    found = {path for path in installed if any(fnmatch(_page(path), _page(p)) for p in listed)}
    assert installed - found == set()
    used = {p for p in listed if any(fnmatch(_page(path), _page(p)) for path in installed)}
    assert listed - used == {"/etc/atfnd"}  # their folder


def _page(path: str) -> str:
    """A man page without its folder, which `make uninstall` does not name."""
    return re.sub(r"/man[\d?]/", "/man/", path)


def test_the_spec_installs_by_the_makefile_and_names_its_unit() -> None:
    assert "\nmake install-tree DESTDIR=%{buildroot} PREFIX=%{_prefix} " in SPEC
    for macro in ("post", "preun", "postun_with_restart"):
        assert f"\n%systemd_{macro} atfnd.service\n" in SPEC
    assert tag("Summary") == PROJECT["description"]


def test_the_spec_names_the_packages_that_are_brought_along() -> None:
    named = {re.split(r"[<>=]", each)[0].lower() for each in PROJECT["dependencies"]}
    bundled = re.findall(r"^Provides:\s+bundled\(python3dist\((.*)\)\)", SPEC, re.MULTILINE)
    assert sorted(bundled) == sorted(named)
    security = (ROOT / "SECURITY.md").read_text().lower()
    assert [name for name in sorted(named) if name not in security] == []


def test_what_the_readme_leads_to_is_installed() -> None:
    """Its links are not dead below /usr/share/doc/atfnd."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text())
    [patterns] = re.findall(r"for each in (README\.md .*?);", (ROOT / "Makefile").read_text())
    installed = {file for each in patterns.split() for file in ROOT.glob(each)}
    assert [link for link in links if ROOT / link not in installed] == []


def brought(folder: Path, name: str, license: str, *texts: str) -> None:
    """A Python package as pip installs it below `folder`."""
    info = folder / f"usr/lib/atfnd/{name}-1.0.dist-info"
    for text in texts:
        (info / text).parent.mkdir(parents=True, exist_ok=True)
        (info / text).write_text("You may.\n")
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{license}\n\nAbout it.\n")


def test_the_copyright_file_names_each_package_that_is_brought_along(tmp_path: Path) -> None:
    brought(tmp_path, "atfnd", "License-Expression: GPL-2.0-or-later", "licenses/LICENSE")
    brought(tmp_path, "left", "License-Expression: MIT", "licenses/LICENSE", "licenses/NOTICE")
    brought(tmp_path, "right", "Classifier: License :: OSI Approved :: ISC License", "COPYING")
    folder = "/usr/lib/atfnd"
    assert list(licences(tmp_path, folder)) == [
        "left 1.0: MIT",
        f"  {folder}/left-1.0.dist-info/licenses/LICENSE",
        f"  {folder}/left-1.0.dist-info/licenses/NOTICE",
        "right 1.0: ISC License",
        f"  {folder}/right-1.0.dist-info/COPYING",
    ]


def test_a_package_without_the_text_of_its_licence_is_refused(tmp_path: Path) -> None:
    brought(tmp_path, "bare", "License-Expression: MIT")
    with pytest.raises(ValueError, match="no file with its licence"):
        list(licences(tmp_path, "/usr/lib/atfnd"))


def test_the_role_uses_its_variables_and_handlers() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    tasks = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    handlers = yaml.safe_load((ROLE / "handlers/main.yml").read_text())
    text = "".join((ROLE / f"{name}/main.yml").read_text() for name in ("tasks", "handlers"))
    assert set(re.findall(r"\batfnd_\w+", text)) == set(defaults)
    assert {task["notify"] for task in tasks if "notify" in task} == {
        handler["name"] for handler in handlers
    }
    for task in tasks:  # what runs a command says that it changes nothing
        assert "ansible.builtin.command" not in task or task["changed_when"] is False
    order = [task["name"] for task in tasks]
    assert order.index("Place the policy files") < order.index("Check the policy")
    assert order.index("Check the policy") < order.index("Enable and start the service")


def test_installing_needs_nothing_that_only_tests_need() -> None:
    for target in ("install", "deb", "man"):
        ran = dry(target, "-B")
        for each in ("chromium", "zsh fish", "iperf3", "pytest", "mypy", "bench/extension"):
            assert each not in ran, (target, each)
    assert "chromium" in dry("setup", "-B")


def test_without_apt_it_says_what_is_needed(tmp_path: Path) -> None:
    for name in ("bash", "mkdir", "touch"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    done = subprocess.run(
        ["/usr/bin/make", "-s", "build/.apt"], cwd=tmp_path, env={"PATH": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no apt here; needed: clang gcc")
    assert (tmp_path / "build/.apt").exists()
