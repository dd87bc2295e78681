# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts: where they are delivered, who asked for them, which belong to a device.

Reads and writes /proc/irq/N/smp_affinity_list, reads effective_affinity_list (kernel/irq/proc.c),
/sys/kernel/irq/N/actions (Documentation/ABI/testing/sysfs-kernel-irq; /proc/interrupts says the
same, but counts every interrupt of every CPU to say it) and msi_irqs of a PCI device.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from atfnd.kernel.cpulist import format_cpulist, parse_cpulist
from atfnd.kernel.interface import Interface

__all__ = ["actions", "affinity", "delivered_on", "device_irqs", "movable", "set_affinity"]

IRQS, ACTIONS = "/proc/irq", "/sys/kernel/irq"


def _read(path: str) -> str | None:
    """None: no such interrupt, or none any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, 4096).decode().strip()
    finally:
        os.close(descriptor)


def affinity(irq: int) -> frozenset[int] | None:
    """CPUs the interrupt may be delivered on; None: no such interrupt."""
    text = _read(f"{IRQS}/{irq}/smp_affinity_list")
    return None if text is None else parse_cpulist(text)


def delivered_on(irq: int) -> int | None:
    """The CPU an interrupt is delivered on: the one it may use, else the one that the interrupt
    controller chose of several. That one is old until the next interrupt after a change, so it is
    asked second. None: any of several, or no such interrupt."""
    for name in ("smp_affinity_list", "effective_affinity_list"):
        cpus = _read(f"{IRQS}/{irq}/{name}")
        if cpus is not None and cpus.isdecimal():
            return int(cpus)
    return None


def set_affinity(irq: int, cpus: Iterable[int]) -> None:
    """OSError: EIO or EPERM for an interrupt whose affinity the kernel manages, EINVAL for no CPU
    that is online, ENOSPC when the CPU has no vector left; FileNotFoundError: no such one."""
    descriptor = os.open(f"{IRQS}/{irq}/smp_affinity_list", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, format_cpulist(cpus).encode())
    finally:
        os.close(descriptor)


def movable(irq: int) -> bool:
    """Its affinity may be written. Kernels before 6.12 say so of managed interrupts too, and refuse
    the write."""
    try:
        return bool(os.stat(f"{IRQS}/{irq}/smp_affinity_list").st_mode & stat.S_IWUSR)
    except FileNotFoundError:
        return False


def device_irqs(interface: Interface) -> list[int]:
    """MSI and MSI-X interrupts of the PCI function behind an interface, or of the one behind that
    (virtio); empty where it is on another bus."""
    for device in ("device", "device/.."):
        if found := interface.list(f"{device}/msi_irqs"):
            return sorted(map(int, found))
    return []


def actions(irqs: Iterable[int] | None = None) -> dict[int, str]:
    """The name each interrupt was requested under, as in /proc/interrupts; of all of them without
    `irqs`. One nobody requested is left out."""
    numbers = irqs if irqs is not None else map(int, os.listdir(ACTIONS))
    return {irq: name for irq in numbers if (name := _read(f"{ACTIONS}/{irq}/actions"))}
