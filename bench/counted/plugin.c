// SPDX-License-Identifier: GPL-2.0-or-later
/* A plugin of QEMU's TCG: instructions of each CPU by mode, and where its accesses find their lines
 * (cache.c). What it needs of the rest of the bed is in load.c and spinidle/.
 *
 *   -plugin counts.so,out=FILE,go=FILE,cluster=CPUS
 *
 * Nothing is instrumented until the guest writes FILE `go`, hexadecimal numbers: the address and
 * the end of handle_softirqs(), and then of each BPF program that is to be counted. Then it gives
 * orders by a NOP, 0f 1f 80 5a5aNNNN. Each mark is a line of JSON in FILE `out` (counts.py).
 *
 * Instructions of a BPF program are those from its first one to its return, of what it calls, too:
 * not of another of these programs, nor of interrupts and faults that come meanwhile. Each of these
 * begins with CLD, which is nowhere else in the kernel's way, and ends with IRETQ.
 *
 * For `-accel tcg,thread=single -icount shift=0` only: one host thread runs all CPUs, nothing is
 * locked. There, QEMU 10.0 calls back with the number of the CPU that translated the block, not of
 * the one that executes it (gen_cpu_index()), and its inline operations of each CPU write anywhere:
 * the CPU is current_cpu, which QEMU exports to its modules. Debian packages no qemu-plugin.h; the
 * declarations are those of docs/devel/tcg-plugins.
 */
#include "cache.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define MAGIC 0x5a5a
#define SLICE 1000 /* instructions that a CPU executes in its turn */
#define POLL_NS 5000000
#define CLOCK_VIRTUAL 1

enum order {
	MARK,
	MODEL_ON,
	MODEL_OFF,
	SLICES_EQUAL,
	SLICES_OF_QEMU,
	DEVICE_BEGINS,
	REMOTE_BEGINS, /* a device of the remote host */
	DEVICE_ENDS,
	IDLE = 0xff
};
enum mode { USER, KERNEL, SOFTIRQ, MODES, IN_IDLE = MODES };
enum { NO_REGISTERS, LOADS_AND_STORES = 3 };
enum { MOST_PROGRAMS = 250, MOST_CALLS = 16 };
enum event { NOTHING, BEGINS = 1, RETURNS = 2, INTERRUPTS = 4, RESUMES = 8 };

struct block {
	uint16_t count;
	uint8_t mode, events, program; /* which one begins or returns */
};

struct tb;
struct insn;
struct hwaddr;
struct info {
	const char *target;
	struct {
		int min, cur;
	} version;
	bool system;
	int cpus, most_cpus;
};
typedef uint64_t plugin;
typedef uint32_t access;
typedef void (*executed)(unsigned int cpu, void *data);
typedef void (*accessed)(unsigned int cpu, access how, uint64_t address, void *data);

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin, void (*)(plugin, struct tb *));
extern void qemu_plugin_register_vcpu_init_cb(plugin, void (*)(plugin, unsigned int));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct tb *, executed, int, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *, executed, int, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct insn *, accessed, int, int, void *);
extern size_t qemu_plugin_tb_n_insns(const struct tb *);
extern struct insn *qemu_plugin_tb_get_insn(const struct tb *, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct insn *);
extern size_t qemu_plugin_insn_data(const struct insn *, void *, size_t);
extern struct hwaddr *qemu_plugin_get_hwaddr(access, uint64_t);
extern bool qemu_plugin_hwaddr_is_io(const struct hwaddr *);
extern uint64_t qemu_plugin_hwaddr_phys_addr(const struct hwaddr *);
extern bool qemu_plugin_mem_is_store(access);
extern void qemu_plugin_reset(plugin, void (*)(plugin));

extern __thread void *current_cpu;
extern void *qemu_get_cpu(int);
extern int64_t icount_get(void);
extern int64_t icount_percpu_budget(int);
extern void helper_pause(void *);
extern void cpu_loop_exit_noexc(void *);
extern void timer_init_full(void *, void *, int, int, int, void (*)(void *), void *);
extern void timer_mod_ns(void *, int64_t);

EXPORT int qemu_plugin_version = 4;
EXPORT int qemu_plugin_install(plugin, const struct info *, int, char **);

