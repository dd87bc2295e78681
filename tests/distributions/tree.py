# SPDX-License-Identifier: GPL-2.0-or-later
"""The distributions that are tried; a root tree of one, and commands run in it as root, by the
kernel of this machine.

A tree is made once, by mmdebstrap(1), and never written again: commands run in a layer over it, in
a mount namespace of their own. They see this machine's processes, devices and network, and its own
`/run`. overlayfs: Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atfnd.errors import OperatorError

__all__ = ["DISTRIBUTIONS", "RELEASER", "TIMED_OUT", "Distribution", "Tree", "logged"]

SHARED = "/trial"  # where a tree sees the folder `shared`
TIMED_OUT = 124  # as timeout(1)

_MMDEBSTRAP = ("mmdebstrap", "--mode=root")
_OPTIONS = (
    '--aptopt=APT::Install-Recommends "false"',
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=force-unsafe-io",
)
# $1 the tree, $2 the layer, $3 what is shared, then the words of the command.
_ENTER = f"""\
set -e
tree=$1 layer=$2 shared=$3 root=$2/root
shift 3
mkdir -p "$layer/upper" "$layer/work" "$root"
mount -t overlay -o "lowerdir=$tree,upperdir=$layer/upper,workdir=$layer/work" overlay "$root"
for each in proc dev sys; do mount --rbind "/$each" "$root/$each"; done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root{SHARED}"
mount --bind "$shared" "$root{SHARED}"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
exec chroot "$root" "$@"
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How this machine reaches package indexes; nothing else of its environment is passed on.
_REACH = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True)
class Distribution:
    """One release for amd64. `name` is a word of the command line, `title` is as in
    docs/support.md, `python` is what `/usr/bin/python3` is there."""

    name: str
    title: str
    python: str
    suite: str
    archive: str
    suites: tuple[str, ...]  # of `archive`, with the one that updates it
    components: str
    keyring: str  # a file of KEYRINGS

    def sources(self) -> tuple[str, ...]:
        """The lines of its sources.list."""
        return tuple(f"deb {self.archive} {suite} {self.components}" for suite in self.suites)


DEBIAN = "http://deb.debian.org/debian"
_UBUNTU = "http://archive.ubuntu.com/ubuntu"
# Packages with keyrings, and the release of Debian that has both.
KEYRINGS, KEYRINGS_OF = "debian-archive-keyring,ubuntu-archive-keyring", "trixie"

DISTRIBUTIONS = (
    Distribution(
        name="debian-12",
        title="Debian 12",
        python="3.11",
        suite="bookworm",
        archive=DEBIAN,
        suites=("bookworm", "bookworm-updates"),
        components="main",
        keyring="debian-archive-keyring.gpg",
    ),
    Distribution(
        name="debian-13",
        title="Debian 13",
        python="3.13",
        suite="trixie",
        archive=DEBIAN,
        suites=("trixie", "trixie-updates"),
        components="main",
        keyring="debian-archive-keyring.gpg",
    ),
    Distribution(
        name="ubuntu-24.04",
        title="Ubuntu 24.04",
        python="3.12",
        suite="noble",
        archive=_UBUNTU,
        suites=("noble", "noble-updates"),
        components="main universe",
        keyring="ubuntu-archive-keyring.gpg",
    ),
)

# Builds the wheel that all of them install: the oldest C library and the oldest Python.
RELEASER = DISTRIBUTIONS[0]


@dataclass(frozen=True, slots=True)
class Tree:
    """One distribution below `folder`: `tree`, `shared` and one folder for each layer."""

    distribution: Distribution
    folder: Path

    @property
    def shared(self) -> Path:
        """The folder that commands see as SHARED."""
        return self.folder / "shared"

    def make(self, log: Path, limit_s: float) -> int:
        """Download and unpack it, unless it is there; its layers end with an older one. Returns the
        exit code of mmdebstrap. OperatorError: it is not installed."""
        self.shared.mkdir(parents=True, exist_ok=True)
        if _CERTIFICATES.exists():
            shutil.copy(_CERTIFICATES, self.shared / "certificates")
        tree = self.folder / "tree"
        if tree.is_dir():
            return 0
        keyrings, it = self.folder.parent / "keyrings", self.distribution
        if not keyrings.is_dir():
            words = [*_MMDEBSTRAP, "--variant=extract", f"--include={KEYRINGS}", KEYRINGS_OF]
            if (code := _made(words, keyrings, (DEBIAN,), log, limit_s)) != 0:
                return code
        for left in self.folder.glob("layer-*"):
            shutil.rmtree(left)
        keyring = f"--keyring={keyrings}/usr/share/keyrings/{it.keyring}"
        words = [*_MMDEBSTRAP, "--variant=minbase", "--include=apt", keyring, *_OPTIONS, it.suite]
        return _made(words, tree, it.sources(), log, limit_s)

    def run(self, layer: str | None, script: str, log: Path, limit_s: float) -> int:
        """Run a shell script of `shared` in this layer, or on the bare tree. Writes what it says to
        `log`. Returns its exit code, TIMED_OUT after `limit_s`."""
        folder = self.folder / f"layer-{layer or script}"
        if layer is None:
            shutil.rmtree(folder, ignore_errors=True)
        places = [self.folder / "tree", folder, self.shared]
        words = ["unshare", "--mount", "bash", "-c", _ENTER, "enter", *map(str, places)]
        words += ["bash", "-eux", f"{SHARED}/{script}.sh"]
        return logged(words, self._environment(), log, limit_s)

    def _environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _REACH if name in os.environ}
        if (self.shared / "certificates").exists():
            passed["PIP_CERT"] = f"{SHARED}/certificates"
        return passed | {
            "PATH": _PATH,
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            "PIP_ROOT_USER_ACTION": "ignore",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "EXPECTED_PYTHON": self.distribution.python,
        }


def _made(
    words: Sequence[str], tree: Path, sources: Sequence[str], log: Path, limit_s: float
) -> int:
    """A tree is whole when it has its name: it gets it by rename."""
    partial = tree.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)
    code = logged([*words, str(partial), *sources], dict(os.environ), log, limit_s)
    if code == 0:
        partial.rename(tree)
    return code


def logged(words: Sequence[str], environment: Mapping[str, str], log: Path, limit_s: float) -> int:
    """Run it in a process group of its own, which ends with it; `log` gets what it says. Returns
    its exit code, TIMED_OUT after `limit_s`. OperatorError: there is no such program."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError:
            hint = "make test-distributions installs it"
            raise OperatorError(f"{words[0]}: not installed", hint) from None
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
