/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * simnic: pairs of cross-wired test NICs whose receiving side is a NIC with
 * filters, RSS, descriptor rings and one interrupt per queue.
 *
 * A frame sent by one port is classified by the port at the other end of the
 * wire (classify.c) and put on a ring of it (wire.c). The queue's interrupt
 * (irq.c) schedules its NAPI (ring.c) on the CPU its affinity selects.
 *
 * Locks, outermost first: RTNL; sn_table.change (process context, held across
 * the gaps of slow hardware); sn_table.arfs_lock (BH); sn_table.lock (BH). The packet path takes none
 * of them, it is under RCU.
 */
#ifndef SIMNIC_H
#define SIMNIC_H

#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/ptr_ring.h>
#include <linux/rtnetlink.h>
#include <linux/smp.h>
#include <linux/u64_stats_sync.h>
#include "rule.h"

#define SN_MAX_PORTS	16
#define SN_MAX_QUEUES	64
#define SN_MIN_RING	8
#define SN_MAX_RING	4096
#define SN_MAX_TABLE	16384	/* so that every filter id is below RPS_NO_FILTER */
#define SN_MAX_MTU	9000
#define SN_KEY_BYTES	40
#define SN_INDIR	256	/* four entries for each of 64 queues */
#define SN_CONTEXTS	64	/* RSS contexts, the default one included */

/* param.c: how the hardware behaves */
enum sn_location { SN_LOC_EXPLICIT, SN_LOC_ANY, SN_LOC_BOTH };
enum sn_overwrite { SN_IN_PLACE, SN_GAP, SN_EXISTS };
enum sn_persist { SN_PERSIST_ALL, SN_PERSIST_IFDOWN };

extern unsigned int sn_pairs, sn_max_queues, sn_queues, sn_ring, sn_slots;
extern unsigned int sn_gap_us, sn_async_ms;
extern int sn_node, sn_location, sn_overwrite, sn_persist;
extern bool sn_ntuple_on, sn_masks, sn_v6, sn_rules, sn_duplicates, sn_arfs, sn_dma;
extern char *sn_drvname;
int sn_param_check(void);

enum sn_kind { SN_TCP4, SN_UDP4, SN_IP4, SN_TCP6, SN_UDP6, SN_IP6 };

/* one RSS context; replaced as a whole, under RCU */
struct sn_rss {
	struct rcu_head rcu;	/* first: kfree_rcu() wants a small offset */
	u8 key[SN_KEY_BYTES];
	u32 indir[SN_INDIR];
	u8 fields[SN_IP6 + 1];	/* RXH_*, by enum sn_kind */
	u32 nibble[72][16];	/* Toeplitz, by input nibble */
};

struct sn_port;

struct sn_counter {
	u64_stats_t packets, bytes;
	struct u64_stats_sync sync;
};

/* sn_queue.state */
enum { SN_ARMED, SN_IN_FLIGHT };

struct sn_queue {
	struct sn_port *port;
	unsigned int index;
	struct napi_struct napi;
	struct ptr_ring ring;
	bool running;

	int irq;
	unsigned int cpu;	/* effective affinity of a platform port's IRQ */
	unsigned long state;
	call_single_data_t csd;
	struct irq_work here;
	struct hrtimer coalesce;
	u32 rx_usecs;
	char name[IFNAMSIZ + 16];

	struct sn_counter rx;	/* written by NAPI */
	u64_stats_t interrupts, polls;
	atomic64_t ring_full;	/* written by senders */
	struct sn_counter tx;	/* written under the TX queue's lock */
} ____cacheline_aligned_in_smp;

struct sn_port {
	struct net_device *dev;
	struct device *parent;
	struct pci_dev *pci;	/* the carrier; NULL: a platform device */
	unsigned int number;
	struct sn_port __rcu *peer;
	bool up;		/* takes frames off the wire */
	unsigned int queues, ring;
	struct sn_queue *queue;
	struct sn_table table;
	struct sn_rss __rcu *rss[SN_CONTEXTS];
	struct irq_domain *domain;
	struct fwnode_handle *fwnode;
	struct device_attribute *msi_attr;
	struct attribute **msi_attrs;
	struct attribute_group msi_group;
	struct dentry *debugfs;
};

