# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts of a lab NIC: a queue's packets are handed to its CPU by an inter-processor interrupt.

The thread that polls a ring runs on another CPU. It passes every packet on by RPS with one CPU
(rps_cpus, Documentation/networking/scaling.rst). enqueue_to_backlog() interrupts that CPU, and a
softirq takes the packets up there, as after an interrupt of a NIC. So what wakes an application is
an interrupt on a CPU that may be idle, not a thread that keeps it busy (select_task_rq_fair(),
kernel/sched/fair.c).

A change of CPU is one write, and proves no order: what waits on the old CPU may be overtaken. The
moves know it (`Stage.RPS`, observe/nics/move_port.py), so `strict` moves no live flow here.
"""

from __future__ import annotations

import errno

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import make_realtime
from atfnd.kernel.interrupts.packet_steering import read_one, receive_queues, write_steering
from atfnd.kernel.system.cpulist import format_cpulist, parse_cpulist

__all__ = ["clear", "cpus_of", "set_cpus"]


def cpus_of(interface: Interface, queue: int) -> frozenset[int]:
    """CPUs that a queue's interrupts go to; of several, the flow's hash chooses one."""
    return parse_cpulist(read_one(interface, f"rps-cpus:{queue}") or "")


def set_cpus(
    interface: Interface,
    queue: int,
    cpus: frozenset[int],
    thread: int,
    online: frozenset[int],
    priority: int,
) -> None:
    """Send a queue's interrupts to `cpus`. `thread` polls its ring: on the last CPU `online` that
    gets none of them, at SCHED_FIFO `priority`. OSError(EINVAL): one of `cpus` is not online, or
    none is left to poll on; ProcessLookupError: the thread is gone."""
    left = online - cpus
    if not cpus or not cpus <= online or (not left and len(cpus) == 1):
        raise OSError(errno.EINVAL, f"interrupts cannot go to CPU {format_cpulist(cpus)}")
    make_realtime(thread, max(left) if left else None, priority)
    write_steering(interface, f"rps-cpus:{queue}", format_cpulist(cpus))


def clear(interface: Interface) -> None:
    """No packets are passed on any more. Before an interface is deleted: the kernel counts the
    queues that pass packets on (rps_needed), and a deleted one stays in the count
    (rx_queue_release(), net/core/net-sysfs.c), which costs each packet of the machine a call."""
    for queue in range(receive_queues(interface)):
        write_steering(interface, f"rps-cpus:{queue}", "")
