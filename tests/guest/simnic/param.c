// SPDX-License-Identifier: GPL-2.0-or-later
/* Module parameters: the shape of the ports and how their hardware behaves. */
#include <linux/module.h>
#include <linux/string.h>
#include "simnic.h"

/* the shape, fixed when the module is loaded */
unsigned int sn_pairs = 1, sn_max_queues = 8, sn_queues = 4, sn_ring = 256, sn_slots = 64;
int sn_node = NUMA_NO_NODE;
bool sn_ntuple_on = true, sn_rules = true, sn_arfs = true;
char *sn_drvname = "simnic";

/* behaviour, read at each insertion: may be changed while loaded */
int sn_location = SN_LOC_BOTH, sn_overwrite = SN_IN_PLACE, sn_persist = SN_PERSIST_ALL;
unsigned int sn_gap_us = 10, sn_async_ms;
bool sn_masks = true, sn_v6 = true, sn_duplicates = true, sn_dma;

/* a parameter that takes one of a few words */
struct sn_choice {
	int *value;
	const char * const *words;
};

static int sn_choice_set(const char *text, const struct kernel_param *kp)
{
	const struct sn_choice *choice = kp->arg;
	int found = __sysfs_match_string(choice->words, -1, text);

	if (found < 0)
		return found;
	WRITE_ONCE(*choice->value, found);
	return 0;
}

static int sn_choice_get(char *buffer, const struct kernel_param *kp)
{
	const struct sn_choice *choice = kp->arg;

	return sysfs_emit(buffer, "%s\n", choice->words[*choice->value]);
}

static const struct kernel_param_ops sn_choice_ops = {
	.set = sn_choice_set,
	.get = sn_choice_get,
};

/* __sysfs_match_string() with -1 reads up to NULL */
#define SN_CHOICE(name, ...)						\
	static const char * const sn_##name##_words[] = { __VA_ARGS__, NULL }; \
	static struct sn_choice sn_##name##_choice = { &sn_##name, sn_##name##_words }; \
	module_param_cb(name, &sn_choice_ops, &sn_##name##_choice, 0644)

module_param_named(pairs, sn_pairs, uint, 0444);
MODULE_PARM_DESC(pairs, "pairs of ports (1); 0: bind NVMe carriers and use their MSI-X vectors");
module_param_named(max_queues, sn_max_queues, uint, 0444);
MODULE_PARM_DESC(max_queues, "queues a port can have, at most 64 (8)");
module_param_named(queues, sn_queues, uint, 0444);
MODULE_PARM_DESC(queues, "queues in use at first (4)");
module_param_named(ring, sn_ring, uint, 0444);
MODULE_PARM_DESC(ring, "descriptors in a receive ring at first, 8..4096 (256)");
module_param_named(table, sn_slots, uint, 0444);
MODULE_PARM_DESC(table, "filter slots of a port (64)");
module_param_named(node, sn_node, int, 0444);
MODULE_PARM_DESC(node, "NUMA node of the ports (none)");
module_param_named(drvname, sn_drvname, charp, 0444);
MODULE_PARM_DESC(drvname, "driver name ETHTOOL_GDRVINFO reports (simnic)");
module_param_named(ntuple_on, sn_ntuple_on, bool, 0444);
MODULE_PARM_DESC(ntuple_on, "the feature ntuple-filters is on at first (1)");
module_param_named(arfs, sn_arfs, bool, 0444);
MODULE_PARM_DESC(arfs, "0: the driver writes no filters for RFS (1)");
module_param_named(rules, sn_rules, bool, 0444);
MODULE_PARM_DESC(rules, "0: no filters at all, each request is EOPNOTSUPP (1)");
SN_CHOICE(location, "explicit", "any", "both");
MODULE_PARM_DESC(location, "who chooses a filter's location: explicit, any, both (both)");
SN_CHOICE(overwrite, "in_place", "gap", "exists");
MODULE_PARM_DESC(overwrite, "an insert at a used location: in_place, gap, exists (in_place)");
module_param_named(gap_us, sn_gap_us, uint, 0644);
MODULE_PARM_DESC(gap_us, "overwrite=gap: microseconds without either filter (10)");
module_param_named(async_ms, sn_async_ms, uint, 0644);
MODULE_PARM_DESC(async_ms, "an insert takes effect, or fails unseen, so much later (0: at once)");
module_param_named(masks, sn_masks, bool, 0644);
MODULE_PARM_DESC(masks, "filters may leave fields open; 0: exact 5-tuples, else EINVAL (1)");
module_param_named(v6, sn_v6, bool, 0644);
MODULE_PARM_DESC(v6, "IPv6 filters; 0: EINVAL (1)");
module_param_named(duplicates, sn_duplicates, bool, 0644);
MODULE_PARM_DESC(duplicates, "the same match at several locations; 0: EEXIST (1)");
module_param_named(dma, sn_dma, bool, 0644);
MODULE_PARM_DESC(dma, "1: frames are copied whole, which a counted machine takes for DMA (0)");
SN_CHOICE(persist, "all", "ifdown");
MODULE_PARM_DESC(persist, "filters survive ifdown, -L and reset: all; are lost then: ifdown (all)");

int sn_param_check(void)
{
	if (sn_pairs * 2 > SN_MAX_PORTS || !sn_max_queues || sn_max_queues > SN_MAX_QUEUES ||
	    !sn_queues || sn_queues > sn_max_queues || sn_ring < SN_MIN_RING ||
	    sn_ring > SN_MAX_RING || !sn_slots || sn_slots > SN_MAX_TABLE)
		return -EINVAL;
	if (sn_node != NUMA_NO_NODE && (sn_node < 0 || sn_node >= MAX_NUMNODES ||
					!node_online(sn_node)))
		return -EINVAL;
	return 0;
}
