// SPDX-License-Identifier: GPL-2.0-or-later
/* The wire: ports 2N and 2N+1 are its ends; what one sends the other receives. */
#include <linux/etherdevice.h>
#include <linux/skbuff.h>
#include "simnic.h"

static struct sn_port *sn_ports[SN_MAX_PORTS];
static DEFINE_MUTEX(sn_ports_lock);

/* number < 0: the first that is free. Returns an error pointer. */
struct sn_port *sn_plug(struct device *parent, struct pci_dev *pci, int number)
{
	struct sn_port *port, *peer;

	mutex_lock(&sn_ports_lock);
	for (number = max(number, 0); pci && number < SN_MAX_PORTS && sn_ports[number]; number++)
		;
	port = number < SN_MAX_PORTS ? sn_port_create(parent, pci, number) : ERR_PTR(-ENOSPC);
	if (IS_ERR(port))
		goto out;
	sn_ports[number] = port;
	peer = sn_ports[number ^ 1];
	if (peer) {
		rtnl_lock();
		rcu_assign_pointer(port->peer, peer);
		rcu_assign_pointer(peer->peer, port);
		sn_carrier(port);
		rtnl_unlock();
	}
out:
	mutex_unlock(&sn_ports_lock);
	return port;
}

void sn_unplug(struct sn_port *port)
{
	struct sn_port *peer;

	mutex_lock(&sn_ports_lock);
	rtnl_lock();
	peer = rtnl_dereference(port->peer);
	if (peer) {
		netif_carrier_off(peer->dev);
		netif_carrier_off(port->dev);
		RCU_INIT_POINTER(peer->peer, NULL);
		RCU_INIT_POINTER(port->peer, NULL);
	}
	rtnl_unlock();
	synchronize_net();	/* no frame is between the two any more */
	sn_ports[port->number] = NULL;
	sn_port_destroy(port);
	mutex_unlock(&sn_ports_lock);
}

/* there is a carrier while both ends are up; under RTNL */
void sn_carrier(struct sn_port *port)
{
	struct sn_port *peer = rtnl_dereference(port->peer);

	if (peer && port->up && peer->up) {
		netif_carrier_on(port->dev);
		netif_carrier_on(peer->dev);
	} else {
		netif_carrier_off(port->dev);
		if (peer)
			netif_carrier_off(peer->dev);
	}
}

/*
 * What a NIC does by itself: put a frame of its own on the ring of `to` that its
 * filters and RSS choose. NULL: it was dropped.
 */
static struct sn_queue *sn_write(struct sn_port *to, struct sk_buff *skb, unsigned int frames)
{
	struct sn_queue *queue;
	struct sk_buff *copy;
	bool l4 = false;
	u32 hash = 0;
	int index;

	index = sn_classify(to, skb, &hash, &l4);
	if (index < 0)
		return NULL;
	queue = &to->queue[index];
	/*
	 * The frame is still its sender's: TCP keeps the same fragments to
	 * retransmit them, and our GRO would edit the skb_shared_info both
	 * share. DMA would have made a new one: private head, pages by reference.
	 */
	copy = sn_dma ? skb_copy(skb, GFP_ATOMIC) : pskb_copy(skb, GFP_ATOMIC);
	if (!copy) {
		atomic64_add(frames, &queue->ring_full);
		return NULL;
	}
	if (__dev_forward_skb(to->dev, copy))
		return NULL;		/* freed */
	skb_clear_hash(copy);
	if (hash && to->dev->features & NETIF_F_RXHASH)
		skb_set_hash(copy, hash, l4 ? PKT_HASH_TYPE_L4 : PKT_HASH_TYPE_L3);
	skb_record_rx_queue(copy, index);
	if (ptr_ring_produce(&queue->ring, copy)) {
		atomic64_add(frames, &queue->ring_full);
		kfree_skb(copy);
		return NULL;
	}
	return queue;
}

/* NOPs that bench/counted/plugin.c knows: what is between them is a device's, not a CPU's. */
#define SN_DEVICE(order) asm volatile(".byte 0x0f, 0x1f, 0x80, " #order ", 0, 0x5a, 0x5a" ::: "memory")

static struct sn_queue *sn_write_as_device(struct sn_port *to, struct sk_buff *skb,
					   unsigned int frames)
{
	struct sn_queue *queue;
	unsigned long flags;

	local_irq_save(flags);		/* an interrupt is a CPU's again */
	if (to->number & 1)
		SN_DEVICE(6);		/* of the remote host */
	else
		SN_DEVICE(5);
	queue = sn_write(to, skb, frames);
	SN_DEVICE(7);
	local_irq_restore(flags);
	return queue;
}

/* consumes `skb` */
static void sn_receive(struct sn_port *to, struct sk_buff *skb, unsigned int frames)
{
	struct sn_queue *queue;

	queue = sn_dma ? sn_write_as_device(to, skb, frames) : sn_write(to, skb, frames);
	dev_kfree_skb(skb);
	if (queue) {
		smp_mb();		/* pairs with sn_irq_arm() */
		sn_irq_raise(queue);
	}
}

/* Send through the TX queue `index`, whose lock is held; consumes `skb`. */
void sn_send(struct sn_port *port, struct sk_buff *skb, unsigned int index)
{
	unsigned int frames, bytes;
	struct sn_port *to;

	rcu_read_lock();
	to = rcu_dereference(port->peer);
	if (!to || !smp_load_acquire(&to->up) || !pskb_may_pull(skb, ETH_HLEN)) {
		DEV_STATS_INC(port->dev, tx_carrier_errors);
		kfree_skb(skb);
		goto out;
	}
	frames = sn_wire_frames(skb, 0, &bytes);
	sn_count(&port->queue[index].tx, frames, bytes);
	sn_receive(to, skb, frames);
out:
	rcu_read_unlock();
}

netdev_tx_t sn_xmit(struct sk_buff *skb, struct net_device *dev)
{
	skb_tx_timestamp(skb);
	sn_send(netdev_priv(dev), skb, skb_get_queue_mapping(skb));
	return NETDEV_TX_OK;
}
