// SPDX-License-Identifier: GPL-2.0-or-later
/* A receive queue at work: its descriptor ring and its NAPI instance. */
#include <linux/skbuff.h>
#include <net/netdev_queues.h>
#include "simnic.h"

static int sn_poll(struct napi_struct *napi, int budget)
{
	struct sn_queue *queue = container_of(napi, struct sn_queue, napi);
	unsigned int frames = 0, bytes = 0, size;
	struct sk_buff *skb;
	int done = 0;

	while (done < budget && (skb = ptr_ring_consume(&queue->ring))) {
		done++;
		frames += sn_wire_frames(skb, ETH_HLEN, &size);
		bytes += size;
		napi_gro_receive(napi, skb);
	}

	sn_count(&queue->rx, frames, bytes);
	u64_stats_inc(&queue->polls);
	if (done < budget && napi_complete_done(napi, done))
		sn_irq_arm(queue);
	return done;
}

static void sn_link_napi(struct sn_queue *queue, struct napi_struct *napi)
{
	struct net_device *dev = queue->port->dev;

	netif_queue_set_napi(dev, queue->index, NETDEV_QUEUE_TYPE_RX, napi);
	netif_queue_set_napi(dev, queue->index, NETDEV_QUEUE_TYPE_TX, napi);
}

static void sn_free_frame(void *skb)
{
	kfree_skb(skb);
}

int sn_queue_start(struct sn_queue *queue)
{
	struct sn_port *port = queue->port;
	int err = ptr_ring_init(&queue->ring, port->ring, GFP_KERNEL);

	if (err)
		return err;
#ifdef HAVE_NAPI_CONFIG
	netif_napi_add_config(port->dev, &queue->napi, sn_poll, queue->index);
#else
	netif_napi_add(port->dev, &queue->napi, sn_poll);
#endif
	netif_napi_set_irq(&queue->napi, queue->irq);
	err = sn_irq_request(queue);
	if (err)
		goto no_irq;
	napi_enable(&queue->napi);
	sn_link_napi(queue, &queue->napi);
	sn_irq_arm(queue);
	queue->running = true;
	return 0;

no_irq:
	netif_napi_del(&queue->napi);
	ptr_ring_cleanup(&queue->ring, sn_free_frame);
	return err;
}

/* No sender can reach the queue any more; synchronize_net() when all are stopped. */
void sn_queue_stop(struct sn_queue *queue)
{
	if (!queue->running)
		return;
	queue->running = false;
	sn_link_napi(queue, NULL);
	napi_disable(&queue->napi);
	sn_irq_free(queue);
	__netif_napi_del(&queue->napi);
	ptr_ring_cleanup(&queue->ring, sn_free_frame);
}