/* port.c */
struct sn_port *sn_port_create(struct device *parent, struct pci_dev *pci, unsigned int number);
void sn_port_destroy(struct sn_port *port);
int sn_port_start(struct sn_port *port);
void sn_port_stop(struct sn_port *port);
void sn_port_pause(struct sn_port *port);
int sn_port_resume(struct sn_port *port);
int sn_port_reconfigure(struct sn_port *port, unsigned int queues, unsigned int ring);

/* wire.c */
struct sn_port *sn_plug(struct device *parent, struct pci_dev *pci, int number);
void sn_unplug(struct sn_port *port);
void sn_carrier(struct sn_port *port);
netdev_tx_t sn_xmit(struct sk_buff *skb, struct net_device *dev);
void sn_send(struct sn_port *port, struct sk_buff *skb, unsigned int queue);

/* irq.c */
int sn_irqs_create(struct sn_port *port);
void sn_irqs_destroy(struct sn_port *port);
void sn_irq_init(struct sn_queue *queue);
int sn_irq_request(struct sn_queue *queue);
void sn_irq_free(struct sn_queue *queue);
void sn_irq_arm(struct sn_queue *queue);
void sn_irq_raise(struct sn_queue *queue);

/* ring.c */
int sn_queue_start(struct sn_queue *queue);
void sn_queue_stop(struct sn_queue *queue);

/* classify.c */
bool sn_dissect(const struct sk_buff *skb, __be16 proto, int offset, struct sn_key *key);
int sn_classify(struct sn_port *port, const struct sk_buff *skb, u32 *hash, bool *l4);

/* toeplitz.c */
void sn_rss_digest(struct sn_rss *rss);
u32 sn_rss_hash(const struct sn_rss *rss, const struct sn_key *key);

/* rss.c */
int sn_rss_init(struct sn_port *port);
void sn_rss_free(struct sn_port *port);
int sn_rss_resize(struct sn_port *port);
u32 sn_rss_max_queue(struct sn_port *port, u32 context);
u32 sn_get_rxfh_key_size(struct net_device *dev);
u32 sn_get_rxfh_indir_size(struct net_device *dev);
int sn_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *param);
int sn_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *param,
		struct netlink_ext_ack *extack);
int sn_get_rxfh_fields(struct net_device *dev, struct ethtool_rxfh_fields *fields);
int sn_set_rxfh_fields(struct net_device *dev, const struct ethtool_rxfh_fields *fields,
		       struct netlink_ext_ack *extack);
int sn_create_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			   const struct ethtool_rxfh_param *param, struct netlink_ext_ack *extack);
int sn_modify_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			   const struct ethtool_rxfh_param *param, struct netlink_ext_ack *extack);
int sn_remove_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx, u32 context,
			   struct netlink_ext_ack *extack);

/* config.c */
void sn_get_channels(struct net_device *dev, struct ethtool_channels *channels);
int sn_set_channels(struct net_device *dev, struct ethtool_channels *channels);
void sn_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
		      struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack);
int sn_set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
		     struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack);
int sn_get_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
		    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack);
int sn_set_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
		    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack);

/* ethtool.c, qstats.c */
extern const struct ethtool_ops sn_ethtool_ops;
extern const struct netdev_stat_ops sn_stat_ops;
unsigned int sn_wire_frames(const struct sk_buff *skb, unsigned int pulled, unsigned int *bytes);
void sn_count(struct sn_counter *counter, unsigned int packets, unsigned int bytes);
void sn_counted(const struct sn_counter *counter, u64 *packets, u64 *bytes);
void sn_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats);

/* fault.c */
void sn_debugfs_init(void);
void sn_debugfs_exit(void);
void sn_debugfs_add(struct sn_port *port);
int sn_fault_insert(struct sn_table *table);
void sn_fault_inserted(struct sn_table *table);

#endif
