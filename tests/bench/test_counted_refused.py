# SPDX-License-Identifier: GPL-2.0-or-later
"""What the counted machine refuses before it counts: another QEMU than the one that was tried, and
a guest whose clock is not the TSC. No guest is started: the plugin is linked into a program in the
place of QEMU, and start.sh reads files of ours where the guest has its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.bed import succeed
from bench.counted.build import CC

COUNTED = Path(__file__).parents[2] / "bench/counted"
# push %rbp; push %rbx; mov %edi,%ebx; sub $8,%rsp; cmpl $2,replay_mode; je: of QEMU 10.0.2
BUDGET = bytes.fromhex("555389fb4883ec08833d49d43c0102745f")
REPLAY_MODE = range(10, 14)  # its address is of the build
QEMU = """
#include <stdio.h>
struct info { const char *target; int min, cur; _Bool system; int cpus, most_cpus; };
int qemu_plugin_install(unsigned long, const struct info *, int, char **);
__thread void *current_cpu;
unsigned char icount_percpu_budget[32]; /* is looked at, and not called here */
void qemu_plugin_register_vcpu_init_cb(unsigned long id, void (*born)(unsigned long, unsigned))
{
	(void)id, (void)born;
}
int main(int argc, char **argv)
{
	struct info info = { "x86_64", 0, 4, 1, 8, 8 };
	for (int i = 0; i < 32; i++)
		sscanf(argv[1] + 2 * i, "%2hhx", &icount_percpu_budget[i]);
	return qemu_plugin_install(1, &info, argc - 2, argv + 2) ? 1 : 0;
}
"""
CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
START = 'mount --bind "$1" /proc/cmdline && mount --bind "$2" "$3" && exec bash "$4" 1'


@pytest.fixture(scope="module")
def qemu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that loads the plugin as QEMU does; its first word is icount_percpu_budget()."""
    folder = tmp_path_factory.mktemp("qemu")
    source, program = folder / "qemu.c", folder / "qemu"
    source.write_text(QEMU)
    sources = map(str, (source, COUNTED / "plugin.c", COUNTED / "cache.c"))
    succeed(*CC, "-static", "-Wl,--unresolved-symbols=ignore-all", *sources, "-o", str(program))
    return program


def loaded(qemu: Path, budget: bytes) -> tuple[int, str]:
    """Whether it is refused, and why."""
    options = (f"out={qemu.parent}/counts", f"go={qemu.parent}/go", "cluster=4")
    words = (qemu, budget.ljust(32, b"\x90").hex(), *options)
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_the_qemu_that_was_tried_is_taken(qemu: Path) -> None:
    other_address = bytes(0x55 if at in REPLAY_MODE else each for at, each in enumerate(BUDGET))
    assert loaded(qemu, BUDGET) == loaded(qemu, other_address) == (0, "")


@pytest.mark.parametrize("at", [at for at in range(16) if at not in REPLAY_MODE])
def test_another_qemu_is_refused(qemu: Path, at: int) -> None:
    refused, why = loaded(qemu, BUDGET[:at] + bytes([BUDGET[at] ^ 1]) + BUDGET[at + 1 :])
    assert refused
    assert why.startswith("counts: not tried with this QEMU, whose icount_percpu_budget() is")


@pytest.mark.parametrize("clock", ["hpet", "acpi_pm"])
def test_a_guest_whose_clock_is_not_the_tsc_is_refused(tmp_path: Path, clock: str) -> None:
    arguments, source = tmp_path / "cmdline", tmp_path / "clock"
    arguments.write_text("nokaslr tsc_early_khz=1000000\n")
    source.write_text(f"{clock}\n")
    words = map(str, (arguments, source, CLOCK, COUNTED / "start.sh"))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", START, "sh", *words], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, f"the guest's clock is {clock}, not tsc\n")
