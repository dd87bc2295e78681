// SPDX-License-Identifier: GPL-2.0-or-later
/* What an admin sets with ethtool: channels (-L), rings (-G), coalescing (-C, -Q). */
#include "simnic.h"

#define SN_MAX_USECS	10000

void sn_get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	struct sn_port *port = netdev_priv(dev);

	channels->max_combined = sn_max_queues;
	channels->combined_count = port->queues;
}

/*
 * The core has refused what filters or RSS tables name. It does not add a
 * filter's offset to what its context names (cap_rss_rxnfc_adds): we do.
 */
int sn_set_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	struct sn_port *port = netdev_priv(dev);

	if (sn_rules_highest_queue(port) >= (int)channels->combined_count)
		return -EINVAL;
	return sn_port_reconfigure(port, channels->combined_count, port->ring);
}

/* senders have no ring of their own: the wire is as fast as they are */
void sn_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
		      struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);

	ring->rx_max_pending = SN_MAX_RING;
	ring->rx_pending = port->ring;
}

int sn_set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
		     struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);

	if (ring->rx_pending < SN_MIN_RING) {
		NL_SET_ERR_MSG(extack, "a ring has at least 8 descriptors");
		return -EINVAL;
	}
	return sn_port_reconfigure(port, port->queues, ring->rx_pending);
}

int sn_get_queue_coalesce(struct net_device *dev, u32 index, struct ethtool_coalesce *coalesce)
{
	struct sn_port *port = netdev_priv(dev);

	if (index >= port->queues)
		return -EINVAL;
	coalesce->rx_coalesce_usecs = port->queue[index].rx_usecs;
	coalesce->use_adaptive_rx_coalesce = port->queue[index].adaptive;
	return 0;
}

static int sn_check_coalesce(const struct ethtool_coalesce *coalesce)
{
	return coalesce->rx_coalesce_usecs > SN_MAX_USECS ? -ERANGE : 0;
}

static void sn_apply_coalesce(struct sn_queue *queue, const struct ethtool_coalesce *coalesce)
{
	WRITE_ONCE(queue->rx_usecs, coalesce->rx_coalesce_usecs);
	WRITE_ONCE(queue->adaptive, coalesce->use_adaptive_rx_coalesce);
}

int sn_set_queue_coalesce(struct net_device *dev, u32 index, struct ethtool_coalesce *coalesce)
{
	struct sn_port *port = netdev_priv(dev);
	int err = index < port->queues ? sn_check_coalesce(coalesce) : -EINVAL;

	if (!err)
		sn_apply_coalesce(&port->queue[index], coalesce);
	return err;
}

int sn_get_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
		    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	return sn_get_queue_coalesce(dev, 0, coalesce);
}

int sn_set_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
		    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);
	int err = sn_check_coalesce(coalesce);
	unsigned int i;

	for (i = 0; !err && i < sn_max_queues; i++)
		sn_apply_coalesce(&port->queue[i], coalesce);
	return err;
}
