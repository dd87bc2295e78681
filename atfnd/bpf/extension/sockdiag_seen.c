/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Which sockets a watcher saw in the last dump: an open-addressing table rebuilt from each dump, so
 * that idle sockets cost a lookup and never reach Python: about 100 bytes a socket. No kernel
 * interface is used here.
 */
#include "sockdiag.h"

#include <errno.h>
#include <stdlib.h>

#define MISSES_TO_BE_GONE 2

struct table {
	struct seen_slot *slot;
	size_t mask; /* slots - 1, a power of two; cookie 0 marks a free slot (cookies start at 1) */
	size_t used;
};

struct seen {
	struct table table;
};

struct seen *seen_new(void)
{
	return calloc(1, sizeof(struct seen));
}

void seen_free(struct seen *seen)
{
	if (seen)
		free(seen->table.slot);
	free(seen);
}

/* Cookies are handed out per CPU in batches: multiply to spread their low bits (Fibonacci hashing). */
static struct seen_slot *find(const struct table *table, __u64 cookie)
{
	size_t i = (cookie * 0x9e3779b97f4a7c15ULL) >> 32;

	while (table->slot[i & table->mask].cookie && table->slot[i & table->mask].cookie != cookie)
		i++;
	return &table->slot[i & table->mask];
}

static int table_for(struct table *table, size_t entries)
{
	size_t slots = 64;

	while (slots < entries + entries / 4 + 1)
		slots *= 2;
	table->slot = calloc(slots, sizeof(*table->slot));
	table->mask = slots - 1;
	return table->slot ? 0 : ENOMEM;
}

/* Keeps what this dump lacks but the one before it had, or reports it gone. */
static int carry_over(const struct table *old, struct table *table, __u64 **gone,
		      size_t *gone_count)
{
	*gone = NULL;
	*gone_count = 0;
	if (!old->slot)
		return 0;
	*gone = malloc((old->used + 1) * sizeof(**gone));
	if (!*gone)
		return ENOMEM;
	for (size_t i = 0; i <= old->mask; i++) {
		struct seen_slot *slot = &old->slot[i], *kept;

		if (!slot->cookie)
			continue;
		kept = find(table, slot->cookie);
		if (kept->cookie)
			continue;
		if (slot->missed + 1 >= MISSES_TO_BE_GONE) {
			(*gone)[(*gone_count)++] = slot->cookie;
			continue;
		}
		*kept = *slot;
		kept->missed++;
		table->used++;
	}
	return 0;
}

int seen_compare(struct seen *seen, struct records *records, __u64 now_ns, __u64 min_bytes,
		 __u64 min_age_ns, __u64 **gone, size_t *gone_count)
{
	struct table *old = &seen->table, table = { 0 };
	size_t kept = 0;
	int err = table_for(&table, records->count + old->used);

	if (err)
		return err;
	for (size_t i = 0; i < records->count; i++) {
		struct sockdiag_record *record = &records->at[i];
		struct seen_slot *before = old->slot ? find(old, record->cookie) : NULL;
		struct seen_slot *slot = find(&table, record->cookie);
		int known = before && before->cookie;
		/* without counters (UDP) nothing says it was not used: the caller looks at threads */
		int counted = record->app_bytes != SOCKDIAG_NOT_SAID;
		int used = !counted || (known && before->bytes != record->app_bytes);

		record->first_ns = known ? before->first_ns : now_ns;
		table.used += !slot->cookie;
		*slot = (struct seen_slot){ record->cookie, record->app_bytes, record->first_ns,
					    0 };
		if (used && now_ns - record->first_ns >= min_age_ns &&
		    (!counted || record->app_bytes >= min_bytes))
			records->at[kept++] = *record;
	}
	err = carry_over(old, &table, gone, gone_count);
	if (err) {
		free(table.slot);
		return err;
	}
	records->count = kept;
	free(old->slot);
	*old = table;
	return 0;
}
