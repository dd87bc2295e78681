// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Native XDP. While a program is attached the sender's port puts frames on
 * the wire as a wire has them (wire.c), and each is copied into a linear
 * buffer of a page pool, as DMA would do, before the program sees it.
 */
#include <linux/bpf.h>
#include <linux/bpf_trace.h>
#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <net/page_pool/helpers.h>
#include "simnic.h"

#define SN_BUFFER_ORDER	2	/* takes a frame of SN_MAX_MTU */
#define SN_BUFFER	(PAGE_SIZE << SN_BUFFER_ORDER)
#define SN_FRAME_BYTES(buffer) \
	((buffer) - XDP_PACKET_HEADROOM - SKB_DATA_ALIGN(sizeof(struct skb_shared_info)))

/*
 * Our buffers are linear always. We refuse what real drivers do: a program
 * that knows no fragments with a MTU that does not fit in one page.
 */
int sn_xdp_check_mtu(const struct bpf_prog *prog, unsigned int mtu)
{
	if (!prog || prog->aux->xdp_has_frags)
		return 0;
	return mtu + ETH_HLEN + VLAN_HLEN <= SN_FRAME_BYTES(PAGE_SIZE) ? 0 : -EINVAL;
}

static int sn_xdp_set(struct sn_port *port, struct bpf_prog *prog, struct netlink_ext_ack *extack)
{
	struct bpf_prog *old = rtnl_dereference(port->prog);
	bool restart = port->up && !old != !prog;
	int err;

	BUILD_BUG_ON(SN_MAX_MTU + ETH_HLEN + VLAN_HLEN > SN_FRAME_BYTES(SN_BUFFER));
	err = sn_xdp_check_mtu(prog, port->dev->mtu);
	if (err) {
		NL_SET_ERR_MSG(extack, "the MTU is too large for a program without frags");
		return err;
	}
	if (restart)
		sn_port_pause(port);
	rcu_assign_pointer(port->prog, prog);
	if (restart) {
		err = sn_port_resume(port);
		if (err) {
			RCU_INIT_POINTER(port->prog, old);
			if (sn_port_resume(port))
				netdev_err(port->dev, "cannot start again: %d\n", err);
			return err;
		}
	}
	if (old)
		bpf_prog_put(old);
	return 0;
}

int sn_bpf(struct net_device *dev, struct netdev_bpf *bpf)
{
	switch (bpf->command) {
	case XDP_SETUP_PROG:
		return sn_xdp_set(netdev_priv(dev), bpf->prog, bpf->extack);
	default:
		return -EINVAL;
	}
}

/* the queue's buffers, if there is a program to see them */
int sn_xdp_start(struct sn_queue *queue)
{
	struct sn_port *port = queue->port;
	struct page_pool_params params = {
		.order = SN_BUFFER_ORDER,
		.pool_size = 64,
		.nid = dev_to_node(port->parent),
		.dev = port->parent,
	};
	int err;

	if (!rcu_access_pointer(port->prog))
		return 0;
	queue->pool = page_pool_create(&params);
	if (IS_ERR(queue->pool)) {
		err = PTR_ERR(queue->pool);
		queue->pool = NULL;
		return err;
	}
	err = xdp_rxq_info_reg(&queue->rxq, port->dev, queue->index, queue->napi.napi_id);
	if (!err)
		err = xdp_rxq_info_reg_mem_model(&queue->rxq, MEM_TYPE_PAGE_POOL, queue->pool);
	if (err)
		sn_xdp_stop(queue);
	return err;
}

void sn_xdp_stop(struct sn_queue *queue)
{
	if (!queue->pool)
		return;
	if (xdp_rxq_info_is_reg(&queue->rxq))
		xdp_rxq_info_unreg(&queue->rxq);
	page_pool_destroy(queue->pool);
	queue->pool = NULL;
}

