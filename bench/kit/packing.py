# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m bench.kit.packing`: make build/kit, the folder that runs on somebody else's machine.

In it are the servers that benches unpack, iproute2 and ethtool of this machine,
every library that they need but the C library, and the Python packages that atfnd needs, for each
version of Python. pip downloads the latter, in the versions of this machine's environment
(build/constraints), as manylinux wheels. Programs find their libraries by an RPATH relative to
themselves (patchelf(1)), so nothing that the machine runs is given them. OperatorError: something
needs a C library that is newer than Debian 12's.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from atfnd.errors import OperatorError
from bench.bed import succeed
from bench.ending import ended_in_order
from bench.servers import PACKAGES, PACKED
from bench.traffic.requests import built
from tests.guest.fetch import programs

__all__ = ["FOLDER", "MOST_BYTES", "main", "merge", "needed", "newest_glibc", "packed", "size"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/kit"
WHEELS, CONSTRAINTS = ROOT / "build/wheels", ROOT / "build/constraints"
MOST_BYTES = 60 << 20
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
GLIBC = 36  # 2.36, of Debian 12
SERVERS = ("usr/sbin/nginx", "usr/bin/redis-server", "usr/bin/memcached")
TOOLS = ("ip", "ss", "ethtool")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
OF_GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl))\.so\.\d+")
UNUSED = (  # the last ones are for languages, which nothing of ours highlights
    "*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "_testcapi*", "bin", "__pycache__",
    "pygments/lexers/[a-z]*.py",
)  # fmt: skip


def packed(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    python, tree = folder / "python", folder / "programs"
    python.mkdir(parents=True)
    _add_packages(python)
    _add_benches(python)
    tools = list(_add_programs(tree))
    extensions = list(python.rglob("_b*.abi3.so"))  # ours
    libraries = _add_libraries(tree / LIBRARIES, [*tools, *extensions])
    for each in [*tools, *extensions]:
        beside = os.path.relpath(tree / LIBRARIES, each.parent)
        succeed(_patchelf(), "--force-rpath", "--set-rpath", f"$ORIGIN/{beside}", str(each))
    _add_words(folder, libraries)
    for each in sorted({*tools, *python.rglob("*.so"), *(tree / LIBRARIES).iterdir()}):
        succeed("strip", "--strip-unneeded", str(each))
        if (newest := newest_glibc(each.read_bytes())) > GLIBC:
            name = each.relative_to(folder)
            raise OperatorError(f"{name} needs glibc 2.{newest}", "make the kit on Debian 12")


def _patchelf() -> str:
    return str(Path(sys.executable).with_name("patchelf"))


def _add_packages(python: Path) -> None:
    """Those of all versions: what is compiled for one of them has a name of its own."""
    for version in PYTHONS:
        target = python.with_name(f"python{version}")
        words = ["install", "-q", "--disable-pip-version-check", "--root-user-action", "ignore"]
        words += ["--no-compile", "--only-binary", ":all:", "--python-version", version]
        words += ["--implementation", "cp", "--constraint", str(CONSTRAINTS)]
        words += ["--find-links", str(WHEELS), "--target", str(target)]
        for each in (*PLATFORMS, "linux_x86_64"):  # the last one: our own wheel
            words += ["--platform", each]
        succeed(sys.executable, "-m", "pip", *words, "atfnd")
        merge(target, python)
        shutil.rmtree(target)
    for name in UNUSED:
        for unused in list(python.rglob(name)):
            shutil.rmtree(unused) if unused.is_dir() else unused.unlink()


def merge(source: Path, target: Path) -> None:
    """Copy the files that the target has not. OperatorError: it has another one of the same name,
    and not only in what pip wrote about a package."""
    for each in source.rglob("*"):
        copy = target / each.relative_to(source)
        if each.is_dir():
            continue
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, copy)
        elif not filecmp.cmp(each, copy, shallow=False) and ".dist-info" not in str(copy):
            name = each.relative_to(source)
            raise OperatorError(f"{name} differs between versions of Python", exit_code=1)


