/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Filters. The list is what the driver reports (ntuple.c); the hardware uses
 * the rules of it that are live, and those of aRFS.
 */
#ifndef SIMNIC_RULE_H
#define SIMNIC_RULE_H

#include <linux/ethtool.h>
#include <linux/in.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/rculist.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

struct sn_port;

/* what filters compare: network order; protocol 0 is a fragment's */
struct sn_key {
	__be32 src[4], dst[4];
	__be16 sport, dport;
	u8 proto, v6;
	u16 zero;
};

static inline bool sn_key_has_ports(const struct sn_key *key)
{
	return key->proto == IPPROTO_TCP || key->proto == IPPROTO_UDP;
}

struct sn_mask {		/* filters of one mask share a hash lookup */
	struct list_head node;
	struct sn_key bits;
	unsigned int users;
	struct rcu_head rcu;
};

struct sn_rule {
	struct hlist_node node;	/* hashed by match, live or not */
	struct sn_mask *mask;
	struct sn_key key;	/* masked */
	u32 prio;		/* the lowest wins: its location, aRFS after all */
	u32 queue;		/* an offset, with rss */
	bool drop, rss, arfs;
	bool live;		/* the hardware has it */
	u32 context;		/* RSS context, with rss */
	u32 id;			/* aRFS: the filter id the stack knows */
	u32 flow_id;		/* aRFS: what rps_may_expire_flow() is asked with */
	struct ethtool_rx_flow_spec fs;	/* as it was given, location filled in */
	struct list_head due_node;	/* settle.c */
	unsigned long due;	/* jiffies */
	bool pending;		/* listed, takes effect when it is due */
	struct sn_rule *old;	/* what it replaces when it takes effect */
	struct rcu_head rcu;
};

struct sn_table {
	struct mutex change;	/* list, due, faults */
	spinlock_t lock;	/* buckets, masks, live; BH */
	struct hlist_head *bucket;
	unsigned int bits;
	struct list_head masks;
	unsigned int slots;	/* filters the hardware has room for */
	unsigned int live;	/* slots in use */

	struct sn_rule **list;	/* by location: what the driver reports */
	unsigned int locations;
	unsigned int listed;

	struct list_head due;
	struct delayed_work settle;

	spinlock_t arfs_lock;	/* arfs and what is in it; BH */
	struct sn_rule **arfs;	/* by filter id */
	unsigned int narfs, arfs_next;
	struct delayed_work expire;

	int fail_errno;		/* fault.c */
	unsigned int fail_after;
};

/* table.c */
int sn_table_init(struct sn_table *table, unsigned int slots, unsigned int locations);
void sn_table_free(struct sn_table *table);
struct sn_rule *sn_table_lookup(struct sn_table *table, const struct sn_key *key);
int sn_table_find(struct sn_table *table, const struct sn_key *key, const struct sn_key *mask);
struct sn_rule *sn_table_find_arfs(struct sn_table *table, const struct sn_key *key);
int sn_rule_link(struct sn_table *table, struct sn_rule *rule, const struct sn_key *mask);
void sn_rule_unlink(struct sn_table *table, struct sn_rule *rule);
int sn_rule_arm(struct sn_table *table, struct sn_rule *rule);
void sn_rule_disarm(struct sn_table *table, struct sn_rule *rule);
void sn_rule_swap(struct sn_table *table, struct sn_rule *old, struct sn_rule *rule);

/* flowspec.c */
int sn_flowspec_parse(const struct ethtool_rx_flow_spec *fs, struct sn_key *key,
		      struct sn_key *mask);

/* place.c; all under sn_table.change */
int sn_rule_place(struct sn_table *table, struct sn_rule *rule, const struct sn_key *mask,
		  u32 wanted);
void sn_rule_settle(struct sn_table *table, struct sn_rule *rule);
void sn_rule_discard(struct sn_table *table, struct sn_rule *rule);

/* ntuple.c */
int sn_get_rxnfc(struct net_device *dev, struct ethtool_rxnfc *nfc, u32 *locations);
int sn_set_rxnfc(struct net_device *dev, struct ethtool_rxnfc *nfc);

/* settle.c */
void sn_settle_init(struct sn_table *table);
void sn_settle_later(struct sn_table *table, struct sn_rule *rule, unsigned int ms);
void sn_rules_wipe(struct sn_table *table);
void sn_rules_forget(struct sn_table *table);
bool sn_rules_use_context(struct sn_table *table, u32 context);
int sn_rules_highest_queue(struct sn_port *port);

/* arfs.c */
void sn_arfs_init(struct sn_table *table);
int sn_arfs_rmap(struct sn_port *port);
void sn_arfs_rmap_free(struct sn_port *port);
void sn_arfs_wipe(struct sn_table *table);
int sn_rx_flow_steer(struct net_device *dev, const struct sk_buff *skb, u16 rxq, u32 flow_id);

#endif