static plugin self;
static FILE *out;
static const char *go;
static int cpus;
static bool modelling;
static uint64_t softirq_begin, softirq_end;
static bool in_softirq[MOST_CPUS];
static int device[MOST_CPUS]; /* 1 + the LLC that it writes to; 0: the CPU itself */
static int remote;	      /* the LLC of the remote host */
static uint64_t instructions[MOST_CPUS][MODES + 1];
static uint64_t lines[MOST_CPUS][MODES][KINDS];

/* BPF programs that a CPU executes, the innermost one last; interrupts that it has not yet returned
 * from since that one began. */
struct call {
	uint8_t program;
	unsigned int interrupts;
};

static struct {
	uint64_t begin, end;
} programs[MOST_PROGRAMS];
static int program_count;
static struct call calls[MOST_CPUS][MOST_CALLS];
static int depth[MOST_CPUS];
static uint64_t runs[MOST_CPUS][MOST_PROGRAMS], within[MOST_CPUS][MOST_PROGRAMS];

static int executing(void)
{
	static void *last;
	static int number;

	if (current_cpu != last) {
		last = current_cpu;
		for (number = 0; number < cpus - 1 && qemu_get_cpu(number) != last; number++)
			;
	}
	return number;
}

static enum mode mode_now(int cpu, enum mode of_code)
{
	return of_code == KERNEL && in_softirq[cpu] ? SOFTIRQ : of_code;
}

static void count_programs(int cpu, const struct block *block)
{
	struct call *call = depth[cpu] ? &calls[cpu][depth[cpu] - 1] : NULL;

	if (block->mode != KERNEL) {
		depth[cpu] = 0;
		return;
	}
	if (block->events & INTERRUPTS && call)
		call->interrupts++;
	if (block->events & BEGINS) {
		if (depth[cpu] == MOST_CALLS)
			abort();
		call = &calls[cpu][depth[cpu]++];
		*call = (struct call){ .program = block->program };
		runs[cpu][block->program]++;
	}
	if (!call)
		return;
	if (!call->interrupts)
		within[cpu][call->program] += block->count;
	if (block->events & RESUMES && call->interrupts)
		call->interrupts--;
	else if (block->events & RETURNS && call->program == block->program && !call->interrupts)
		depth[cpu]--;
}

static void on_block(unsigned int translator, void *data)
{
	int cpu = executing();
	struct block block;

	(void)translator;
	memcpy(&block, &data, sizeof(block));
	instructions[cpu][device[cpu] ? IN_IDLE : mode_now(cpu, block.mode)] += block.count;
	if (block.events || depth[cpu])
		count_programs(cpu, &block);
}

static void on_access(unsigned int translator, access how, uint64_t address, void *data)
{
	struct hwaddr *at = modelling ? qemu_plugin_get_hwaddr(how, address) : NULL;

	(void)translator;
	if (!at || qemu_plugin_hwaddr_is_io(at))
		return;
	uint64_t line = qemu_plugin_hwaddr_phys_addr(at) / 64;

	if (cache_has(line)) {
		int cpu = executing();
		bool store = qemu_plugin_mem_is_store(how);
		enum mode mode = mode_now(cpu, (uintptr_t)data);

		if (device[cpu])
			cache_touch_by_device(device[cpu] - 1, line, store);
		else
			lines[cpu][mode][cache_touch(cpu, line, store)]++;
	}
}

static void on_softirq(unsigned int translator, void *begins)
{
	(void)translator;
	in_softirq[executing()] = begins;
}

static void write_numbers(const char *name, const uint64_t *numbers, int count)
{
	fprintf(out, "\"%s\": [", name);
	for (int i = 0; i < count; i++)
		fprintf(out, "%s%" PRIu64, i ? ", " : "", numbers[i]);
	fputs("]", out);
}

