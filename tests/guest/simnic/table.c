// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The filter table as the hardware has it. Filters are hashed by what they
 * match, one lookup for each mask in use, so thousands of exact filters cost
 * what one does. The lowest location wins; user's filters win over aRFS's.
 */
#include <linux/jhash.h>
#include <linux/slab.h>
#include "simnic.h"

int sn_table_init(struct sn_table *table, unsigned int slots, unsigned int locations)
{
	mutex_init(&table->change);
	spin_lock_init(&table->lock);
	INIT_LIST_HEAD(&table->masks);
	table->slots = slots;
	table->locations = locations;
	table->bits = max(ilog2(slots) + 1, 4);
	table->bucket = kvcalloc(1 << table->bits, sizeof(*table->bucket), GFP_KERNEL);
	table->list = kvcalloc(locations, sizeof(*table->list), GFP_KERNEL);
	table->arfs = kvcalloc(slots, sizeof(*table->arfs), GFP_KERNEL);
	sn_settle_init(table);
	sn_arfs_init(table);
	return table->bucket && table->list && table->arfs ? 0 : -ENOMEM;
}

/* the works are cancelled, nobody changes it any more */
void sn_table_free(struct sn_table *table)
{
	kvfree(table->bucket);
	kvfree(table->list);
	kvfree(table->arfs);
}

static void sn_key_mask(struct sn_key *key, const struct sn_key *mask)
{
	const u32 *bits = (const u32 *)mask;
	u32 *words = (u32 *)key;
	unsigned int i;

	BUILD_BUG_ON(sizeof(*key) % sizeof(u32));
	for (i = 0; i < sizeof(*key) / sizeof(u32); i++)
		words[i] &= bits[i];
}

static struct hlist_head *sn_bucket(struct sn_table *table, const struct sn_key *key)
{
	u32 hash = jhash2((const u32 *)key, sizeof(*key) / sizeof(u32), 0);

	return &table->bucket[hash >> (32 - table->bits)];
}

/* under RCU */
struct sn_rule *sn_table_lookup(struct sn_table *table, const struct sn_key *key)
{
	struct sn_rule *rule, *best = NULL;
	struct sn_key masked;
	struct sn_mask *mask;

	list_for_each_entry_rcu(mask, &table->masks, node) {
		masked = *key;
		sn_key_mask(&masked, &mask->bits);
		hlist_for_each_entry_rcu(rule, sn_bucket(table, &masked), node) {
			/* sn_rule_swap() */
			if (rule->mask != mask || !smp_load_acquire(&rule->live) ||
			    memcmp(&rule->key, &masked, sizeof(masked)))
				continue;
			if (!best || rule->prio < best->prio)
				best = rule;
		}
	}
	return best;
}

/* The location of a listed filter with this very match, -1: there is none. */
int sn_table_find(struct sn_table *table, const struct sn_key *key, const struct sn_key *mask)
{
	struct sn_key masked = *key;
	struct sn_rule *rule;
	int found = -1;

	sn_key_mask(&masked, mask);
	spin_lock_bh(&table->lock);
	hlist_for_each_entry(rule, sn_bucket(table, &masked), node) {
		if (rule->arfs || table->list[rule->prio] != rule)
			continue;
		if (!memcmp(&rule->key, &masked, sizeof(masked)) &&
		    !memcmp(&rule->mask->bits, mask, sizeof(*mask))) {
			found = rule->prio;
			break;
		}
	}
	spin_unlock_bh(&table->lock);
	return found;
}

/* the aRFS filter of a flow; under arfs_lock */
struct sn_rule *sn_table_find_arfs(struct sn_table *table, const struct sn_key *key)
{
	struct sn_rule *rule, *found = NULL;

	spin_lock_bh(&table->lock);
	hlist_for_each_entry(rule, sn_bucket(table, key), node) {
		if (rule->arfs && !memcmp(&rule->key, key, sizeof(*key))) {
			found = rule;
			break;
		}
	}
	spin_unlock_bh(&table->lock);
	return found;
}

static struct sn_mask *sn_mask_get(struct sn_table *table, const struct sn_key *bits)
{
	struct sn_mask *mask;

	list_for_each_entry(mask, &table->masks, node) {
		if (!memcmp(&mask->bits, bits, sizeof(*bits))) {
			mask->users++;
			return mask;
		}
	}
	mask = kzalloc(sizeof(*mask), GFP_ATOMIC);
	if (!mask)
		return NULL;
	mask->bits = *bits;
	mask->users = 1;
	list_add_tail_rcu(&mask->node, &table->masks);
	return mask;
}

/* Make a rule with its key and prio known to the table; the hardware does not use it yet. */
int sn_rule_link(struct sn_table *table, struct sn_rule *rule, const struct sn_key *mask)
{
	int err = -ENOMEM;

	INIT_LIST_HEAD(&rule->due_node);
	sn_key_mask(&rule->key, mask);
	spin_lock_bh(&table->lock);
	rule->mask = sn_mask_get(table, mask);
	if (rule->mask) {
		/* behind the one it may replace, see sn_rule_swap() */
		hlist_add_tail_rcu(&rule->node, sn_bucket(table, &rule->key));
		err = 0;
	}
	spin_unlock_bh(&table->lock);
	return err;
}

static void sn_set_live(struct sn_table *table, struct sn_rule *rule, bool live)
{
	lockdep_assert_held(&table->lock);
	if (rule->live == live)
		return;
	smp_store_release(&rule->live, live);
	WRITE_ONCE(table->live, table->live + (live ? 1 : -1));
}

/* the hardware takes it: ENOSPC */
int sn_rule_arm(struct sn_table *table, struct sn_rule *rule)
{
	int err = 0;

	spin_lock_bh(&table->lock);
	if (table->live >= table->slots && !rule->live)
		err = -ENOSPC;
	else
		sn_set_live(table, rule, true);
	spin_unlock_bh(&table->lock);
	return err;
}

void sn_rule_disarm(struct sn_table *table, struct sn_rule *rule)
{
	spin_lock_bh(&table->lock);
	sn_set_live(table, rule, false);
	spin_unlock_bh(&table->lock);
}

/*
 * `rule` in the slot of `old`. A lookup that no longer sees the old one live
 * comes to the new one later in the bucket and sees that live: no gap.
 */
void sn_rule_swap(struct sn_table *table, struct sn_rule *old, struct sn_rule *rule)
{
	spin_lock_bh(&table->lock);
	sn_set_live(table, rule, true);
	sn_set_live(table, old, false);
	spin_unlock_bh(&table->lock);
}

/* out of the hardware and the table; freed when no frame can see it */
void sn_rule_unlink(struct sn_table *table, struct sn_rule *rule)
{
	struct sn_mask *mask = rule->mask;

	spin_lock_bh(&table->lock);
	sn_set_live(table, rule, false);
	hlist_del_rcu(&rule->node);
	if (!--mask->users) {
		list_del_rcu(&mask->node);
		kfree_rcu(mask, rcu);
	}
	spin_unlock_bh(&table->lock);
	kfree_rcu(rule, rcu);
}
