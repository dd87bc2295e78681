// SPDX-License-Identifier: GPL-2.0-or-later
/* One port: its net_device from creation to removal, and its queues' start and stop. */
#include <linux/debugfs.h>
#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <net/netdev_queues.h>
#include "simnic.h"

/* Take frames: every queue gets a ring, a NAPI instance and its interrupt. */
int sn_port_start(struct sn_port *port)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < port->queues && !err; i++)
		err = sn_queue_start(&port->queue[i]);
	if (!err && sn_arfs)
		err = sn_arfs_rmap(port);
	if (err) {
		sn_port_stop(port);
		return err;
	}
	smp_store_release(&port->up, true);	/* pairs with sn_send() */
	return 0;
}

void sn_port_stop(struct sn_port *port)
{
	unsigned int i;

	WRITE_ONCE(port->up, false);
	synchronize_net();		/* no sender is in sn_receive() any more */
	sn_arfs_rmap_free(port);
	for (i = 0; i < port->queues; i++)
		sn_queue_stop(&port->queue[i]);
	synchronize_net();		/* netif_napi_del() */
}

static int sn_open(struct net_device *dev)
{
	struct sn_port *port = netdev_priv(dev);
	int err = sn_port_start(port);

	if (err)
		return err;
	netif_tx_start_all_queues(dev);
	sn_carrier(port);
	return 0;
}

static int sn_stop(struct net_device *dev)
{
	struct sn_port *port = netdev_priv(dev);

	netif_tx_stop_all_queues(dev);
	sn_port_stop(port);
	sn_carrier(port);
	if (READ_ONCE(sn_persist) == SN_PERSIST_IFDOWN)
		sn_rules_wipe(&port->table);
	return 0;
}

static int sn_set_queues(struct sn_port *port, unsigned int queues)
{
	unsigned int before = port->queues;
	int err;

	if (queues == before)
		return 0;
	err = netif_set_real_num_queues(port->dev, queues, queues);
	if (err)
		return err;
	port->queues = queues;
	err = sn_rss_resize(port);
	if (err) {
		port->queues = before;
		netif_set_real_num_queues(port->dev, before, before);
	}
	return err;
}

/* Nothing is received or sent, to change what senders and queues rely on. */
void sn_port_pause(struct sn_port *port)
{
	netif_tx_disable(port->dev);
	sn_port_stop(port);
}

int sn_port_resume(struct sn_port *port)
{
	int err = sn_port_start(port);

	if (!err)
		netif_tx_wake_all_queues(port->dev);	/* the stack may have kept some frames */
	return err;
}

/*
 * Stop, change, start, as real drivers do; frames meanwhile are lost. When it
 * cannot start the new way it starts the old way. Under RTNL.
 */
int sn_port_reconfigure(struct sn_port *port, unsigned int queues, unsigned int ring)
{
	unsigned int queues_before = port->queues, ring_before = port->ring;
	bool up = port->up;
	int err;

	if (up)
		sn_port_pause(port);
	if (READ_ONCE(sn_persist) == SN_PERSIST_IFDOWN)
		sn_rules_wipe(&port->table);
	port->ring = ring;
	err = sn_set_queues(port, queues);
	if (!up)
		return err;
	if (!err)
		err = sn_port_resume(port);
	if (!err)
		return 0;
	port->ring = ring_before;
	if (sn_set_queues(port, queues_before) || sn_port_resume(port)) {
		netdev_err(port->dev, "cannot start again: %d\n", err);
		sn_carrier(port);
	}
	return err;
}

static int sn_set_features(struct net_device *dev, netdev_features_t features)
{
	struct sn_port *port = netdev_priv(dev);

	if (dev->features & ~features & NETIF_F_NTUPLE)
		sn_rules_wipe(&port->table);
	return 0;
}

