# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU and a Debian kernel, downloaded by apt and unpacked beside the system: the cache.

apt runs with a configuration, lists and archives of its own, so the machine's stay as they are; it
verifies the suites' signatures with Debian's keyring. man apt.conf, sources.list, apt-secure.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from atfnd.errors import OperatorError

__all__ = ["Parts", "irqbalance", "parts", "programs", "servers", "unpacked"]

SOURCES = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
APT_CONF = """\
Dir::Etc::Main "/dev/null";
Dir::Etc::Parts "/dev/null";
Dir::Etc::SourceList "{0}/debian.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "{0}/lists";
Dir::Cache "{0}";
APT::Architecture "amd64";
APT::Default-Release "bookworm-backports";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Debug::NoLocking "true";
"""
# What a machine says about how to reach its mirrors, not what it gets from them.
HOW_TO_REACH = re.compile(r"Acquire::(https?::|Retries|ForceIPv|Check-)")
QEMU = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
KERNEL = re.compile(r"linux-image-(6\.12\.(\d+)\+deb12-amd64)")


@dataclass(frozen=True, slots=True)
class Parts:
    """Two unpacked trees; `release` is the kernel's `uname -r`."""

    qemu: Path
    kernel: Path
    release: str

    @property
    def modules(self) -> Path:
        return self.kernel / "lib/modules" / self.release

    @property
    def headers(self) -> Path:
        return self.kernel / "usr/src" / f"linux-headers-{self.release}"


def parts() -> Parts:
    """The cached parts, downloaded when they are missing; several runs may ask at once.

    OperatorError: apt cannot get them.
    """
    cache = unpacked("guest")
    if (found := _cached(cache)) is None:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := _cached(cache)) is None:
                _fill(cache)
                found = _cached(cache)
    assert found is not None
    return found


def irqbalance() -> Path:
    """irqbalance, as `programs`."""
    return programs("irqbalance", "irqbalance")


def servers() -> Path:
    """nginx, memcached and unbound, as `programs`."""
    return programs("servers", "nginx", "memcached", "unbound")


def unpacked(name: str) -> Path:
    """Where `programs` keeps what it unpacks: a folder that is there once it has done so."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atfnd" / name


def programs(name: str, *packages: str) -> Path:
    """Programs with the libraries that this machine lacks, unpacked and cached; nothing is
    installed, for that would start them. OperatorError: apt cannot get them."""
    cache = unpacked(name)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (cache.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cache.is_dir():
            with tempfile.TemporaryDirectory(dir=cache.parent, prefix="fetch-") as scratch:
                apt = _apt(Path(scratch))
                _call(apt, "apt-get", "-q", "update")
                _unpack(apt, Path(scratch) / "tree", "install", *packages)
                (Path(scratch) / "tree").rename(cache)
    return cache


def _cached(cache: Path) -> Parts | None:
    """A tree is whole when it has its name: it gets it by rename."""
    kernels = [path for path in cache.glob("kernel-*") if path.is_dir()]
    if not kernels or not (cache / "qemu").is_dir():
        return None
    newest = max(
        kernels, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)]
    )
    return Parts(cache / "qemu", newest, newest.name.removeprefix("kernel-"))


def _fill(cache: Path) -> None:
    for left in cache.glob("fetch-*"):  # by a run that was killed
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as name:
        scratch = Path(name)
        print("guest: downloading QEMU and a kernel", file=sys.stderr, flush=True)
        apt = _apt(scratch)
        _call(apt, "apt-get", "-q", "update")
        release = _newest(_call(apt, "apt-cache", "pkgnames", "linux-image-6.12."))
        base = release.removesuffix("-amd64")
        headers = (f"linux-headers-{release}", f"linux-headers-{base}-common")
        kernel = (f"linux-image-{release}", *headers, f"linux-kbuild-{base}")
        _unpack(apt, scratch / "kernel", "download", *kernel)
        _unpack(apt, scratch / "qemu", "download", "busybox-static")
        # As for an installation: QEMU comes with the libraries that this machine lacks.
        _unpack(apt, scratch / "qemu", "install", *QEMU)
        made = Parts(cache / "qemu", scratch / "kernel", release)
        makefile = made.headers / "Makefile"
        above = "$(dir $(realpath $(lastword $(MAKEFILE_LIST)))).."
        makefile.write_text(makefile.read_text().replace("/usr/src", above))
        _call(apt, "depmod", "-b", str(made.kernel), release)
        for tree, target in (("qemu", cache / "qemu"), ("kernel", cache / f"kernel-{release}")):
            if not target.is_dir():
                (scratch / tree).rename(target)


def _apt(scratch: Path) -> dict[str, str]:
    """The environment that makes apt use `scratch` and nothing of the machine's but its proxies."""
    for folder in ("lists/partial", "archives/partial"):
        (scratch / folder).mkdir(parents=True)
    reach = _call(dict(os.environ), "apt-config", "dump", "--no-empty", "Acquire").splitlines()
    kept = "\n".join(line for line in reach if HOW_TO_REACH.match(line))
    (scratch / "debian.sources").write_text(SOURCES)
    (scratch / "apt.conf").write_text(APT_CONF.format(scratch) + kept + "\n")
    return {**os.environ, "APT_CONFIG": str(scratch / "apt.conf"), "LC_ALL": "C"}


def _newest(packages: str) -> str:
    """`uname -r` of the newest kernel; the first name a mirror happens to list may be years old."""
    found = [match for line in packages.split() if (match := KERNEL.fullmatch(line))]
    if not found:
        raise OperatorError("bookworm-security has no linux-image-6.12.*+deb12-amd64")
    return max(found, key=lambda match: int(match[2]))[1]


def _unpack(apt: dict[str, str], tree: Path, how: str, *packages: str) -> None:
    archives = Path(apt["APT_CONFIG"]).parent / "archives"
    for old in archives.glob("*.deb"):
        old.unlink()
    _call(apt, "apt-get", "-q", "-y", "--download-only", how, *packages, cwd=archives)
    for archive in archives.glob("*.deb"):
        _call(apt, "dpkg-deb", "-x", str(archive), str(tree))


def _call(environment: dict[str, str], *argv: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(argv, env=environment, cwd=cwd, capture_output=True, text=True)
    except FileNotFoundError:
        raise OperatorError(f"{argv[0]}: not installed", "make setup") from None
    if done.returncode:
        what = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        raise OperatorError(f"guest: {' '.join(argv[:3])} ...: {what}", "is the network there?")
    return done.stdout