static void mark(void)
{
	for (int cpu = 0; cpu < cpus; cpu++) {
		fputs(cpu ? ", {" : "[{", out);
		write_numbers("instructions", instructions[cpu], MODES + 1);
		for (int mode = 0; mode < MODES; mode++) {
			static const char *const NAMES[] = { "user", "kernel", "softirq" };

			fputs(", ", out);
			write_numbers(NAMES[mode], lines[cpu][mode], KINDS);
		}
		fputs(", ", out);
		write_numbers("runs", runs[cpu], program_count);
		fputs(", ", out);
		write_numbers("within", within[cpu], program_count);
		fputs("}", out);
	}
	fputs("]\n", out);
	fflush(out);
}

/* QEMU gives each CPU an equal part of what is left until the next virtual timer, which may be half
 * a millisecond: others wait for their turn that long. A timer of ours would bound it and make
 * turns unequal: each time it is armed a round ends early. */
static int64_t slice(int count)
{
	(void)count;
	return SLICE;
}

/* PAUSE ends a turn in QEMU, so a CPU that waits for a lock would execute less than others. */
static void go_on(void *env)
{
	(void)env;
	cpu_loop_exit_noexc(current_cpu);
}

static bool is_known_budget(const uint8_t *code)
{
	static const uint8_t BEGIN[] = {
		0x55, 0x53, 0x89, 0xfb, 0x48, 0x83, 0xec, 0x08, 0x83, 0x3d
	};

	return !memcmp(code, BEGIN, sizeof(BEGIN)) && code[14] == 0x02 && code[15] == 0x74;
}

/* `movabs ours, %rax; jmp *%rax`, or the function of QEMU again. The caller is the thread that
 * executes the CPUs. */
static void slices(bool equal)
{
	static struct {
		void *at, *ours;
		uint8_t of_qemu[12];
	} functions[] = { { icount_percpu_budget, slice, { 0 } }, { helper_pause, go_on, { 0 } } };

	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		uint8_t jump[12] = { 0x48, 0xb8, [10] = 0xff, 0xe0 }, *at = functions[i].at;
		void *page = (void *)((uintptr_t)at & ~4095ul);

		memcpy(jump + 2, &functions[i].ours, sizeof(void *));
		if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
			abort();
		if (!functions[i].of_qemu[0])
			memcpy(functions[i].of_qemu, at, sizeof(jump));
		memcpy(at, equal ? jump : functions[i].of_qemu, sizeof(jump));
		mprotect(page, 8192, PROT_READ | PROT_EXEC);
	}
}

static void on_order(unsigned int translator, void *data)
{
	(void)translator;
	switch ((enum order)(uintptr_t)data) {
	case MARK:
		mark();
		break;
	case MODEL_ON:
	case MODEL_OFF:
		modelling = (uintptr_t)data == MODEL_ON;
		break;
	case SLICES_EQUAL:
		slices(true);
		break;
	case SLICES_OF_QEMU:
		slices(false);
		break;
	case DEVICE_BEGINS:
		device[executing()] = 1;
		break;
	case REMOTE_BEGINS:
		device[executing()] = 1 + remote;
		break;
	case DEVICE_ENDS:
		device[executing()] = 0;
		break;
	case IDLE:
		break;
	}
}

/* The order of a NOP; -1: another instruction. */
static int order_of(const uint8_t *code, size_t size)
{
	uint16_t order, magic;

	if (size != 7 || code[0] != 0x0f || code[1] != 0x1f || code[2] != 0x80)
		return -1;
	memcpy(&order, code + 3, 2);
	memcpy(&magic, code + 5, 2);
	return magic == MAGIC ? order : -1;
}

/* A return of handle_softirqs(), or a jump out of it, to the return thunk. */
static bool leaves(uint64_t at, const uint8_t *code, size_t size)
{
	int32_t distance;

	if (code[0] != 0xe9 || size != 5)
		return code[0] == 0xc3;
	memcpy(&distance, code + 1, 4);
	uint64_t to = at + 5 + (int64_t)distance;

	return to < softirq_begin || to >= softirq_end;
}

static enum event event_of(const uint8_t *code, size_t size)
{
	if (size == 1 && code[0] == 0xfc)
		return INTERRUPTS;
	return size == 2 && code[0] == 0x48 && code[1] == 0xcf ? RESUMES : NOTHING;
}

