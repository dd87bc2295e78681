/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A model of the caches of several CPUs: where each access finds its line. */
#ifndef COUNTED_CACHE_H
#define COUNTED_CACHE_H

#include <stdbool.h>
#include <stdint.h>

enum { MOST_CPUS = 32 };

/* Near: in a cache of the same LLC's CPUs. Dirty: another CPU may have written it last. Upgrade: a
 * store to a line that this CPU had, and that others had to give up. KINDS in counts.py has these. */
enum found {
	L1,
	L2,
	LLC,
	DIRTY_NEAR,
	CLEAN_NEAR,
	DIRTY_FAR,
	CLEAN_FAR,
	MEMORY,
	UPGRADE_NEAR,
	UPGRADE_FAR,
	KINDS,
};

/* `cluster` CPUs share an LLC. False: too many, or no memory. */
bool cache_init(int cpus, int cluster);

/* CPU `cpu` loads from, or stores to, line `line`: a physical address / 64, not 0. */
enum found cache_touch(int cpu, uint32_t line, bool store);

/* A device does so, by DMA: what it stores is in LLC `where` and in no other cache. */
void cache_touch_by_device(int where, uint32_t line, bool store);

/* Whether the model follows this line. */
bool cache_has(uint64_t line);

#endif
