# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes packets out of the rings of queues with interrupts, as a policy asks for it: of the
whole interface on 6.12, of single queues on the newest kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from atfnd.model.reception import DEFER, THREAD, TIMEOUT
from tests.applications import CPUS
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.fetch import KERNELS
from tests.guest.simlab import a_simlab
from tests.wait import until

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]

NEWEST = KERNELS["newest"].release.fullmatch(os.uname().release) is not None
LONG_S = 60.0


@contextmanager
def received(folder: Path, mode: str) -> Iterator[Bed]:
    """Each queue's interrupt goes to a CPU of its own."""
    config = f"{policy()}interfaces: [{{ match: {{ name: '*' }}, reception: {mode} }}]\n"
    with a_simlab(queues=len(CPUS), table=64, location="explicit") as lab:
        for index, cpu in enumerate(CPUS):
            lab.nic.set_queue_cpu(index, cpu)
        lab.nic.probe()  # which switches there are is found by trying one
        with a_bed(lab, folder, "bpf", config) as bed:
            bed.start()
            yield bed


def values(bed: Bed, kind: str) -> set[str]:
    settings: Mapping[str, str] = bed.lab.nic.settings()
    return {value for name, value in settings.items() if name.partition(":")[0] == kind}


def cpus(bed: Bed) -> list[str | None]:
    return [bed.lab.nic.setting(f"queue-cpu:{queue}") for queue in range(len(CPUS))]


def gives_back(bed: Bed) -> None:
    """Nothing is left of it, and every queue is where it was."""
    assert bed.daemon.ctl("restore", bed.lab.nic.name).returncode == 0
    for kind in (TIMEOUT, DEFER, THREAD):
        assert values(bed, kind) == {"0"}
    assert cpus(bed) == [str(cpu) for cpu in CPUS]
    assert [queue.threaded for queue in bed.lab.nic.queues()] == [False] * len(CPUS)


def test_interrupts_are_deferred_where_the_kernel_has_the_values(tmp_path: Path) -> None:
    with received(tmp_path, "{deferred: {timeout: 200us, polls: 10}}") as bed:
        until(lambda: values(bed, TIMEOUT) == {"200000"}, "all have the timeout", LONG_S)
        until(lambda: values(bed, DEFER) == {"10"}, "all have the count", LONG_S)
        bed.apps.tcp()
        gives_back(bed)


def test_dedicated_queues_have_threads_on_the_cpus_of_their_interrupts(tmp_path: Path) -> None:
    with received(tmp_path, "{dedicated: {pause: 200us, idle_after: 100ms}}") as bed:
        nic = bed.lab.nic
        until(lambda: values(bed, THREAD) == {"1"}, "all have threads", LONG_S)
        until(lambda: values(bed, TIMEOUT) == {"200000"}, "all are polled by a timer", LONG_S)
        pids = [queue.pid for queue in nic.queues()]
        assert None not in pids
        assert [os.sched_getaffinity(pid or 0) for pid in pids] == [{cpu} for cpu in CPUS]
        assert cpus(bed) == [str(cpu) for cpu in CPUS]
        bed.apps.tcp()
        gives_back(bed)


def test_threads_poll_without_end_where_the_kernel_can(tmp_path: Path) -> None:
    """Elsewhere it is refused, with the reason; and one CPU is left to everybody else."""
    with received(tmp_path, "busy") as bed:

        def why_not() -> list[str | None]:
            rows = bed.daemon.get("/v1/queues")["queues"]
            return [row["reception_why_not"] for row in rows]

        until(lambda: why_not()[-1] is not None, "it says why", LONG_S)
        if NEWEST:
            until(lambda: values(bed, THREAD) == {"0", "2"}, "threads poll", LONG_S)
            assert why_not()[:-1] == [None] * (len(CPUS) - 1)
            assert "last CPU that is not isolated" in (why_not()[-1] or "")
        else:
            assert (
                why_not()
                == ["busy: this kernel cannot have one NAPI polled without end (6.19)"] * 4
            )
            assert values(bed, THREAD) == {"0"}
        bed.apps.tcp()
        gives_back(bed)