static const struct net_device_ops sn_netdev_ops = {
	.ndo_open = sn_open,
	.ndo_stop = sn_stop,
	.ndo_start_xmit = sn_xmit,
	.ndo_get_stats64 = sn_get_stats64,
	.ndo_set_features = sn_set_features,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
#ifdef CONFIG_RFS_ACCEL
	.ndo_rx_flow_steer = sn_rx_flow_steer,
#endif
};

static void sn_describe(struct sn_port *port)
{
	const u8 address[ETH_ALEN] = { 0x02, 's', 'i', 'm', 0, port->number };
	struct net_device *dev = port->dev;

	snprintf(dev->name, IFNAMSIZ, "sim%u", port->number);
	eth_hw_addr_set(dev, address);
	dev->netdev_ops = &sn_netdev_ops;
	dev->ethtool_ops = &sn_ethtool_ops;
	dev->stat_ops = &sn_stat_ops;
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_RXCSUM | NETIF_F_TSO |
			   NETIF_F_TSO6 | NETIF_F_GSO_UDP_L4 | NETIF_F_RXHASH;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	if (sn_rules)
		dev->hw_features |= NETIF_F_NTUPLE;
	if (sn_rules && sn_ntuple_on)
		dev->features |= NETIF_F_NTUPLE;
	dev->vlan_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6;
	dev->max_mtu = SN_MAX_MTU;
	netif_carrier_off(dev);
}

static void sn_port_free(struct sn_port *port)
{
	sn_irqs_destroy(port);
	sn_table_free(&port->table);
	sn_rss_free(port);
	kvfree(port->queue);
	free_netdev(port->dev);
}

static int sn_port_init(struct sn_port *port)
{
	/* insertions are discovered to be too many later: locations are more than slots */
	unsigned int i, locations = sn_slots * (READ_ONCE(sn_async_ms) ? 2 : 1);
	int err = sn_table_init(&port->table, sn_slots, locations);

	if (err)
		return err;
	port->queues = sn_queues;
	port->ring = sn_ring;
	port->queue = kvcalloc_node(sn_max_queues, sizeof(*port->queue), GFP_KERNEL,
				    dev_to_node(port->parent));
	if (!port->queue)
		return -ENOMEM;
	for (i = 0; i < sn_max_queues; i++) {
		port->queue[i].port = port;
		port->queue[i].index = i;
		u64_stats_init(&port->queue[i].rx.sync);
		u64_stats_init(&port->queue[i].tx.sync);
		sn_irq_init(&port->queue[i]);
	}
	return sn_rss_init(port) ?: sn_irqs_create(port);
}

/* Returns an error pointer. The port is registered, and not on a wire. */
struct sn_port *sn_port_create(struct device *parent, struct pci_dev *pci, unsigned int number)
{
	struct net_device *dev;
	struct sn_port *port;
	int err;

	dev = alloc_etherdev_mqs(sizeof(*port), sn_max_queues, sn_max_queues);
	if (!dev)
		return ERR_PTR(-ENOMEM);
	port = netdev_priv(dev);
	port->dev = dev;
	port->parent = parent;
	port->pci = pci;
	port->number = number;
	SET_NETDEV_DEV(dev, parent);
	sn_describe(port);
	err = sn_port_init(port);
	if (!err)
		err = netif_set_real_num_queues(dev, port->queues, port->queues);
	if (!err)
		err = register_netdev(dev);
	if (err) {
		sn_port_free(port);
		return ERR_PTR(err);
	}
	sn_debugfs_add(port);
	return port;
}

/* nothing is sent to it any more */
void sn_port_destroy(struct sn_port *port)
{
	debugfs_remove_recursive(port->debugfs);
	unregister_netdev(port->dev);
	cancel_delayed_work_sync(&port->table.expire);
	sn_rules_wipe(&port->table);
	cancel_delayed_work_sync(&port->table.settle);
	cancel_delayed_work_sync(&port->table.expire);
	sn_port_free(port);
}
