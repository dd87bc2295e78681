# SPDX-License-Identifier: GPL-2.0-or-later
"""What surrounds the NICs: rivals, .link files, other interfaces, our rights, kernel features.

Reads /sys/class/net (Documentation/ABI/testing/sysfs-class-net), CapEff in /proc/self/status
(capabilities(7)), /sys/kernel/security/lockdown (kernel_lockdown(7)),
net.core.busy_poll and busy_read (Documentation/admin-guide/sysctl/net.rst), and asks generic
netlink for its families. Takes milliseconds with many processes: not for the daemon's own thread.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from atfnd.kernel.netlink.requests import GenericFamily
from atfnd.kernel.system.btf import kernel_has_btf
from atfnd.model import FoundInterface, Machine
from atfnd.observe.machine.rivals import rivals
from atfnd.observe.nics.link_files import Candidate, link_files
from atfnd.observe.nics.nm_profiles import nm_profiles

__all__ = ["interfaces", "machine"]

NEEDED = {"CAP_NET_ADMIN": 12, "CAP_SYS_NICE": 23, "CAP_PERFMON": 38, "CAP_BPF": 39}
CAP_SYS_ADMIN = 21  # stands for CAP_BPF and CAP_PERFMON


def machine(root: Path = Path("/")) -> Machine:
    """What `diagnose.doctor` has to know; interfaces are those of our own network namespace."""
    found = _interfaces(root / "sys/class/net")
    candidates = [candidate for candidate, _ in found]
    return Machine(
        rivals=rivals(root),
        link_files=(*link_files(candidates, root), *nm_profiles(candidates, root)),
        interfaces=tuple(
            FoundInterface(candidate.name, candidate.driver, queues)
            for candidate, queues in found
            if queues > 1
        ),
        missing_capabilities=_missing(root / "proc/self/status"),
        lockdown=_lockdown(root / "sys/kernel/security/lockdown"),
        btf=kernel_has_btf(),
        netdev_family=_has_family("netdev"),
        ethtool_family=_has_family("ethtool"),
        busy_polling=_busy_polling(root / "proc/sys/net/core"),
    )


def interfaces(root: Path = Path("/")) -> tuple[FoundInterface, ...]:
    """Every interface of our own network namespace, by name. The driver is that of the device
    behind it; None: there is no device, or the kernel does not name its driver."""
    net = root / "sys/class/net"
    return tuple(
        FoundInterface(path.name, _driver(path), _queues(path), _lower(path))
        for path in (sorted(net.iterdir()) if net.is_dir() else ())
        if (path / "ifindex").exists()  # bonding_masters is none
    )


def _driver(path: Path) -> str | None:
    driver = path / "device/driver"
    return driver.resolve().name if driver.exists() else None


def _lower(path: Path) -> tuple[str, ...]:
    return tuple(sorted(each.name.removeprefix("lower_") for each in path.glob("lower_*")))


def _queues(path: Path) -> int:
    return len(list(path.glob("queues/rx-*")))


def _interfaces(net: Path) -> list[tuple[Candidate, int]]:
    """Devices with hardware behind them, and how many receive queues each has. One that goes
    meanwhile is not there."""
    found = []
    for path in sorted(net.iterdir()) if net.is_dir() else ():
        if not (path / "device").exists():
            continue
        with suppress(FileNotFoundError):
            candidate = Candidate(
                path.name,
                int((path / "ifindex").read_text()),
                _driver(path),
                (path / "address").read_text().strip() or None,
            )
            found.append((candidate, _queues(path)))
    return found


def _missing(status: Path) -> frozenset[str]:
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    held = int(effective[1], 16) if effective else 0
    if held >> CAP_SYS_ADMIN & 1:
        held |= 1 << NEEDED["CAP_BPF"] | 1 << NEEDED["CAP_PERFMON"]
    return frozenset(name for name, bit in NEEDED.items() if not held >> bit & 1)


def _lockdown(path: Path) -> str | None:
    """`none [integrity] confidentiality`: the one in brackets. None: no lockdown in this kernel."""
    with suppress(FileNotFoundError, NotADirectoryError):
        chosen = re.search(r"\[(\w+)\]", path.read_text())
        return chosen[1] if chosen else None
    return None


def _busy_polling(core: Path) -> tuple[str, ...]:
    """Those of net/core/sysctl_net_core.c that are not 0. Only the first network namespace has
    them."""
    on = []
    for name in ("busy_poll", "busy_read"):
        with suppress(FileNotFoundError, NotADirectoryError):
            if int((core / name).read_text()):
                on.append(f"net.core.{name}")
    return tuple(on)


def _has_family(name: str) -> bool:
    try:
        GenericFamily(name).close()
    except FileNotFoundError:
        return False
    return True