/* the frame in a buffer of ours; consumes `skb` */
static bool sn_xdp_buffer(struct sn_queue *queue, struct sk_buff *skb, struct xdp_buff *xdp)
{
	struct page *page = NULL;

	skb_push(skb, ETH_HLEN);
	if (skb->len <= SN_FRAME_BYTES(SN_BUFFER))
		page = page_pool_dev_alloc_pages(queue->pool);
	if (!page) {
		DEV_STATS_INC(queue->port->dev, rx_dropped);
		kfree_skb(skb);
		return false;
	}
	xdp_init_buff(xdp, SN_BUFFER, &queue->rxq);
	xdp_prepare_buff(xdp, page_address(page), XDP_PACKET_HEADROOM, skb->len, true);
	if (skb_copy_bits(skb, 0, xdp->data, skb->len))
		memset(xdp->data, 0, skb->len);	/* cannot be: it is within the frame */
	consume_skb(skb);
	return true;
}

static struct sk_buff *sn_xdp_skb(struct sn_queue *queue, struct xdp_buff *xdp)
{
	struct sk_buff *skb = napi_build_skb(xdp->data_hard_start, SN_BUFFER);

	if (!skb) {
		xdp_return_buff(xdp);
		return NULL;
	}
	skb_mark_for_recycle(skb);
	skb_reserve(skb, xdp->data - xdp->data_hard_start);
	__skb_put(skb, xdp->data_end - xdp->data);
	if (xdp->data > xdp->data_meta)
		skb_metadata_set(skb, xdp->data - xdp->data_meta);
	skb_record_rx_queue(skb, queue->index);
	skb->protocol = eth_type_trans(skb, queue->port->dev);
	return skb;
}

static void sn_xdp_send(struct sn_port *port, struct sk_buff *skb, unsigned int index)
{
	struct netdev_queue *txq = netdev_get_tx_queue(port->dev, index);

	skb_push(skb, ETH_HLEN);
	__netif_tx_lock(txq, smp_processor_id());
	sn_send(port, skb, index);
	__netif_tx_unlock(txq);
}

/* in NAPI; consumes `skb` and returns what the program passed on, or NULL */
struct sk_buff *sn_xdp_run(struct sn_queue *queue, struct bpf_prog *prog, struct sk_buff *skb)
{
	struct sn_port *port = queue->port;
	struct xdp_buff xdp;
	u32 verdict;

	if (!sn_xdp_buffer(queue, skb, &xdp))
		return NULL;
	verdict = bpf_prog_run_xdp(prog, &xdp);
	switch (verdict) {
	case XDP_PASS:
		return sn_xdp_skb(queue, &xdp);
	case XDP_TX:
		skb = sn_xdp_skb(queue, &xdp);
		if (skb)
			sn_xdp_send(port, skb, queue->index);
		return NULL;
	case XDP_REDIRECT:
		if (!xdp_do_redirect(port->dev, &xdp, prog))
			return NULL;
		trace_xdp_exception(port->dev, prog, verdict);
		break;
	default:
		bpf_warn_invalid_xdp_action(port->dev, prog, verdict);
		fallthrough;
	case XDP_ABORTED:
		trace_xdp_exception(port->dev, prog, verdict);
		break;
	case XDP_DROP:
		break;
	}
	page_pool_put_full_page(queue->pool, virt_to_head_page(xdp.data_hard_start), true);
	return NULL;
}

/* frames another device redirects to us; returns how many were taken */
int sn_xdp_xmit(struct net_device *dev, int count, struct xdp_frame **frames, u32 flags)
{
	struct sn_port *port = netdev_priv(dev);
	unsigned int index = smp_processor_id() % dev->real_num_tx_queues;
	int sent;

	if (flags & ~XDP_XMIT_FLAGS_MASK)
		return -EINVAL;
	if (!READ_ONCE(port->up))
		return -ENETDOWN;
	for (sent = 0; sent < count; sent++) {
		struct sk_buff *skb = xdp_build_skb_from_frame(frames[sent], dev);

		if (!skb)
			break;
		sn_xdp_send(port, skb, index);
	}
	return sent;
}
