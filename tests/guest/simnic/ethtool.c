// SPDX-License-Identifier: GPL-2.0-or-later
/* What ethtool asks for: who we are, the link, the statistics of -S; the table of operations. */
#include "simnic.h"

static void sn_get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, sn_drvname, sizeof(info->driver));
	strscpy(info->bus_info, dev_name(dev->dev.parent), sizeof(info->bus_info));
}

static int sn_get_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	settings->base.speed = SPEED_10000;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_OTHER;
	return 0;
}

static const char * const sn_queue_stats[] = { "packets", "bytes", "drops", "irqs", "polls" };

static int sn_get_sset_count(struct net_device *dev, int set)
{
	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return sn_max_queues * ARRAY_SIZE(sn_queue_stats);
}

static void sn_get_strings(struct net_device *dev, u32 set, u8 *data)
{
	unsigned int i, j;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < sn_max_queues; i++)
		for (j = 0; j < ARRAY_SIZE(sn_queue_stats); j++)
			ethtool_sprintf(&data, "rx_queue_%u_%s", i, sn_queue_stats[j]);
}

static void sn_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data)
{
	struct sn_port *port = netdev_priv(dev);
	unsigned int i;

	for (i = 0; i < sn_max_queues; i++) {
		struct sn_queue *queue = &port->queue[i];

		sn_counted(&queue->rx, data, data + 1);
		data += 2;
		*data++ = atomic64_read(&queue->ring_full);
		*data++ = u64_stats_read(&queue->interrupts);
		*data++ = u64_stats_read(&queue->polls);
	}
}

#ifdef HAVE_GET_RX_RING_COUNT
static u32 sn_get_rx_ring_count(struct net_device *dev)
{
	struct sn_port *port = netdev_priv(dev);

	return port->queues;
}
#endif

const struct ethtool_ops sn_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS,
	.cap_rss_rxnfc_adds = true,
	.rxfh_per_ctx_key = true,
	.rxfh_per_ctx_fields = true,
	.rxfh_max_num_contexts = SN_CONTEXTS,
	.get_drvinfo = sn_get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = sn_get_link_ksettings,
	.get_ts_info = ethtool_op_get_ts_info,
	.get_channels = sn_get_channels,
	.set_channels = sn_set_channels,
	.get_ringparam = sn_get_ringparam,
	.set_ringparam = sn_set_ringparam,
	.get_coalesce = sn_get_coalesce,
	.set_coalesce = sn_set_coalesce,
#ifdef HAVE_GET_RX_RING_COUNT
	.get_rx_ring_count = sn_get_rx_ring_count,
#endif
	.get_rxnfc = sn_get_rxnfc,
	.set_rxnfc = sn_set_rxnfc,
	.get_rxfh_key_size = sn_get_rxfh_key_size,
	.get_rxfh_indir_size = sn_get_rxfh_indir_size,
	.get_rxfh = sn_get_rxfh,
	.set_rxfh = sn_set_rxfh,
	.get_rxfh_fields = sn_get_rxfh_fields,
	.set_rxfh_fields = sn_set_rxfh_fields,
	.create_rxfh_context = sn_create_rxfh_context,
	.modify_rxfh_context = sn_modify_rxfh_context,
	.remove_rxfh_context = sn_remove_rxfh_context,
	.get_strings = sn_get_strings,
	.get_sset_count = sn_get_sset_count,
	.get_ethtool_stats = sn_get_ethtool_stats,
};
