// SPDX-License-Identifier: GPL-2.0-or-later
/* Packet counters, and the two standard ways to read them: rtnetlink and netdev qstats. */
#include <linux/tcp.h>
#include <linux/udp.h>
#include <net/netdev_queues.h>
#include "simnic.h"

/*
 * What a frame is on a wire: a GSO frame travels whole between our ports, as
 * one descriptor, but counts as the segments it stands for. `pulled`: what of
 * the link header is in front of skb->data. Returns how many frames.
 */
unsigned int sn_wire_frames(const struct sk_buff *skb, unsigned int pulled, unsigned int *bytes)
{
	const struct skb_shared_info *info = skb_shinfo(skb);
	unsigned int headers;

	*bytes = skb->len + pulled;
	if (!info->gso_size || info->gso_segs < 2)
		return 1;
	headers = skb_transport_offset(skb) + pulled;
	headers += info->gso_type & (SKB_GSO_TCPV4 | SKB_GSO_TCPV6) ? tcp_hdrlen(skb) :
								      sizeof(struct udphdr);
	*bytes += (info->gso_segs - 1) * headers;
	return info->gso_segs;
}

void sn_count(struct sn_counter *counter, unsigned int packets, unsigned int bytes)
{
	u64_stats_update_begin(&counter->sync);
	u64_stats_add(&counter->packets, packets);
	u64_stats_add(&counter->bytes, bytes);
	u64_stats_update_end(&counter->sync);
}

void sn_counted(const struct sn_counter *counter, u64 *packets, u64 *bytes)
{
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&counter->sync);
		*packets = u64_stats_read(&counter->packets);
		*bytes = u64_stats_read(&counter->bytes);
	} while (u64_stats_fetch_retry(&counter->sync, start));
}

static void sn_add(const struct sn_counter *counter, u64 *packets, u64 *bytes)
{
	u64 more_packets, more_bytes;

	sn_counted(counter, &more_packets, &more_bytes);
	*packets += more_packets;
	*bytes += more_bytes;
}

void sn_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct sn_port *port = netdev_priv(dev);
	unsigned int i;

	netdev_stats_to_stats64(stats, &dev->stats);
	for (i = 0; i < sn_max_queues; i++) {
		sn_add(&port->queue[i].rx, &stats->rx_packets, &stats->rx_bytes);
		sn_add(&port->queue[i].tx, &stats->tx_packets, &stats->tx_bytes);
		stats->rx_missed_errors += atomic64_read(&port->queue[i].ring_full);
	}
}

static void sn_queue_stats_rx(struct net_device *dev, int index,
			      struct netdev_queue_stats_rx *stats)
{
	struct sn_port *port = netdev_priv(dev);

	sn_counted(&port->queue[index].rx, &stats->packets, &stats->bytes);
	stats->hw_drop_overruns = atomic64_read(&port->queue[index].ring_full);
	stats->hw_drops = stats->hw_drop_overruns;
}

static void sn_queue_stats_tx(struct net_device *dev, int index,
			      struct netdev_queue_stats_tx *stats)
{
	struct sn_port *port = netdev_priv(dev);

	sn_counted(&port->queue[index].tx, &stats->packets, &stats->bytes);
}

/* what queues counted that are not in use now */
static void sn_base_stats(struct net_device *dev, struct netdev_queue_stats_rx *rx,
			  struct netdev_queue_stats_tx *tx)
{
	struct sn_port *port = netdev_priv(dev);
	unsigned int i;

	rx->packets = 0;
	rx->bytes = 0;
	rx->hw_drops = 0;
	rx->hw_drop_overruns = 0;
	tx->packets = 0;
	tx->bytes = 0;
	for (i = port->queues; i < sn_max_queues; i++) {
		u64 full = atomic64_read(&port->queue[i].ring_full);

		sn_add(&port->queue[i].rx, &rx->packets, &rx->bytes);
		sn_add(&port->queue[i].tx, &tx->packets, &tx->bytes);
		rx->hw_drops += full;
		rx->hw_drop_overruns += full;
	}
}

const struct netdev_stat_ops sn_stat_ops = {
	.get_queue_stats_rx = sn_queue_stats_rx,
	.get_queue_stats_tx = sn_queue_stats_tx,
	.get_base_stats = sn_base_stats,
};
