// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What happens to many rules or later: insertions that take effect after
 * async_ms, and what resets and ifdown do to the table.
 */
#include <linux/workqueue.h>
#include "simnic.h"

/* `rule` is due in `ms`: it takes effect then */
void sn_settle_later(struct sn_table *table, struct sn_rule *rule, unsigned int ms)
{
	lockdep_assert_held(&table->change);
	rule->due = jiffies + msecs_to_jiffies(ms);
	list_move_tail(&rule->due_node, &table->due);
	/* sooner than the work may be set to run: it looks at all */
	mod_delayed_work(system_wq, &table->settle, 0);
}

static void sn_settle_work(struct work_struct *work)
{
	struct sn_table *table = container_of(to_delayed_work(work), struct sn_table, settle);
	unsigned long now = jiffies, next = 0;
	struct sn_rule *rule, *spare;

	mutex_lock(&table->change);
	list_for_each_entry_safe(rule, spare, &table->due, due_node) {
		if (time_after_eq(now, rule->due))
			sn_rule_settle(table, rule);
	}
	list_for_each_entry(rule, &table->due, due_node)
		if (!next || time_before(rule->due, next))
			next = rule->due;
	if (!list_empty(&table->due))
		mod_delayed_work(system_wq, &table->settle,
				 time_after(next, jiffies) ? next - jiffies : 0);
	mutex_unlock(&table->change);
}

void sn_settle_init(struct sn_table *table)
{
	INIT_LIST_HEAD(&table->due);
	INIT_DELAYED_WORK(&table->settle, sn_settle_work);
}

/* the hardware and the list lose every rule */
void sn_rules_wipe(struct sn_table *table)
{
	u32 location;

	sn_arfs_wipe(table);
	mutex_lock(&table->change);
	for (location = 0; location < table->locations; location++)
		if (table->list[location])
			sn_rule_discard(table, table->list[location]);
	mutex_unlock(&table->change);
}

/* the hardware loses every rule, the list keeps them: ineffective filters */
void sn_rules_forget(struct sn_table *table)
{
	struct sn_rule *rule;
	u32 location;

	sn_arfs_wipe(table);
	mutex_lock(&table->change);
	for (location = 0; location < table->locations; location++) {
		rule = table->list[location];
		if (!rule)
			continue;
		if (rule->old)
			sn_rule_unlink(table, rule->old);
		rule->old = NULL;
		rule->pending = false;
		list_del_init(&rule->due_node);
		sn_rule_disarm(table, rule);
	}
	mutex_unlock(&table->change);
}

bool sn_rules_use_context(struct sn_table *table, u32 context)
{
	struct sn_rule *rule;
	bool used = false;
	u32 location;

	mutex_lock(&table->change);
	for (location = 0; location < table->locations; location++) {
		rule = table->list[location];
		if (!rule)
			continue;
		used |= rule->rss && rule->context == context;
		used |= rule->old && rule->old->rss && rule->old->context == context;
	}
	mutex_unlock(&table->change);
	return used;
}

/* The highest queue that rules reach through RSS contexts, -1: none do. Under RTNL. */
int sn_rules_highest_queue(struct sn_port *port)
{
	struct sn_table *table = &port->table;
	struct sn_rule *rule;
	int highest = -1;
	u32 location;

	mutex_lock(&table->change);
	for (location = 0; location < table->locations; location++) {
		rule = table->list[location];
		if (rule && rule->rss)
			highest = max_t(int, highest,
					rule->queue + sn_rss_max_queue(port, rule->context));
	}
	mutex_unlock(&table->change);
	return highest;
}
