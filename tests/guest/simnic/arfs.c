// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Accelerated RFS: the stack asks for a flow's filter as its application
 * moves (ndo_rx_flow_steer), and is asked when one may go. These filters take
 * slots of the same table, are not listed by ethtool, and lose to the user's.
 */
#include <linux/cpu_rmap.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "simnic.h"

#define SN_EXPIRE	HZ

#ifdef CONFIG_RFS_ACCEL
int sn_arfs_rmap(struct sn_port *port)
{
	unsigned int i;
	int err = 0;

	port->dev->rx_cpu_rmap = alloc_irq_cpu_rmap(port->queues);
	if (!port->dev->rx_cpu_rmap)
		return -ENOMEM;
	for (i = 0; i < port->queues && !err; i++)
		err = irq_cpu_rmap_add(port->dev->rx_cpu_rmap, port->queue[i].irq);
	if (err)
		sn_arfs_rmap_free(port);
	return err;
}

void sn_arfs_rmap_free(struct sn_port *port)
{
	free_irq_cpu_rmap(port->dev->rx_cpu_rmap);
	port->dev->rx_cpu_rmap = NULL;
}

/* a free filter id; there is one: fewer are in use than there are slots */
static u32 sn_arfs_id(struct sn_table *table)
{
	u32 id = table->arfs_next;

	while (table->arfs[id])
		id = (id + 1) % table->slots;
	table->arfs_next = (id + 1) % table->slots;
	return id;
}

static int sn_arfs_add(struct sn_table *table, const struct sn_key *key, u32 queue, u32 flow_id)
{
	struct sn_rule *rule = kzalloc(sizeof(*rule), GFP_ATOMIC);
	struct sn_key exact;
	int err;

	lockdep_assert_held(&table->arfs_lock);
	if (!rule)
		return -ENOMEM;
	memset(&exact, 0xff, sizeof(exact));
	rule->key = *key;
	rule->queue = queue;
	rule->flow_id = flow_id;
	rule->arfs = true;
	rule->prio = U32_MAX;
	err = sn_rule_link(table, rule, &exact);
	if (err) {
		kfree(rule);
		return err;
	}
	err = sn_rule_arm(table, rule);
	if (err) {
		sn_rule_unlink(table, rule);
		return err;
	}
	rule->id = sn_arfs_id(table);
	table->arfs[rule->id] = rule;
	table->narfs++;
	mod_delayed_work(system_wq, &table->expire, SN_EXPIRE);
	return rule->id;
}

static void sn_arfs_remove(struct sn_table *table, struct sn_rule *rule)
{
	lockdep_assert_held(&table->arfs_lock);
	table->arfs[rule->id] = NULL;
	table->narfs--;
	sn_rule_unlink(table, rule);
}

/* softirq; returns the filter's id */
int sn_rx_flow_steer(struct net_device *dev, const struct sk_buff *skb, u16 rxq, u32 flow_id)
{
	struct sn_port *port = netdev_priv(dev);
	struct sn_table *table = &port->table;
	struct sn_rule *rule;
	struct sn_key key;
	int id;

	if (!sn_rules || !(dev->features & NETIF_F_NTUPLE))
		return -EOPNOTSUPP;
	if (!sn_dissect(skb, skb->protocol, 0, &key) || !sn_key_has_ports(&key))
		return -EPROTONOSUPPORT;
	spin_lock_bh(&table->arfs_lock);
	rule = sn_table_find_arfs(table, &key);
	if (rule) {
		WRITE_ONCE(rule->queue, rxq);
		rule->flow_id = flow_id;
		id = rule->id;
	} else {
		id = sn_arfs_add(table, &key, rxq, flow_id);
	}
	spin_unlock_bh(&table->arfs_lock);
	return id;
}

static void sn_arfs_expire(struct work_struct *work)
{
	struct sn_table *table = container_of(to_delayed_work(work), struct sn_table, expire);
	struct sn_port *port = container_of(table, struct sn_port, table);
	struct sn_rule *rule;
	u32 id;

	for (id = 0; id < table->slots; id++) {
		spin_lock_bh(&table->arfs_lock);
		rule = table->arfs[id];
		if (rule && rps_may_expire_flow(port->dev, rule->queue, rule->flow_id, id))
			sn_arfs_remove(table, rule);
		spin_unlock_bh(&table->arfs_lock);
	}
	if (READ_ONCE(table->narfs))
		mod_delayed_work(system_wq, &table->expire, SN_EXPIRE);
}

void sn_arfs_wipe(struct sn_table *table)
{
	u32 id;

	spin_lock_bh(&table->arfs_lock);
	for (id = 0; id < table->slots; id++)
		if (table->arfs[id])
			sn_arfs_remove(table, table->arfs[id]);
	spin_unlock_bh(&table->arfs_lock);
}

void sn_arfs_init(struct sn_table *table)
{
	spin_lock_init(&table->arfs_lock);
	INIT_DELAYED_WORK(&table->expire, sn_arfs_expire);
}
#else
int sn_arfs_rmap(struct sn_port *port)
{
	return 0;
}

void sn_arfs_rmap_free(struct sn_port *port)
{
}

void sn_arfs_wipe(struct sn_table *table)
{
}

/* never queued */
static void sn_arfs_expire(struct work_struct *work)
{
}

void sn_arfs_init(struct sn_table *table)
{
	INIT_DELAYED_WORK(&table->expire, sn_arfs_expire);
}
#endif
