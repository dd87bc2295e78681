// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Ground truth for the benches, independent of the observer: was this packet delivered on the CPU
 * its application uses the socket on?
 *
 * Delivery is tracepoint net:netif_receive_skb. It fires in __netif_receive_skb_core()
 * (net/core/dev.c), after get_rps_cpu() has chosen a CPU and enqueue_to_backlog() has moved the skb
 * there, so the running CPU is the one that does protocol processing under RSS, RPS, RFS and
 * filters alike. The application's CPU is that of its last call: sock:sock_{send,recv}_length fire
 * in process context (net/socket.c). That is where RFS sends a packet by construction, wherever its
 * thread is by the time it reads; so read locality is counted beside, at each read: the CPU that
 * reads against sk_incoming_cpu, that of the last packet that was processed.
 */
#include "kernel_types.h"
#include "meter.h"
#include <asm-generic/errno-base.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define AF_INET 2
#define AF_INET6 10
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IP_MF_OFFSET 0x3fff
#define MSG_PEEK 2 /* include/linux/socket.h: the data stay where they are */
#define MSG_ERRQUEUE 0x2000

const volatile __u32 netns;   /* inode number of the network namespace */
const volatile __u32 ifindex; /* device that receives */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct meter_key);
	__type(value, struct meter_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct meter_totals);
} totals SEC(".maps");

static struct meter_totals *this_cpu_totals(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static void map_v4(__u8 address[16], __be32 v4)
{
	if (!v4)
		return;
	address[10] = address[11] = 0xff;
	__builtin_memcpy(address + 12, &v4, 4);
}

static int key_of_socket(struct sock *sk, struct meter_key *key)
{
	__u16 family = sk->__sk_common.skc_family;

	key->protocol = sk->sk_protocol;
	if (key->protocol != IPPROTO_TCP && key->protocol != IPPROTO_UDP)
		return -1;
	key->local_port = sk->__sk_common.skc_num;
	key->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	if (family == AF_INET) {
		map_v4(key->local, sk->__sk_common.skc_rcv_saddr);
		map_v4(key->remote, sk->__sk_common.skc_daddr);
	} else if (family == AF_INET6) {
		BPF_CORE_READ_INTO(&key->local, sk, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&key->remote, sk, __sk_common.skc_v6_daddr);
	} else {
		return -1;
	}
	return 0;
}

static int socket_call(struct sock *sk)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct meter_totals *count = this_cpu_totals();
	struct meter_key key = {};
	struct meter_flow *flow;

	if (!count || sk->__sk_common.skc_net.net->ns.inum != netns || key_of_socket(sk, &key))
		return 0;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow) {
		struct meter_flow fresh = { .app_cpu = cpu };

		if (bpf_map_update_elem(&flows, &key, &fresh, BPF_NOEXIST) == -E2BIG)
			count->untracked++;
		return 0;
	}
	if (flow->app_cpu == cpu)
		return 0;
	flow->moves++;
	flow->app_cpu = cpu;
	return 0;
}

static void count_read(struct sock *sk, __u32 length)
{
	int rx = sk->__sk_common.skc_incoming_cpu;
	struct meter_totals *count = this_cpu_totals();
	struct meter_key key = {};
	struct meter_flow *flow;

	if (!count || sk->__sk_common.skc_net.net->ns.inum != netns || key_of_socket(sk, &key))
		return;
	if (rx < 0 || (key.protocol == IPPROTO_UDP && !key.remote_port)) {
		__sync_fetch_and_add(&count->unseen_bytes, length);
		return;
	}
	flow = bpf_map_lookup_elem(&flows, &key);
	if (rx == (int)bpf_get_smp_processor_id()) {
		__sync_fetch_and_add(&count->local_bytes, length);
		if (flow)
			__sync_fetch_and_add(&flow->local_bytes, length);
	} else {
		__sync_fetch_and_add(&count->remote_bytes, length);
		if (flow)
			__sync_fetch_and_add(&flow->remote_bytes, length);
	}
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_recv, struct sock *sk, int length, int flags)
{
	socket_call(sk);
	if (length > 0 && !(flags & (MSG_PEEK | MSG_ERRQUEUE)))
		count_read(sk, length);
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send, struct sock *sk)
{
	return socket_call(sk);
}

struct ipv4_header {
	__u8 version_length, tos;
	__be16 length, id, fragment;
	__u8 ttl, protocol;
	__be16 checksum;
	__be32 source, destination;
};

struct ipv6_header {
	__be32 version_flow;
	__be16 length;
	__u8 protocol, hop_limit;
	__u8 source[16], destination[16];
};

/* skb->data is the network header here: eth_type_trans() has pulled the Ethernet header, and
 * skb_reset_network_header() comes only after the tracepoint. */
static int key_of_packet(struct sk_buff *skb, struct meter_key *key)
{
	void *at = skb->data;
	__be16 ports[2];

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4_header ip;

		if (bpf_probe_read_kernel(&ip, sizeof(ip), at))
			return -1;
		if (ip.fragment & bpf_htons(IP_MF_OFFSET))
			return -1;
		key->protocol = ip.protocol;
		map_v4(key->remote, ip.source);
		map_v4(key->local, ip.destination);
		at += (ip.version_length & 15) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6_header ip;

		if (bpf_probe_read_kernel(&ip, sizeof(ip), at))
			return -1;
		key->protocol = ip.protocol;
		__builtin_memcpy(key->remote, ip.source, 16);
		__builtin_memcpy(key->local, ip.destination, 16);
		at += sizeof(ip);
	} else {
		return -1;
	}
	if (key->protocol != IPPROTO_TCP && key->protocol != IPPROTO_UDP)
		return -1;
	if (bpf_probe_read_kernel(ports, sizeof(ports), at))
		return -1;
	key->remote_port = bpf_ntohs(ports[0]);
	key->local_port = bpf_ntohs(ports[1]);
	return 0;
}

/* An unconnected UDP socket is known by its local port, bound to an address or to any. */
static struct meter_flow *unconnected(struct meter_key *key)
{
	struct meter_flow *flow;

	__builtin_memset(key->remote, 0, 16);
	key->remote_port = 0;
	flow = bpf_map_lookup_elem(&flows, key);
	if (flow)
		return flow;
	__builtin_memset(key->local, 0, 16);
	return bpf_map_lookup_elem(&flows, key);
}

/* {tcp,udp}_gro_complete() leave the number of merged packets in gso_segs; 0 means one. */
static __u32 segments_of(struct sk_buff *skb)
{
	struct skb_shared_info *shared = (void *)(skb->head + skb->end);
	__u16 segments = BPF_CORE_READ(shared, gso_segs);

	return segments ?: 1;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_delivery, struct sk_buff *skb)
{
	struct meter_totals *count = this_cpu_totals();
	struct net_device *dev = skb->dev;
	struct meter_key key = {};
	struct meter_flow *flow;
	__u32 segments;

	if (!count || dev->ifindex != (int)ifindex || dev->nd_net.net->ns.inum != netns)
		return 0;
	if (key_of_packet(skb, &key))
		return 0;
	segments = segments_of(skb);
	count->skbs++;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow && key.protocol == IPPROTO_UDP)
		flow = unconnected(&key);
	if (!flow) {
		count->unknown_segments += segments;
	} else if (flow->app_cpu == bpf_get_smp_processor_id()) {
		count->local_segments += segments;
		__sync_fetch_and_add(&flow->local_segments, segments);
	} else {
		count->remote_segments += segments;
		__sync_fetch_and_add(&flow->remote_segments, segments);
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
