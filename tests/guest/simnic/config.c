// SPDX-License-Identifier: GPL-2.0-or-later
/* What an admin sets with ethtool: channels (-L), rings (-G), coalescing (-C). */
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

int sn_get_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
		    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);

	coalesce->rx_coalesce_usecs = port->queue[0].rx_usecs;
	return 0;
}

int sn_set_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
		    struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct sn_port *port = netdev_priv(dev);
	unsigned int i;

	if (coalesce->rx_coalesce_usecs > SN_MAX_USECS)
		return -ERANGE;
	for (i = 0; i < sn_max_queues; i++)
		WRITE_ONCE(port->queue[i].rx_usecs, coalesce->rx_coalesce_usecs);
	return 0;
}
