# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU and kernels of Debian, downloaded by apt and unpacked beside the system: the cache.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from atfnd.errors import OperatorError

__all__ = ["KERNELS", "Parts", "irqbalance", "parts", "programs", "servers"]
__all__ += ["unpacked"]

BOOKWORM = """\
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
TRIXIE = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie trixie-backports
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
APT::Default-Release "/-backports$/";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Debug::NoLocking "true";
"""
# What a machine says about how to reach its mirrors, not what it gets from them.
HOW_TO_REACH = re.compile(r"Acquire::(https?::|Retries|ForceIPv|Check-)")
QEMU = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
# A program of another release's kbuild is run by the loader and the libraries of that release.
LIBRARIES = "usr/lib/x86_64-linux-gnu"
WRAPPER = """\
#!/bin/sh
exec {0}/ld-linux-x86-64.so.2 --argv0 "$0" --library-path {0} "$0.elf" "$@"
"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What Debian calls a kernel and its packages, and where these keep it. In the texts `{0}` is
    `uname -r`, and `{1}` the same without the flavour."""

    sources: str
    release: re.Pattern[str]
    package: str  # that has the kernel
    others: tuple[str, ...]
    image: str
    modules: str


# By the name that `--kernel` takes. The headers of both are used by this machine's compiler.
KERNELS = {
    "6.12": Kernel(
        BOOKWORM,
        re.compile(r"6\.12\.\d+\+deb12-amd64"),
        "linux-image-{0}",
        ("linux-headers-{0}", "linux-headers-{1}-common", "linux-kbuild-{1}"),
        image="boot/vmlinuz-{0}",
        modules="lib/modules/{0}",
    ),
    "newest": Kernel(
        TRIXIE,
        re.compile(r"\d+\.\d+\.\d+\+deb13-amd64"),
        "linux-binary-{0}",
        (
            *("linux-modules-{0}", "linux-headers-{0}", "linux-headers-{1}-common"),
            *("linux-kbuild-{1}", "libc6", "libelf1t64", "libzstd1", "zlib1g"),
        ),
        image="usr/lib/modules/{0}/vmlinuz",
        modules="usr/lib/modules/{0}",
    ),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """Two unpacked trees, QEMU's and a kernel's; `release` is the kernel's `uname -r`."""

    qemu: Path
    tree: Path
    kernel: Kernel
    release: str

    @property
    def image(self) -> Path:
        return self.tree / self.kernel.image.format(self.release)

    @property
    def modules(self) -> Path:
        return self.tree / self.kernel.modules.format(self.release)

    @property
    def headers(self) -> Path:
        return self.tree / "usr/src" / f"linux-headers-{self.release}"


def parts(name: str) -> Parts:
    """The cached parts with this one of KERNELS, downloaded when they are missing; several runs may
    ask at once. OperatorError: apt cannot get them."""
    cache, kernel = unpacked("guest"), KERNELS[name]
    if (found := _cached(cache, kernel)) is None:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in cache.glob("fetch-*"):  # by a run that was killed
                shutil.rmtree(left)
            if not (cache / "qemu").is_dir():
                _fetch_qemu(cache)
            if (found := _cached(cache, kernel)) is None:
                found = _fetch_kernel(cache, kernel)
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
            with _apt(cache.parent, BOOKWORM) as (apt, tree):
                _unpack(apt, tree, "install", *packages)
                tree.rename(cache)
    return cache


def _cached(cache: Path, kernel: Kernel) -> Parts | None:
    """A tree is whole when it has its name: it gets it by rename."""
    found = [path.name.removeprefix("kernel-") for path in cache.glob("kernel-*")]
    releases = list(filter(kernel.release.fullmatch, found))
    if not releases or not (cache / "qemu").is_dir():
        return None
    release = max(releases, key=_version)
    return Parts(cache / "qemu", cache / f"kernel-{release}", kernel, release)


def _fetch_qemu(cache: Path) -> None:
    print("guest: downloading QEMU", file=sys.stderr, flush=True)
    with _apt(cache, BOOKWORM) as (apt, tree):
        _unpack(apt, tree, "download", "busybox-static")
        # As for an installation: QEMU comes with the libraries that this machine lacks.
        _unpack(apt, tree, "install", *QEMU)
        tree.rename(cache / "qemu")


def _fetch_kernel(cache: Path, kernel: Kernel) -> Parts:
    with _apt(cache, kernel.sources) as (apt, tree):
        release = _newest(apt, kernel)
        print(f"guest: downloading Linux {release}", file=sys.stderr, flush=True)
        base = release.removesuffix("-amd64")
        packages = (each.format(release, base) for each in (kernel.package, *kernel.others))
        _unpack(apt, tree, "download", *packages)
        target = cache / f"kernel-{release}"
        made = Parts(cache / "qemu", tree, kernel, release)
        makefile = made.headers / "Makefile"
        above = "$(dir $(realpath $(lastword $(MAKEFILE_LIST)))).."
        makefile.write_text(makefile.read_text().replace("/usr/src", above))
        if (tree / LIBRARIES).is_dir():
            _wrap_programs(tree / "usr/lib" / f"linux-kbuild-{base}", target / LIBRARIES)
        _call(apt, "depmod", "-b", str(made.modules.parents[2]), release)
        tree.rename(target)
        return replace(made, tree=target)


def _wrap_programs(kbuild: Path, libraries: Path) -> None:
    for path in kbuild.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes().startswith(b"\x7fELF"):
            mode = path.stat().st_mode
            path.rename(f"{path}.elf")
            path.write_text(WRAPPER.format(libraries))
            path.chmod(mode)


@contextmanager
def _apt(folder: Path, sources: str) -> Iterator[tuple[dict[str, str], Path]]:
    """The environment that makes apt use a folder below this one, and nothing of the machine's but
    its proxies; and where to unpack. The lists are up to date."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as name:
        scratch = Path(name)
        for each in ("lists/partial", "archives/partial"):
            (scratch / each).mkdir(parents=True)
        reach = _call(dict(os.environ), "apt-config", "dump", "--no-empty", "Acquire").splitlines()
        kept = "\n".join(line for line in reach if HOW_TO_REACH.match(line))
        (scratch / "debian.sources").write_text(sources)
        (scratch / "apt.conf").write_text(APT_CONF.format(scratch) + kept + "\n")
        apt = {**os.environ, "APT_CONFIG": str(scratch / "apt.conf"), "LC_ALL": "C"}
        _call(apt, "apt-get", "-q", "update")
        yield apt, scratch / "tree"


def _newest(apt: dict[str, str], kernel: Kernel) -> str:
    """`uname -r` of the newest kernel; the first name a mirror happens to list may be years old."""
    prefix = kernel.package.format("")
    names = _call(apt, "apt-cache", "pkgnames", prefix).split()
    releases = filter(kernel.release.fullmatch, (name.removeprefix(prefix) for name in names))
    if (newest := max(releases, key=_version, default=None)) is None:
        raise OperatorError(f"Debian has no {prefix}{kernel.release.pattern}")
    return newest


def _version(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


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
