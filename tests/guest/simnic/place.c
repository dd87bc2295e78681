// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How a filter gets into the list the driver reports, and from there into the
 * hardware (table.c): the classes of drivers. The two differ while an
 * insertion is pending and after a reset that made ineffective filters.
 */
#include <linux/delay.h>
#include <linux/slab.h>
#include "simnic.h"

static void sn_list_put(struct sn_table *table, u32 location, struct sn_rule *rule)
{
	lockdep_assert_held(&table->change);
	WRITE_ONCE(table->listed, table->listed + !!rule - !!table->list[location]);
	table->list[location] = rule;
}

/* free a rule, listed or not, and what it was about to replace */
void sn_rule_discard(struct sn_table *table, struct sn_rule *rule)
{
	if (table->list[rule->prio] == rule)
		sn_list_put(table, rule->prio, NULL);
	list_del_init(&rule->due_node);
	if (rule->old)
		sn_rule_unlink(table, rule->old);
	sn_rule_unlink(table, rule);
}

/*
 * Make the hardware use `rule`, instead of `old` (may be NULL, or not in the
 * hardware). With overwrite=gap the old one is out even when this fails.
 */
static int sn_rule_program(struct sn_table *table, struct sn_rule *old, struct sn_rule *rule)
{
	unsigned int gap_us = READ_ONCE(sn_gap_us);

	lockdep_assert_held(&table->change);
	if (old && READ_ONCE(sn_overwrite) == SN_GAP) {
		sn_rule_disarm(table, old);
		if (gap_us)
			fsleep(gap_us);
	}
	if (!old || !old->live)
		return sn_rule_arm(table, rule);
	sn_rule_swap(table, old, rule);
	return 0;
}

/* in one go; async_ms=0 */
static int sn_place_now(struct sn_table *table, struct sn_rule *old, struct sn_rule *rule)
{
	int err = sn_rule_program(table, old, rule);

	if (err) {
		sn_rule_unlink(table, rule);
		if (old && READ_ONCE(sn_overwrite) == SN_GAP)
			sn_rule_discard(table, old);
		return err;
	}
	sn_list_put(table, rule->prio, rule);
	if (old)
		sn_rule_discard(table, old);
	return 0;
}

/* listed now, in the hardware later, if it has room then */
static void sn_place_later(struct sn_table *table, struct sn_rule *old, struct sn_rule *rule,
			   unsigned int async_ms)
{
	sn_list_put(table, rule->prio, rule);
	rule->pending = true;
	rule->old = old;
	if (old)
		list_del_init(&old->due_node);
	if (old && old->pending) {	/* it never got in, what it would have replaced is */
		rule->old = old->old;
		old->old = NULL;
		sn_rule_discard(table, old);
	}
	sn_settle_later(table, rule, async_ms);
}

/* async_ms: time has come for `rule` */
void sn_rule_settle(struct sn_table *table, struct sn_rule *rule)
{
	struct sn_rule *old = rule->old;
	int err;

	list_del_init(&rule->due_node);
	rule->pending = false;
	rule->old = NULL;
	err = sn_rule_program(table, old, rule);
	if (old)
		sn_rule_discard(table, old);
	if (err)
		sn_rule_discard(table, rule);	/* the table is full, and nobody learns it */
}

static int sn_choose_location(struct sn_table *table, u32 wanted, int same)
{
	enum sn_location style = READ_ONCE(sn_location);
	u32 location;

	if (!(wanted & RX_CLS_LOC_SPECIAL))
		return style != SN_LOC_ANY && wanted < table->locations ? (int)wanted : -EINVAL;
	if (wanted != RX_CLS_LOC_ANY || style == SN_LOC_EXPLICIT)
		return -EINVAL;
	if (same >= 0)
		return same;	/* the same match again is the same filter */
	for (location = 0; location < table->locations; location++)
		if (!table->list[location])
			return location;
	return -ENOSPC;
}

/* Insert a rule, with table->change held. Returns its location, or an error and frees it. */
int sn_rule_place(struct sn_table *table, struct sn_rule *rule, const struct sn_key *mask,
		  u32 wanted)
{
	int same = sn_table_find(table, &rule->key, mask), location, err;
	unsigned int async_ms = READ_ONCE(sn_async_ms);
	struct sn_rule *old;

	location = sn_choose_location(table, wanted, same);
	if (location < 0) {
		err = location;
		goto free;
	}
	old = table->list[location];
	err = -EEXIST;
	if ((old && READ_ONCE(sn_overwrite) == SN_EXISTS) ||
	    (!READ_ONCE(sn_duplicates) && same >= 0 && same != location))
		goto free;
	err = sn_fault_insert(table);
	if (err) {
		if (old && !async_ms && READ_ONCE(sn_overwrite) == SN_GAP)
			sn_rule_discard(table, old);	/* deleted, then not added: lost */
		goto free;
	}
	rule->prio = location;
	rule->fs.location = location;
	err = sn_rule_link(table, rule, mask);
	if (err)
		goto free;
	if (async_ms)
		sn_place_later(table, old, rule, async_ms);
	else
		err = sn_place_now(table, old, rule);
	if (err)
		return err;
	sn_fault_inserted(table);
	return location;
free:
	kfree(rule);
	return err;
}
