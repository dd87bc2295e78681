// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which packets are forwarded, from which interface to which TX queue, and on which CPU?
 *
 * Tracepoint net:net_dev_start_xmit (xmit_one(), net/core/dev.c) fires where a packet is given to a
 * driver, on the CPU that has received, routed and queued it: nothing between NAPI and there leaves
 * the CPU, but RPS, cpumap and the cells of tunnels. A forwarded packet has no socket, and skb_iif
 * still names the interface that it came in by (__netif_receive_skb_core()); the stack does not set
 * that of what it sends itself. Where devices stand upon each other, each of them gives the packet to
 * a driver once.
 */
#include "kernel_types.h"
#include "pairs.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PAIRS);
	__type(key, struct pair_key);
	__type(value, struct pair_count);
} pairs SEC(".maps");

__u64 missed = 0; /* packets that found no room in the map */

/* Put the layouts into this object's BTF, where user space reads them. */
const struct pair_key *pair_key_layout __attribute__((unused));
const struct pair_count *pair_count_layout __attribute__((unused));

/* skb_shared_info.gso_type (include/linux/skbuff.h) */
#define SKB_GSO_TCP ((1 << 0) | (1 << 4)) /* IPv4, IPv6 */
#define SKB_GSO_UDP_L4 (1 << 17)

struct sent {
	__u32 packets;
	__u32 bytes;
};

/* The headers that each segment of a GSO packet has, up to TCP or UDP. They are in the linear part:
 * drivers with TSO need them there. */
static __always_inline __u32 header_bytes(struct sk_buff *skb, __u32 gso_type)
{
	bool inner = BPF_CORE_READ_BITFIELD(skb, encapsulation);
	unsigned char *transport = skb->head +
				   (inner ? skb->inner_transport_header : skb->transport_header);
	__u32 before = transport - skb->data;
	__u8 offset = 0; /* TCP's data offset, in the upper half */

	if (gso_type & SKB_GSO_TCP) {
		bpf_probe_read_kernel(&offset, sizeof(offset), transport + 12);
		return before + (offset >> 4) * 4;
	}
	return gso_type & SKB_GSO_UDP_L4 ? before + 8 : 0;
}

/* What leaves, as qdisc_pkt_len_init() has it (net/core/dev.c). A guest's packet comes without the
 * number of its segments (SKB_GSO_DODGY). */
static __always_inline struct sent sent_of(struct sk_buff *skb)
{
	struct skb_shared_info *shared = (void *)(skb->head + skb->end);
	__u32 size = BPF_CORE_READ(shared, gso_size), segments, headers;

	if (!size)
		return (struct sent){ 1, skb->len };
	segments = BPF_CORE_READ(shared, gso_segs);
	headers = header_bytes(skb, BPF_CORE_READ(shared, gso_type));
	if (headers && !segments)
		segments = (skb->len - headers + size - 1) / size;
	segments = segments ?: 1;
	return (struct sent){ segments, skb->len + (segments - 1) * headers };
}

/* A softirq may interrupt a sender on its CPU: both count by atomic adds. */
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_xmit, struct sk_buff *skb, struct net_device *dev)
{
	struct pair_count fresh = {}, *count;
	struct pair_key key = {};
	struct sent sent;

	if (skb->sk || !skb->skb_iif)
		return 0;
	key.netns = dev->nd_net.net->ns.inum;
	key.ingress_ifindex = skb->skb_iif;
	key.egress_ifindex = dev->ifindex;
	key.tx_queue = skb->queue_mapping;
	key.cpu = bpf_get_smp_processor_id();
	sent = sent_of(skb);
	count = bpf_map_lookup_elem(&pairs, &key);
	if (!count) {
		bpf_map_update_elem(&pairs, &key, &fresh, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&pairs, &key);
	}
	if (!count) {
		__sync_fetch_and_add(&missed, sent.packets);
		return 0;
	}
	__sync_fetch_and_add(&count->packets, sent.packets);
	__sync_fetch_and_add(&count->bytes, sent.bytes);
	return 0;
}

char _license[] SEC("license") = "GPL";
