# SPDX-License-Identifier: GPL-2.0-or-later
"""What the guest's machine is made of, as QEMU's arguments. Touches nothing.

QEMU's docs/system/invocation: -smp, -numa, -netdev; docs/pcie.txt for the root ports.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field

from atfnd.errors import OperatorError
from tests.guest.fetch import KERNELS

__all__ = ["DEFAULT_KERNEL", "Machine", "Nics"]

DEFAULT_KERNEL = "6.12"

# Model -> its kernel module and QEMU device. nvme: an idle function whose interrupts simnic takes.
MODELS = {
    "igb": ("igb", "igb"),
    "e1000e": ("e1000e", "e1000e"),
    "vmxnet3": ("vmxnet3", "vmxnet3"),
    "virtio": ("virtio_net", "virtio-net-pci,mq=on,rss=on,vectors=18"),
    "nvme": (None, "nvme,msix_qsize=65"),
}
# As AMD, TCG gives every core an L3 of its own; as Intel, one to a die. TCG does `rep movsb` and
# `rep stosb` a byte at a time; a kernel without ERMS and FSRM does not use them to clear and copy
# pages (arch/x86/lib/clear_page_64.S, copy_user_64.S), and takes a page in a quarter of the time.
CPU = "max,vendor=GenuineIntel,-erms,-fsrm,-fsrs,-fzrm"
# With several dies the last leaf of CPUID is 0x1f, whose answer is also that of leaves beyond it.
# QEMU 10.0 ends there when one is asked with a high ECX (encode_topo_cpuid1f()).
DIES = "level=0x20"
VIRTIO_QUEUES = 4
MEMORY_MIB = 2048
BOOT_S = {"session": 60.0, "systemd": 120.0}  # under load; alone they take five and fifteen
COUNTED_BOOT_S = 75.0  # a CPU, under load; one thread executes all


@dataclass(frozen=True, slots=True)
class Nics:
    """`count` functions of one model, on a NUMA node, which reach each other and nobody else."""

    model: str
    count: int
    node: int | None = None

    @classmethod
    def parse(cls, text: str) -> Nics:
        """`igb:2` or `igb:2@1`. OperatorError: no such model, or not a number."""
        match = re.fullmatch(r"(\w+):(\d)(?:@(\d))?", text)
        if match is None or match[1] not in MODELS:
            raise OperatorError(
                f"--nic {text}: not one of {', '.join(MODELS)}", "for example igb:2"
            )
        return cls(match[1], int(match[2]), None if match[3] is None else int(match[3]))


EVERY = "every"  # of `--nic`: one machine that serves the files which want any of them
FLEET = ("igb:2@1", "virtio:2@0", "nvme:6@1")


@dataclass(frozen=True, slots=True)
class Machine:
    """`sockets` is also the number of NUMA nodes. A socket's cores are shared out evenly over its
    L3 caches."""

    sockets: int = 2
    cores: int = 2
    threads: int = 1
    llcs: int = 1  # of a socket
    nics: tuple[Nics, ...] = field(default=())
    init: str = "session"  # PID 1: the command's shell, or systemd with the command as a service
    kernel: str = DEFAULT_KERNEL
    counted: bool = False  # instructions and cache lines (bench/counted)

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        parser.add_argument(
            "--nic", action="append", default=[], metavar="MODEL:COUNT[@NODE]|every"
        )
        parser.add_argument("--cpus", default="2x2", metavar="SOCKETSxCORES[xTHREADS]")
        parser.add_argument("--llcs", type=int, default=1, help="last-level caches of a socket")
        parser.add_argument("--init", choices=tuple(BOOT_S), default="session")
        parser.add_argument("--kernel", choices=tuple(KERNELS), default=DEFAULT_KERNEL)
        parser.add_argument("--counted", action="store_true")

    @classmethod
    def of(cls, options: Namespace) -> Machine:
        """OperatorError: `--nic`, `--cpus` or `--llcs` is wrong."""
        match = re.fullmatch(r"([1-9])x([1-9]\d?)(?:x([12]))?", options.cpus)
        if match is None:
            raise OperatorError(f"--cpus {options.cpus}: not SOCKETSxCORES[xTHREADS]", "2x2")
        sockets, cores, threads = (int(each or 1) for each in match.groups())
        if options.llcs < 1 or cores % options.llcs:
            raise OperatorError(f"--llcs {options.llcs}: it does not divide {cores} cores")
        nics = tuple(map(Nics.parse, FLEET if options.nic == [EVERY] else options.nic))
        return cls(
            sockets, cores, threads, options.llcs, nics, options.init, options.kernel,
            options.counted,
        )  # fmt: skip

    @property
    def cluster(self) -> int:
        """CPUs that share an L3 cache."""
        return self.cores // self.llcs * self.threads

    @property
    def boot_s(self) -> float:
        """In which the command has begun."""
        cpus = self.sockets * self.cores * self.threads
        return COUNTED_BOOT_S * cpus if self.counted else BOOT_S[self.init]

    @property
    def modules(self) -> list[str]:
        """That drive its NICs, in the order that names them eth0, eth1, ... as given."""
        found = (MODELS[nics.model][0] for nics in self.nics)
        return [name for name in dict.fromkeys(found) if name is not None]

    @property
    def taps(self) -> list[list[str]]:
        """Tap devices to make before QEMU starts, in groups to be bridged."""
        return [
            [f"tap{group}.{number}" for number in range(nics.count)]
            for group, nics in enumerate(self.nics)
            if nics.model == "virtio"
        ]

    def arguments(self) -> list[str]:
        """For qemu-system-x86_64. QEMU numbers CPUs thread by thread, core by core."""
        each = self.cores * self.threads
        cpus = self.sockets * each
        smp = {
            "sockets": self.sockets, "dies": self.llcs, "cores": self.cores // self.llcs,
            "threads": self.threads,
        }  # fmt: skip
        shape = ",".join(f"{name}={count}" for name, count in smp.items())
        cpu = CPU if self.llcs == 1 else f"{CPU},{DIES}"
        found = ["-cpu", cpu, "-smp", f"{cpus},{shape}", "-m", f"{MEMORY_MIB}M"]
        for node in range(self.sockets):
            size = MEMORY_MIB // self.sockets
            first = node * each
            found += [
                *("-object", f"memory-backend-ram,id=memory{node},size={size}M"),
                *(
                    "-numa",
                    f"node,nodeid={node},cpus={first}-{first + each - 1},memdev=memory{node}",
                ),
            ]
        for one in range(self.sockets):
            for other in range(one + 1, self.sockets):
                found += ["-numa", f"dist,src={one},dst={other},val=21"]
        return found + [word for group in range(len(self.nics)) for word in self._nics(group)]

    def _nics(self, group: int) -> Iterator[str]:
        nics = self.nics[group]
        root = "pcie.0"
        if nics.node is not None:  # QEMU says the node of a host bridge, not of a port
            root = f"bridge{group}"
            bridge = f"pxb-pcie,id={root},bus_nr={16 * (group + 1)},numa_node={nics.node}"
            yield from ("-device", f"{bridge},bus=pcie.0")
        for number in range(nics.count):
            name = f"{group}.{number}"
            slot = 1 + number + sum(each.count for each in self.nics[:group])
            port = f"pcie-root-port,id=port{name},bus={root},chassis={slot},slot={slot}"
            yield from ("-device", port)
            device = f"{MODELS[nics.model][1]},bus=port{name}"
            if nics.model == "nvme":
                yield from ("-device", f"{device},serial=carrier{name}")
                continue
            backend = f"hubport,hubid={group}"
            if nics.model == "virtio":  # a hub has one queue, a tap has as many as are asked for
                tap = f"tap,ifname=tap{name},queues={VIRTIO_QUEUES}"
                backend = f"{tap},script=no,downscript=no,vhost=off"
            yield from ("-netdev", f"{backend},id=net{name}")
            mac = f"52:54:00:09:{group:02x}:{number:02x}"
            yield from ("-device", f"{device},netdev=net{name},mac={mac},romfile=")
