// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * RSS: Toeplitz key, indirection table and hashed fields, of the default
 * context and of additional ones. The packet path reads a context under RCU;
 * a change (under RTNL) replaces it as a whole.
 */
#include <linux/slab.h>
#include "simnic.h"

#define SN_FIELDS_IP	(RXH_IP_SRC | RXH_IP_DST)
#define SN_FIELDS_L4	(RXH_L4_B_0_1 | RXH_L4_B_2_3)

static void sn_rss_spread(u32 *indir, unsigned int queues)
{
	unsigned int i;

	for (i = 0; i < SN_INDIR; i++)
		indir[i] = ethtool_rxfh_indir_default(i, queues);
}

/* a copy of the context `id` to change, of the default one for a new context */
static struct sn_rss *sn_rss_copy(struct sn_port *port, u32 id)
{
	struct sn_rss *old = rtnl_dereference(port->rss[id]);

	if (!old)
		old = rtnl_dereference(port->rss[0]);
	return kmemdup(old, sizeof(*old), GFP_KERNEL);
}

static void sn_rss_publish(struct sn_port *port, u32 id, struct sn_rss *rss)
{
	struct sn_rss *old = rtnl_dereference(port->rss[id]);

	if (rss)
		sn_rss_digest(rss);
	rcu_assign_pointer(port->rss[id], rss);
	if (old)
		kfree_rcu(old, rcu);
}

int sn_rss_init(struct sn_port *port)
{
	struct sn_rss *rss = kzalloc(sizeof(*rss), GFP_KERNEL);

	if (!rss)
		return -ENOMEM;
	netdev_rss_key_fill(rss->key, sizeof(rss->key));
	sn_rss_spread(rss->indir, port->queues);
	memset(rss->fields, SN_FIELDS_IP | SN_FIELDS_L4, sizeof(rss->fields));
	rss->fields[SN_IP4] = SN_FIELDS_IP;
	rss->fields[SN_IP6] = SN_FIELDS_IP;
	sn_rss_digest(rss);
	RCU_INIT_POINTER(port->rss[0], rss);
	return 0;
}

void sn_rss_free(struct sn_port *port)
{
	unsigned int id;

	for (id = 0; id < SN_CONTEXTS; id++)
		kfree(rcu_dereference_protected(port->rss[id], true));
}

/* the number of queues changed: a table nobody configured covers them all */
int sn_rss_resize(struct sn_port *port)
{
	struct sn_rss *rss;

	if (netif_is_rxfh_configured(port->dev))
		return 0;
	rss = sn_rss_copy(port, 0);
	if (!rss)
		return -ENOMEM;
	sn_rss_spread(rss->indir, port->queues);
	sn_rss_publish(port, 0, rss);
	return 0;
}

/* the highest queue a context's table names; under RTNL */
u32 sn_rss_max_queue(struct sn_port *port, u32 context)
{
	const struct sn_rss *rss = rtnl_dereference(port->rss[context]);
	u32 i, most = 0;

	for (i = 0; i < SN_INDIR; i++)
		most = max(most, rss->indir[i]);
	return most;
}

u32 sn_get_rxfh_key_size(struct net_device *dev)
{
	return SN_KEY_BYTES;
}

u32 sn_get_rxfh_indir_size(struct net_device *dev)
{
	return SN_INDIR;
}

int sn_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *param)
{
	struct sn_port *port = netdev_priv(dev);
	struct sn_rss *rss = rtnl_dereference(port->rss[0]);

	param->hfunc = ETH_RSS_HASH_TOP;
	if (param->indir)
		memcpy(param->indir, rss->indir, sizeof(rss->indir));
	if (param->key)
		memcpy(param->key, rss->key, sizeof(rss->key));
	return 0;
}

static int sn_rss_set(struct sn_port *port, u32 id, struct sn_rss *rss,
		      const struct ethtool_rxfh_param *param)
{
	if (param->hfunc != ETH_RSS_HASH_NO_CHANGE && param->hfunc != ETH_RSS_HASH_TOP)
		return -EOPNOTSUPP;
	if (!rss)
		return -ENOMEM;
	if (param->indir)
		memcpy(rss->indir, param->indir, sizeof(rss->indir));
	if (param->key)
		memcpy(rss->key, param->key, sizeof(rss->key));
	sn_rss_publish(port, id, rss);
	return 0;
}

int sn_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *param,
		struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);
	struct sn_rss *rss = sn_rss_copy(port, 0);
	int err = sn_rss_set(port, 0, rss, param);

	if (err)
		kfree(rss);
	return err;
}

int sn_create_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			   const struct ethtool_rxfh_param *param, struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);
	struct sn_rss *rss = sn_rss_copy(port, param->rss_context);
	int err;

	if (rss)
		sn_rss_spread(rss->indir, port->queues);
	err = sn_rss_set(port, param->rss_context, rss, param);
	if (err) {
		kfree(rss);
		return err;
	}
	/* what the core was not given it wants to know */
	ctx->hfunc = ETH_RSS_HASH_TOP;
	ctx->input_xfrm = 0;
	memcpy(ethtool_rxfh_context_indir(ctx), rss->indir, sizeof(rss->indir));
	memcpy(ethtool_rxfh_context_key(ctx), rss->key, sizeof(rss->key));
	return 0;
}

int sn_modify_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			   const struct ethtool_rxfh_param *param, struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);
	struct sn_rss *rss = sn_rss_copy(port, param->rss_context);
	int err = sn_rss_set(port, param->rss_context, rss, param);

	if (err)
		kfree(rss);
	return err;
}

int sn_remove_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx, u32 context,
			   struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);

	if (sn_rules_use_context(&port->table, context))
		return -EBUSY;
	sn_rss_publish(port, context, NULL);
	return 0;
}

static int sn_kind_of_flow(u32 flow_type)
{
	switch (flow_type) {
	case TCP_V4_FLOW:
		return SN_TCP4;
	case UDP_V4_FLOW:
		return SN_UDP4;
	case IPV4_FLOW:
		return SN_IP4;
	case TCP_V6_FLOW:
		return SN_TCP6;
	case UDP_V6_FLOW:
		return SN_UDP6;
	case IPV6_FLOW:
		return SN_IP6;
	default:
		return -EOPNOTSUPP;
	}
}

int sn_get_rxfh_fields(struct net_device *dev, struct ethtool_rxfh_fields *fields)
{
	struct sn_port *port = netdev_priv(dev);
	int kind = sn_kind_of_flow(fields->flow_type);
	struct sn_rss *rss;

	if (kind < 0)
		return kind;
	rss = rtnl_dereference(port->rss[fields->rss_context]);
	if (!rss)
		return -ENOENT;
	fields->data = rss->fields[kind];
	return 0;
}

int sn_set_rxfh_fields(struct net_device *dev, const struct ethtool_rxfh_fields *fields,
		       struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);
	int kind = sn_kind_of_flow(fields->flow_type);
	u32 can = SN_FIELDS_IP;
	struct sn_rss *rss;

	if (kind < 0)
		return kind;
	if (kind != SN_IP4 && kind != SN_IP6)
		can |= SN_FIELDS_L4;
	if (fields->data & ~can)
		return -EINVAL;
	if (!rtnl_dereference(port->rss[fields->rss_context]))
		return -ENOENT;
	rss = sn_rss_copy(port, fields->rss_context);
	if (!rss)
		return -ENOMEM;
	rss->fields[kind] = fields->data;
	sn_rss_publish(port, fields->rss_context, rss);
	return 0;
}
