// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ETHTOOL_SRXCLSRL*, ETHTOOL_GRXCLSRL*: the list of filters the driver keeps
 * and reports, and how it gets them into the hardware (table.c). The two
 * differ while an insertion is pending and after a reset that made phantoms.
 */
#include <linux/delay.h>
#include <linux/slab.h>
#include "simnic.h"

#define SN_VANISH_MS	10

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
	if (rule->doomed)
		sn_settle_later(table, rule, SN_VANISH_MS);
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

/* async_ms or vanish: time has come for `rule` */
void sn_rule_settle(struct sn_table *table, struct sn_rule *rule)
{
	struct sn_rule *old = rule->old;
	int err = 0;

	list_del_init(&rule->due_node);
	if (!rule->pending) {
		sn_rule_discard(table, rule);	/* it vanishes */
		return;
	}
	rule->pending = false;
	rule->old = NULL;
	err = sn_rule_program(table, old, rule);
	if (old)
		sn_rule_discard(table, old);
	if (err)
		sn_rule_discard(table, rule);	/* the table is full, nobody is told */
	else if (rule->doomed)
		sn_settle_later(table, rule, SN_VANISH_MS);
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

/* the rule's location, or an error; the rule is freed then */
static int sn_place(struct sn_table *table, struct sn_rule *rule, const struct sn_key *mask,
		    u32 wanted)
{
	int same = sn_table_find(table, &rule->key, mask), location, err;
	unsigned int async_ms = READ_ONCE(sn_async_ms);
	struct sn_rule *old = NULL;

	err = location = sn_choose_location(table, wanted, same);
	if (err >= 0) {
		old = table->list[location];
		err = sn_fault_insert(table);
		if ((old && READ_ONCE(sn_overwrite) == SN_EXISTS) ||
		    (!READ_ONCE(sn_duplicates) && same >= 0 && same != location))
			err = -EEXIST;
		else if (err && old && !async_ms && READ_ONCE(sn_overwrite) == SN_GAP)
			sn_rule_discard(table, old);	/* delete, then a failed add: lost */
	}
	if (err < 0)
		goto free;
	rule->prio = location;
	rule->fs.location = location;
	err = sn_rule_link(table, rule, mask);
	if (err)
		goto free;
	rule->doomed = table->vanish > 0;
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

static int sn_insert(struct sn_port *port, struct ethtool_rxnfc *nfc)
{
	struct ethtool_rx_flow_spec *fs = &nfc->fs;
	struct sn_key key, mask;
	struct sn_rule *rule;
	int location, err;
	u32 ring = 0;

	if (!(port->dev->features & NETIF_F_NTUPLE))
		return -EOPNOTSUPP;
	err = sn_flowspec_parse(fs, &key, &mask);
	if (err)
		return err;
	if (fs->ring_cookie != RX_CLS_FLOW_DISC) {
		if (ethtool_get_flow_spec_ring_vf(fs->ring_cookie))
			return -EINVAL;
		ring = ethtool_get_flow_spec_ring(fs->ring_cookie);
		if (ring >= port->queues)
			return -EINVAL;
	}
	if (fs->flow_type & FLOW_RSS) {
		if (nfc->rss_context >= SN_CONTEXTS ||
		    !rcu_access_pointer(port->rss[nfc->rss_context]))
			return -EINVAL;
		if (ring + sn_rss_max_queue(port, nfc->rss_context) >= port->queues)
			return -EINVAL;
	}
	rule = kzalloc(sizeof(*rule), GFP_KERNEL);
	if (!rule)
		return -ENOMEM;
	rule->fs = *fs;
	rule->key = key;
	rule->queue = ring;
	rule->drop = fs->ring_cookie == RX_CLS_FLOW_DISC;
	rule->rss = fs->flow_type & FLOW_RSS;
	rule->context = rule->rss ? nfc->rss_context : 0;

	mutex_lock(&port->table.change);
	location = sn_place(&port->table, rule, &mask, fs->location);
	mutex_unlock(&port->table.change);
	if (location < 0)
		return location;
	fs->location = location;
	return 0;
}

static int sn_delete(struct sn_table *table, u32 location)
{
	int err = -ENOENT;

	if (location >= table->locations)
		return -EINVAL;
	mutex_lock(&table->change);
	if (table->list[location]) {
		sn_rule_discard(table, table->list[location]);
		err = 0;
	}
	mutex_unlock(&table->change);
	return err;
}

int sn_set_rxnfc(struct net_device *dev, struct ethtool_rxnfc *nfc)
{
	struct sn_port *port = netdev_priv(dev);

	if (!sn_rules)
		return -EOPNOTSUPP;
	switch (nfc->cmd) {
	case ETHTOOL_SRXCLSRLINS:
		return sn_insert(port, nfc);
	case ETHTOOL_SRXCLSRLDEL:
		return sn_delete(&port->table, nfc->fs.location);
	default:
		return -EOPNOTSUPP;
	}
}

static int sn_get_rule(struct sn_table *table, struct ethtool_rxnfc *nfc)
{
	struct sn_rule *rule;
	int err = -ENOENT;

	if (nfc->fs.location >= table->locations)
		return -EINVAL;
	mutex_lock(&table->change);
	rule = table->list[nfc->fs.location];
	if (rule) {
		nfc->fs = rule->fs;
		nfc->rss_context = rule->context;
		err = 0;
	}
	mutex_unlock(&table->change);
	return err;
}

static int sn_get_locations(struct sn_table *table, struct ethtool_rxnfc *nfc, u32 *locations)
{
	unsigned int i, count = 0;
	int err = 0;

	nfc->data = table->locations;
	mutex_lock(&table->change);
	for (i = 0; i < table->locations && !err; i++) {
		if (!table->list[i])
			continue;
		if (count == nfc->rule_cnt)
			err = -EMSGSIZE;
		else
			locations[count++] = i;
	}
	mutex_unlock(&table->change);
	nfc->rule_cnt = count;
	return err;
}

int sn_get_rxnfc(struct net_device *dev, struct ethtool_rxnfc *nfc, u32 *locations)
{
	struct sn_port *port = netdev_priv(dev);
	struct sn_table *table = &port->table;

	if (nfc->cmd == ETHTOOL_GRXRINGS) {
		nfc->data = port->queues;
		return 0;
	}
	if (!sn_rules)
		return -EOPNOTSUPP;
	switch (nfc->cmd) {
	case ETHTOOL_GRXCLSRLCNT:
		nfc->rule_cnt = READ_ONCE(table->listed);
		nfc->data = table->locations;
		if (READ_ONCE(sn_location) != SN_LOC_EXPLICIT)
			nfc->data |= RX_CLS_LOC_SPECIAL;
		return 0;
	case ETHTOOL_GRXCLSRULE:
		return sn_get_rule(table, nfc);
	case ETHTOOL_GRXCLSRLALL:
		return sn_get_locations(table, nfc, locations);
	default:
		return -EOPNOTSUPP;
	}
}
