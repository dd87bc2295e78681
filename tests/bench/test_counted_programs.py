# SPDX-License-Identifier: GPL-2.0-or-later
"""The plugin counts what a BPF program executes: with what it calls, without interrupts and other
programs. No guest is started: the plugin is built into a program that says which blocks CPUs
execute."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.bed import succeed
from bench.counted.build import CC
from bench.counted.programs import programs
from bench.meter import Meter

__all__: list[str] = []

COUNTED = Path(__file__).parents[2] / "bench/counted"
PROGRAM = """
#include "plugin.c"
__thread void *current_cpu;
static char objects[2];
void *qemu_get_cpu(int number) { return &objects[number]; }
int main(int argc, char **argv)
{
	FILE *file = fopen(argv[1], "r");
	cpus = 2;
	out = stdout;
	if (!read_go(file))
		return 1;
	for (int i = 2; i < argc; i++) {
		struct block block = { .mode = KERNEL };
		unsigned int cpu, code;
		uint64_t first;
		void *data = NULL;
		if (sscanf(argv[i], "%u:%lx:%x:%hu", &cpu, &first, &code, &block.count) != 4)
			return 2;
		uint8_t two[2] = { code >> 8, code }, *last = two + (code < 0x100);
		block.events = event_of(last, two + 2 - last);
		look_for_program(&block, first, last);
		memcpy(&data, &block, sizeof(block));
		current_cpu = &objects[cpu];
		on_block(0, data);
	}
	mark();
	return 0;
}
"""
SENT, JUDGED = 0x1000, 0x2000
HELPER, HANDLER = 0x5000, 0x6000
GO = f"1 2\n{SENT:x} 1100\n{JUDGED:x} 2100\n"  # softirqs; two programs
RET, CLD, IRETQ, OTHER = 0xC3, 0xFC, 0x48CF, 0x90


class Block(NamedTuple):
    """Where it begins, the instruction in it that matters, and how many it has."""

    first: int
    code: int
    executed: int
    cpu: int = 0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    source, built = folder / "blocks.c", folder / "blocks"
    source.write_text(PROGRAM)
    (folder / "go").write_text(GO)
    paths = map(str, (source, COUNTED / "cache.c", "-o", built))
    ignore = ("-static", "-Wl,--unresolved-symbols=ignore-all", f"-I{COUNTED}")
    succeed(*CC, "-Wno-unused-function", *ignore, *paths)
    return built


def counted(program: Path, *blocks: Block) -> list[dict[str, list[int]]]:
    """Runs of both programs and what is within them, for each of two CPUs."""
    words = (f"{each.cpu}:{each.first:x}:{each.code:x}:{each.executed}" for each in blocks)
    cpus = json.loads(succeed(str(program), str(program.parent / "go"), *words))
    return [{word: cpu[word] for word in ("runs", "within")} for cpu in cpus]


NONE = {"runs": [0, 0], "within": [0, 0]}


BEGIN, END = Block(SENT, OTHER, 10), Block(SENT + 40, RET, 5)
WHOLE = (BEGIN, Block(HELPER, RET, 20), END)  # a helper is called


@pytest.mark.parametrize(
    ("blocks", "runs", "within"),
    [
        ((Block(HELPER, OTHER, 100), *WHOLE, Block(HELPER, RET, 100)), [1, 0], [35, 0]),
        ((*WHOLE, *WHOLE), [2, 0], [70, 0]),
        ((Block(SENT, RET, 3), Block(HELPER, RET, 9)), [1, 0], [3, 0]),  # of one block
        ((BEGIN, Block(JUDGED, RET, 7), END), [1, 1], [15, 7]),  # one is called
        (
            (
                BEGIN,
                Block(HANDLER, CLD, 1000),
                Block(HANDLER, CLD, 500),  # in the interrupt
                Block(HANDLER, IRETQ, 500),
                Block(HANDLER, IRETQ, 1000),
                END,
                Block(HANDLER, IRETQ, 1000),
            ),
            [1, 0],
            [15, 0],
        ),
        (  # it runs in an interrupt of itself
            (
                BEGIN,
                Block(HANDLER, CLD, 1000),
                Block(SENT, RET, 6),
                Block(HANDLER, IRETQ, 1000),
                END,
            ),
            [2, 0],
            [21, 0],
        ),
        ((END, Block(HELPER, IRETQ, 5)), [0, 0], [0, 0]),  # it began before
    ],
)
def test_a_program_is_counted_from_its_first_instruction_to_its_return_without_interrupts(
    program: Path, blocks: tuple[Block, ...], runs: list[int], within: list[int]
) -> None:
    assert counted(program, *blocks) == [{"runs": runs, "within": within}, NONE]


def test_cpus_are_apart(program: Path) -> None:
    others = Block(HELPER, RET, 1000, cpu=1), Block(JUDGED, RET, 8, cpu=1)
    assert counted(program, BEGIN, *others, END) == [
        {"runs": [1, 0], "within": [15, 0]},
        {"runs": [0, 1], "within": [0, 8]},
    ]


def test_nothing_is_counted_without_programs(program: Path, tmp_path: Path) -> None:
    (tmp_path / "go").write_text("1\n2\n")
    cpus = json.loads(succeed(str(program), str(tmp_path / "go"), f"0:{SENT:x}:{CLD:x}:9"))
    assert all(cpu["runs"] == cpu["within"] == [] for cpu in cpus)
    assert cpus[0]["instructions"][1] == 9


def test_the_kernel_says_where_programs_are() -> None:
    with Meter(1, os.stat("/proc/self/ns/net").st_ino):
        found = [each for each in programs() if each.name in ("on_recv", "on_send")]
    assert {each.name for each in found} == {"on_recv", "on_send"}
    assert all(each.end > each.begin > 1 << 63 for each in found)
