# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts: where they are delivered, under which name they were requested, which belong to a
device.

Reads and writes /proc/irq/N/smp_affinity_list, reads effective_affinity_list (kernel/irq/proc.c),
/sys/kernel/irq/N/actions and per_cpu_count (Documentation/ABI/testing/sysfs-kernel-irq;
/proc/interrupts says the same, but counts every interrupt of every CPU to say it) and msi_irqs of a
PCI device.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from atfnd.kernel.interface import Interface
from atfnd.kernel.system.cpulist import format_cpulist, parse_cpulist
from atfnd.kernel.system.procfs import read

__all__ = ["Affinities", "actions", "affinity_file", "deliveries", "device_irqs", "movable"]
__all__ += ["set_affinity"]

IRQS, ACTIONS = "/proc/irq", "/sys/kernel/irq"
MAY, DOES = "smp_affinity_list", "effective_affinity_list"


def _open(path: str, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


class Affinities:
    """CPUs of interrupts. Keeps the files it has read open, which is a tenth of the cost: the
    daemon reads those of every queue every two seconds."""

    def __init__(self) -> None:
        self._descriptors: dict[tuple[int, str], int] = {}

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def keep(self, irqs: Iterable[int]) -> None:
        """Close the files of all others."""
        kept = set(irqs)
        for key in [key for key in self._descriptors if key[0] not in kept]:
            os.close(self._descriptors.pop(key))

    def cpus(self, irq: int) -> frozenset[int] | None:
        """Those it may be delivered on; None: no such interrupt."""
        text = self._read(irq, MAY)
        return None if text is None else parse_cpulist(text)

    def delivered_on(self, irq: int) -> int | None:
        """The CPU it is delivered on: the one it may be, else the one that the interrupt controller
        chose of several. The latter is out of date until the next interrupt after a change, so it
        is asked second. None: any of several, or no such interrupt."""
        for name in (MAY, DOES):
            cpus = self._read(irq, name)
            if cpus is not None and cpus.isdecimal():
                return int(cpus)
        return None

    def _read(self, irq: int, name: str) -> str | None:
        descriptor = self._descriptors.get((irq, name))
        if descriptor is not None:
            try:
                return os.pread(descriptor, 4096, 0).decode().strip()
            except OSError as error:
                if error.errno != errno.EIO:  # this file's interrupt was freed; look for another
                    raise
                os.close(self._descriptors.pop((irq, name)))
        try:
            descriptor = _open(f"{IRQS}/{irq}/{name}")
        except FileNotFoundError:
            return None
        self._descriptors[irq, name] = descriptor
        return os.pread(descriptor, 4096, 0).decode().strip()


def deliveries(irq: int) -> int | None:
    """How often it was delivered since it was set up, on all CPUs. None: no such interrupt, or the
    kernel does not say."""
    try:
        descriptor = _open(f"{ACTIONS}/{irq}/per_cpu_count")
    except FileNotFoundError:
        return None
    try:
        return sum(map(int, os.read(descriptor, 1 << 16).split(b",")))
    finally:
        os.close(descriptor)


def affinity_file(irq: int) -> str:
    """The file that takes the CPUs it may be delivered on."""
    return f"{IRQS}/{irq}/{MAY}"


def set_affinity(irq: int, cpus: Iterable[int]) -> None:
    """OSError: EIO or EPERM for an interrupt whose affinity the kernel manages, EINVAL or ERANGE
    for no CPU that is online, ENOSPC when the CPU has no vector left; FileNotFoundError: no such
    interrupt."""
    descriptor = _open(affinity_file(irq), os.O_WRONLY)
    try:
        os.write(descriptor, format_cpulist(cpus).encode())
    finally:
        os.close(descriptor)


def movable(irq: int) -> bool:
    """Its affinity may be written. Kernels before 6.12 say so of managed interrupts too, and refuse
    the write."""
    try:
        return bool(os.stat(f"{IRQS}/{irq}/{MAY}").st_mode & stat.S_IWUSR)
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
    `irqs`. An interrupt that was not requested is left out."""
    numbers = irqs if irqs is not None else map(int, os.listdir(ACTIONS))
    return {irq: name for irq in numbers if (name := _action(irq))}


def _action(irq: int) -> str | None:
    with suppress(FileNotFoundError):
        return read(f"{ACTIONS}/{irq}/actions").strip()
    return None
