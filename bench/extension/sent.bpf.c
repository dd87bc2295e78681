// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A rival for the benches: a lab NIC that steers by the CPU of transmitted packets.
 *
 * It is the signal of Wu, DeMar, Crawford (section 3.2) with T_timer 0, and of Intel's ATR: each
 * packet that a flow transmits leads what it receives to the queue of the CPU that transmitted.
 * An ACK that a softirq sends is such a packet, too. Filters are written in the NIC's own table, at
 * once, as the device itself would.
 */
#include "kernel_types.h"
#include "classifier.h"
#include "sent.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define IPPROTO_TCP 6

const volatile __u32 netns;   /* inode number of the network namespace */
const volatile __u32 ifindex; /* device that transmits */
const volatile __u32 mask;    /* number of the mask of whole IPv4 flows */
const volatile __u32 queue_of[SENT_CPUS];

/* The classifier's own: user space puts their descriptors in place of these. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct filter);
} filters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct tuple);
	__type(value, __u32);
} locations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sent_totals);
} totals SEC(".maps");

struct ipv4_header {
	__u8 version_length, tos;
	__be16 length, id, fragment;
	__u8 ttl, protocol;
	__be16 checksum;
	__u8 source[4], destination[4];
};

/* What the flow of this packet receives, as the classifier sees it. */
static __always_inline bool received_as(const struct sk_buff *skb, struct tuple *tuple)
{
	const unsigned char *at = skb->head + skb->network_header;
	struct ipv4_header ip;
	__be16 ports[2];

	if (bpf_probe_read_kernel(&ip, sizeof(ip), at) || ip.version_length >> 4 != 4 ||
	    ip.protocol != IPPROTO_TCP)
		return false;
	at += (ip.version_length & 15) * 4;
	if (bpf_probe_read_kernel(ports, sizeof(ports), at))
		return false;
	__builtin_memcpy(tuple->src, ip.destination, 4);
	__builtin_memcpy(tuple->dst, ip.source, 4);
	tuple->src_port = ports[1];
	tuple->dst_port = ports[0];
	tuple->protocol = ip.protocol;
	tuple->mask = mask;
	return true;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_xmit, const struct sk_buff *skb, const struct net_device *dev)
{
	__u32 zero = 0, queue = queue_of[bpf_get_smp_processor_id() % SENT_CPUS], *location;
	struct sent_totals *count = bpf_map_lookup_elem(&totals, &zero);
	struct tuple tuple = {};
	struct filter *filter;

	if (!count || dev->ifindex != (int)ifindex || dev->nd_net.net->ns.inum != netns ||
	    !received_as(skb, &tuple))
		return 0;
	location = bpf_map_lookup_elem(&locations, &tuple);
	filter = location ? bpf_map_lookup_elem(&filters, location) : NULL;
	if (!filter)
		return 0;
	count->packets++;
	if (filter->queue != queue) {
		filter->queue = queue;
		count->moves++;
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
