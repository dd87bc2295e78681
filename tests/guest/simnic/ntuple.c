// SPDX-License-Identifier: GPL-2.0-or-later
/* ETHTOOL_SRXCLSRL*, ETHTOOL_GRXCLSRL*: filters inserted, deleted and listed. */
#include <linux/slab.h>
#include "simnic.h"

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
	location = sn_rule_place(&port->table, rule, &mask, fs->location);
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