/* A call begins a block, and a return ends one. */
static void look_for_program(struct block *block, uint64_t first, const uint8_t *last)
{
	for (int i = 0; i < program_count; i++) {
		if (first < programs[i].begin || first >= programs[i].end)
			continue;
		block->program = i;
		if (first == programs[i].begin)
			block->events |= BEGINS;
		if (last[0] == 0xc3)
			block->events |= RETURNS;
	}
}

static void translate(plugin id, struct tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);
	enum mode mode = USER;
	struct block block = { .count = count };
	uint8_t code[16];
	size_t size = 0;
	void *data = NULL;

	(void)id;
	for (size_t i = 0; i < count; i++) {
		struct insn *insn = qemu_plugin_tb_get_insn(tb, i);

		size = qemu_plugin_insn_data(insn, code, sizeof(code));
		int order = order_of(code, size);

		if (program_count)
			block.events |= event_of(code, size);
		if (order == IDLE)
			mode = IN_IDLE;
		else if (mode == USER && qemu_plugin_insn_vaddr(insn) >> 63)
			mode = KERNEL;
		if (order >= 0)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_order, NO_REGISTERS,
							       (void *)(intptr_t)order);
	}
	look_for_program(&block, qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0)), code);
	for (size_t i = 0; i < count && mode != IN_IDLE; i++) {
		struct insn *insn = qemu_plugin_tb_get_insn(tb, i);

		size = qemu_plugin_insn_data(insn, code, sizeof(code));
		uint64_t at = qemu_plugin_insn_vaddr(insn);

		qemu_plugin_register_vcpu_mem_cb(insn, on_access, NO_REGISTERS, LOADS_AND_STORES,
						 (void *)(intptr_t)mode);
		if (at == softirq_begin)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_softirq, NO_REGISTERS,
							       &softirq_begin);
		else if (at > softirq_begin && at < softirq_end && leaves(at, code, size))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_softirq, NO_REGISTERS,
							       NULL);
	}
	block.mode = mode;
	memcpy(&data, &block, sizeof(block));
	qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, NO_REGISTERS, data);
}

static void instrument(plugin id)
{
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
}

static bool read_range(FILE *file, uint64_t *begin, uint64_t *end)
{
	return fscanf(file, "%" SCNx64 " %" SCNx64, begin, end) == 2;
}

static bool read_go(FILE *file)
{
	if (!read_range(file, &softirq_begin, &softirq_end))
		return false;
	while (program_count < MOST_PROGRAMS &&
	       read_range(file, &programs[program_count].begin, &programs[program_count].end))
		program_count++;
	return true;
}

static uint64_t timer[32];

static void look_for_go(void *data)
{
	FILE *file = current_cpu ? fopen(go, "r") : NULL;
	bool read = false;

	(void)data;
	if (file) {
		read = read_go(file);
		fclose(file);
	}
	if (read)
		qemu_plugin_reset(self, instrument);
	else
		timer_mod_ns(timer, icount_get() + POLL_NS);
}

static void born(plugin id, unsigned int cpu)
{
	(void)id;
	if (cpu)
		return;
	timer_init_full(timer, NULL, CLOCK_VIRTUAL, 1, 0, look_for_go, NULL);
	timer_mod_ns(timer, POLL_NS);
}

int qemu_plugin_install(plugin id, const struct info *info, int count, char **options)
{
	int cluster = 0;

	self = id;
	cpus = info->cpus;
	for (int i = 0; i < count; i++) {
		if (!strncmp(options[i], "out=", 4))
			out = fopen(options[i] + 4, "w");
		else if (!strncmp(options[i], "go=", 3))
			go = strdup(options[i] + 3);
		else if (!strncmp(options[i], "cluster=", 8))
			cluster = atoi(options[i] + 8);
	}
	if (!out || !go || !cache_init(cpus, cluster)) {
		fputs("counts: out=FILE,go=FILE,cluster=CPUS; 32 CPUs at most\n", stderr);
		return -1;
	}
	remote = (cpus - 1) / cluster;
	if (!is_known_budget((uint8_t *)(uintptr_t)icount_percpu_budget)) {
		fputs("counts: not tried with this QEMU, whose icount_percpu_budget() is another\n",
		      stderr);
		return -1;
	}
	qemu_plugin_register_vcpu_init_cb(id, born);
	return 0;
}
