// SPDX-License-Identifier: GPL-2.0-or-later
/* Private L1D (32 KiB, 8 ways) within a private L2 (1 MiB, 16 ways); an LLC (32 MiB, 16 ways) that
 * gets what L2 gives up and what is read by several. MESI by line. Sets are lists of lines, the one
 * used last first; 0 is an empty way.
 *
 * Not in it: instructions, page walks, prefetchers, store buffers.
 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#define L1_SETS 64
#define L1_WAYS 8
#define L2_SETS 1024
#define L2_WAYS 16
#define LLC_SETS 32768
#define LLC_WAYS 16
#define LINES (1u << 26) /* 4 GiB */

struct line {
	uint32_t sharers; /* CPUs that have it in L2 */
	uint32_t llcs;	  /* that have it */
	int32_t owner;	  /* the CPU that may write it, + 1 */
};

static uint32_t l1[MOST_CPUS][L1_SETS][L1_WAYS];
static uint32_t l2[MOST_CPUS][L2_SETS][L2_WAYS];
static uint32_t (*llc)[LLC_SETS][LLC_WAYS];
static struct line *lines;
static int cpus, cluster;

static bool find(uint32_t *set, int ways, uint32_t line)
{
	for (int i = 0; i < ways; i++)
		if (set[i] == line) {
			memmove(set + 1, set, i * sizeof(*set));
			set[0] = line;
			return true;
		}
	return false;
}

static uint32_t put(uint32_t *set, int ways, uint32_t line)
{
	uint32_t old = set[ways - 1];

	memmove(set + 1, set, (ways - 1) * sizeof(*set));
	set[0] = line;
	return old;
}

static void drop(uint32_t *set, int ways, uint32_t line)
{
	for (int i = 0; i < ways; i++)
		if (set[i] == line) {
			memmove(set + i, set + i + 1, (ways - 1 - i) * sizeof(*set));
			set[ways - 1] = 0;
			return;
		}
}

static void llc_put(int which, uint32_t line)
{
	uint32_t *set = llc[which][line % LLC_SETS];

	if (!find(set, LLC_WAYS, line)) {
		uint32_t old = put(set, LLC_WAYS, line);

		if (old)
			lines[old].llcs &= ~(1u << which);
	}
	lines[line].llcs |= 1u << which;
}

/* Into L1 and L2 of a CPU that has it in neither. */
static void fill(int cpu, uint32_t line)
{
	uint32_t old = put(l2[cpu][line % L2_SETS], L2_WAYS, line);

	if (old) {
		drop(l1[cpu][old % L1_SETS], L1_WAYS, old);
		lines[old].sharers &= ~(1u << cpu);
		if (lines[old].owner == cpu + 1)
			lines[old].owner = 0;
		llc_put(cpu / cluster, old);
	}
	put(l1[cpu][line % L1_SETS], L1_WAYS, line);
	lines[line].sharers |= 1u << cpu;
}

/* All copies go, but those of the CPUs `kept`. */
static void drop_all(uint32_t line, uint32_t kept)
{
	struct line *of = &lines[line];

	for (int cpu = 0; cpu < cpus; cpu++)
		if (of->sharers & ~kept & 1u << cpu) {
			drop(l1[cpu][line % L1_SETS], L1_WAYS, line);
			drop(l2[cpu][line % L2_SETS], L2_WAYS, line);
		}
	for (int which = 0; which * cluster < cpus; which++)
		if (of->llcs >> which & 1)
			drop(llc[which][line % LLC_SETS], LLC_WAYS, line);
	*of = (struct line){ .sharers = kept };
}

/* It is read by another: it goes to the LLC, and no CPU may write it. */
static void share(uint32_t line)
{
	struct line *of = &lines[line];

	if (of->owner)
		llc_put((of->owner - 1) / cluster, line);
	of->owner = 0;
}

static enum found elsewhere(const struct line *of, uint32_t others, uint32_t near, int mine)
{
	if (of->owner)
		return near >> (of->owner - 1) & 1 ? DIRTY_NEAR : DIRTY_FAR;
	if (of->llcs >> mine & 1)
		return LLC;
	if (others & near)
		return CLEAN_NEAR;
	return others || of->llcs ? CLEAN_FAR : MEMORY;
}

bool cache_init(int of_cpus, int of_cluster)
{
	cpus = of_cpus;
	cluster = of_cluster;
	if (cpus < 1 || cpus > MOST_CPUS || cluster < 1 || cluster >= MOST_CPUS)
		return false;
	memset(l1, 0, sizeof(l1));
	memset(l2, 0, sizeof(l2));
	free(lines);
	free(llc);
	lines = calloc(LINES, sizeof(*lines));
	llc = calloc((cpus + cluster - 1) / cluster, sizeof(*llc));
	return lines && llc;
}

bool cache_has(uint64_t line)
{
	return line && line < LINES;
}

enum found cache_touch(int cpu, uint32_t line, bool store)
{
	struct line *of = &lines[line];
	int mine = cpu / cluster;
	uint32_t near = ((1u << cluster) - 1) << mine * cluster;
	uint32_t others = of->sharers & ~(1u << cpu);
	enum found found;

	if (find(l1[cpu][line % L1_SETS], L1_WAYS, line)) {
		found = L1;
	} else if (find(l2[cpu][line % L2_SETS], L2_WAYS, line)) {
		found = L2;
		put(l1[cpu][line % L1_SETS], L1_WAYS, line);
	} else {
		found = elsewhere(of, others, near, mine);
		if (!store)
			share(line);
		of->owner = 0;
		fill(cpu, line);
		if (!store)
			llc_put(mine, line);
	}
	if (store && of->owner != cpu + 1) {
		if (found == L1 || found == L2) {
			if (others & ~near || of->llcs & ~(1u << mine))
				found = UPGRADE_FAR;
			else if (others)
				found = UPGRADE_NEAR;
		}
		drop_all(line, 1u << cpu);
		of->owner = cpu + 1;
	}
	return found;
}

void cache_touch_by_device(int where, uint32_t line, bool store)
{
	if (!store) {
		share(line);
		return;
	}
	drop_all(line, 0);
	llc_put(where, line);
}