def _add_benches(target: Path) -> None:
    """The benches, and what they use of the tests."""
    wanted = [*ROOT.glob("bench/**/*.py"), *ROOT.glob("bench/extension/*.so")]
    wanted += [ROOT / "bench/machine.json", ROOT / "tests/__init__.py"]
    wanted += [ROOT / f"tests/guest/{name}.py" for name in ("__init__", "fetch")]
    for each in wanted:
        copy = target / each.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each, copy)


def _add_programs(tree: Path) -> Iterator[Path]:
    """Their copies."""
    unpacked = programs(PACKED, *PACKAGES)
    found = {name: unpacked / name for name in SERVERS}
    for name in TOOLS:
        found[f"usr/bin/{name}"] = _tool(name)
    for name, path in found.items():
        copy = tree / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        yield copy
    yield built(tree)


def _tool(name: str) -> Path:
    if (path := shutil.which(name)) is None:
        raise OperatorError(f"{name}: not installed", "make setup")
    return Path(path)


def _add_libraries(target: Path, files: Iterable[Path]) -> set[Path]:
    """Copies of what they need, by the names that they ask for; where that came from."""
    target.mkdir(parents=True)
    unpacked = programs(PACKED, *PACKAGES)
    paths = ":".join(str(unpacked / each) for each in (LIBRARIES, "lib/x86_64-linux-gnu"))
    found: dict[str, Path] = {}
    for each in files:
        found |= needed(succeed("env", f"LD_LIBRARY_PATH={paths}", "ldd", str(each)))
    for name, path in found.items():
        shutil.copy(path, target / name)
    return set(found.values())


def needed(said: str) -> dict[str, Path]:
    """What ldd(1) says of a file, without the C library: paths by name. OperatorError: one is
    missing."""
    found = {}
    for line in said.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or OF_GLIBC.fullmatch(name):
            continue
        if rest == "not found":
            raise OperatorError(f"{name}: there is no such library", exit_code=1)
        found[name] = Path(rest.rpartition(" (")[0])
    return found


def newest_glibc(content: bytes) -> int:
    """The largest minor version of the C library that a program or library asks for."""
    return max(map(int, re.findall(rb"GLIBC_2\.(\d+)", content)), default=0)


def _add_words(folder: Path, libraries: Iterable[Path]) -> None:
    """How to run it, and the licences: of all that was unpacked, and of the packages of this
    machine whose files were taken."""
    for name in ("run", "README.txt"):
        shutil.copy(ROOT / "packaging/kit" / name, folder)
    licences = folder / "licences"
    licences.mkdir()
    shutil.copy(ROOT / "LICENSE", licences / "atfnd")
    unpacked = programs(PACKED, *PACKAGES)
    taken = dict[str, Path]()
    for each in unpacked.glob("usr/share/doc/*/copyright"):
        taken[each.parent.name] = each
    ours = [each for each in libraries if unpacked not in each.parents]
    for package in _packages([*ours, *map(_tool, TOOLS)]):
        taken[package] = Path("/usr/share/doc") / package / "copyright"
    for package, path in taken.items():
        shutil.copy(path, licences / package)


def _packages(files: Iterable[Path]) -> set[str]:
    """Of this machine, that have these files; a path may have been one before /usr was merged."""
    real = {str(each.resolve()) for each in files}
    names = sorted(real | {each.removeprefix("/usr") for each in real})
    done = subprocess.run(("dpkg-query", "-S", *names), capture_output=True, text=True)
    return {line.partition(":")[0] for line in done.stdout.splitlines()}


def size(folder: Path) -> int:
    """Bytes of its files."""
    return sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_dir())


def main() -> None:
    """Exit 0 when the folder is made and not too large."""
    with ended_in_order():
        packed(FOLDER)
        if (found := size(FOLDER)) > MOST_BYTES:
            raise OperatorError(f"{found / 2**20:.1f} MiB is too much", exit_code=1)
        print(f"{FOLDER.relative_to(ROOT)}: {found / 2**20:.1f} MiB; sudo {FOLDER.name}/run")


if __name__ == "__main__":
    main()
