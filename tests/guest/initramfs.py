# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest's initramfs: busybox, init.sh and the modules that mount the host's root.

Documentation/driver-api/early-userspace/buffer-format.rst (newc), modules.dep(5).
"""

from __future__ import annotations

import lzma
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.guest.fetch import Parts

__all__ = ["initramfs"]

MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
FOLDERS = ("bin", "dev", "modules", "proc", "sys")


def initramfs(parts: Parts) -> bytes:
    """An uncompressed cpio archive."""
    modules = list(_load_order(parts.modules))
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in FOLDERS]
    entries += [
        ("init", stat.S_IFREG | 0o755, (Path(__file__).parent / "init.sh").read_bytes()),
        ("bin/busybox", stat.S_IFREG | 0o755, (parts.qemu / "bin/busybox").read_bytes()),
        ("modules/order", stat.S_IFREG | 0o644, "".join(f"{p.stem}\n" for p in modules).encode()),
    ]
    entries += [
        (f"modules/{path.stem}", stat.S_IFREG | 0o644, lzma.decompress(path.read_bytes()))
        for path in modules
    ]
    entries.append(("TRAILER!!!", 0, b""))
    return b"".join(_newc(number, *entry) for number, entry in enumerate(entries, 1))


def _load_order(folder: Path) -> Iterator[Path]:
    """Each module after what it depends on. One without a line in modules.dep is built in."""
    lines = [line.split(":") for line in (folder / "modules.dep").read_text().splitlines()]
    needs = {Path(path).name.split(".")[0]: (path, rest.split()) for path, rest in lines}
    seen = set()
    for name in MODULES:
        path, dependencies = needs.get(name, (None, []))
        for each in [*reversed(dependencies), path]:
            if each is not None and each not in seen:
                seen.add(each)
                yield folder / each


def _newc(inode: int, name: str, mode: int, data: bytes) -> bytes:
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
