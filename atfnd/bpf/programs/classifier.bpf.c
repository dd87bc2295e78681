// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The lab NIC's receive classifier: filter table, then Toeplitz RSS. It runs on clsact egress of the
 * wire's end of a multi-queue veth and writes the receive queue as a hint that veth's transmit queue
 * selection follows (net/core/dev.c, skb_tx_hash: queue_mapping counts from 1).
 *
 * Filters are found by tuple-space search (Srinivasan, Suri, Varghese, "Packet classification using
 * tuple space search", SIGCOMM 1999): one hash lookup per distinct mask; the lowest location wins.
 */
#include "kernel_types.h"
#include "classifier.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include <stddef.h>

#define TC_ACT_UNSPEC (-1)
#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_SCTP 132
#define IP_MF_OR_OFFSET 0x3FFF
#define NO_LOCATION (~0U)

enum family { NOT_IP = -1, IPV4, IPV6 };

/* RFC 791 and RFC 8200, the fixed headers. */
struct ipv4_header {
	__u8 version_ihl;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__u8 src[4];
	__u8 dst[4];
};

struct ipv6_header {
	__be32 version_class_label;
	__be16 length;
	__u8 next_header;
	__u8 hop_limit;
	__u8 src[16];
	__u8 dst[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct registers);
} registers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set when loaded */
	__type(key, __u32);
	__type(value, struct filter);
} filters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set when loaded */
	__type(key, struct tuple);
	__type(value, __u32); /* location */
} locations SEC(".maps");

/* Reads ports into the tuple; true when it has them. */
static __always_inline bool read_ports(struct __sk_buff *skb, __u32 offset, struct tuple *tuple)
{
	if (tuple->protocol != IPPROTO_TCP && tuple->protocol != IPPROTO_UDP &&
	    tuple->protocol != IPPROTO_SCTP)
		return false;
	return !bpf_skb_load_bytes(skb, offset, &tuple->src_port, 2 * sizeof(__be16));
}

static __always_inline enum family read_ipv4(struct __sk_buff *skb, struct tuple *tuple,
					     bool *ports)
{
	struct ipv4_header ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return NOT_IP;
	__builtin_memcpy(tuple->src, ip.src, sizeof(ip.src));
	__builtin_memcpy(tuple->dst, ip.dst, sizeof(ip.dst));
	tuple->protocol = ip.protocol;
	if (!(ip.fragment & bpf_htons(IP_MF_OR_OFFSET)))
		*ports = read_ports(skb, ETH_HLEN + (ip.version_ihl & 0xF) * 4, tuple);
	return IPV4;
}

/* Behind an extension header (fragments among them) a packet is not parsed for ports, as on most
 * hardware: its protocol is that header's. */
static __always_inline enum family read_ipv6(struct __sk_buff *skb, struct tuple *tuple,
					     bool *ports)
{
	struct ipv6_header ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return NOT_IP;
	__builtin_memcpy(tuple->src, ip.src, sizeof(ip.src));
	__builtin_memcpy(tuple->dst, ip.dst, sizeof(ip.dst));
	tuple->protocol = ip.next_header;
	*ports = read_ports(skb, ETH_HLEN + sizeof(ip), tuple);
	return IPV6;
}

/* The location of the filter that wins, or NO_LOCATION. A global function, so that the verifier walks
 * its loop once and not once for each way a packet can be parsed. */
__noinline __u32 find_location(const struct tuple *tuple, enum family family)
{
	__u32 location = NO_LOCATION, first = family == IPV6 ? NIC_MASKS : 0, zero = 0;
	const struct registers *nic = bpf_map_lookup_elem(&registers, &zero);
	const __u64 *packet = (const __u64 *)tuple;
	struct tuple key;

	if (!nic || !tuple)
		return NO_LOCATION;
	for (__u32 i = 0; i < NIC_MASKS; i++) {
		const __u32 *found;

		if (i >= nic->masks[family == IPV6])
			break;
		for (int word = 0; word < TUPLE_WORDS; word++)
			((__u64 *)&key)[word] = packet[word] &
						nic->mask[(first + i) * TUPLE_WORDS + word];
		key.mask = first + i;
		found = bpf_map_lookup_elem(&locations, &key);
		if (found && *found < location)
			location = *found;
	}
	return location;
}

/* Toeplitz over the bytes at `position`, by table: bit by bit the verifier gives up. */
/* clang-format off */
#define HASH_BYTES(nic, position, field, length)                                       \
	({                                                                             \
		__u32 part = 0;                                                        \
		_Pragma("clang loop unroll(full)") for (int n = 0; n < (length); n++)  \
			part ^= (nic)->toeplitz[((position) + n) * 256 +               \
						((const __u8 *)(field))[n]];           \
		part;                                                                  \
	})
/* clang-format on */

static __always_inline __u32 rss_hash(const struct registers *nic, const struct tuple *tuple,
				      enum family family, bool ports)
{
	__u32 hash;

	if (family == IPV4) {
		hash = HASH_BYTES(nic, 0, tuple->src, 4) ^ HASH_BYTES(nic, 4, tuple->dst, 4);
		return ports ? hash ^ HASH_BYTES(nic, 8, &tuple->src_port, 4) : hash;
	}
	hash = HASH_BYTES(nic, 0, tuple->src, 16) ^ HASH_BYTES(nic, 16, tuple->dst, 16);
	return ports ? hash ^ HASH_BYTES(nic, 32, &tuple->src_port, 4) : hash;
}

/* One skb may stand for several packets of the wire: it is segmented after clsact. */
static __always_inline __u32 packets(const struct __sk_buff *skb)
{
	return skb->gso_segs ? skb->gso_segs : 1;
}

SEC("tc")
int classify(struct __sk_buff *skb)
{
	struct tuple tuple = {};
	struct filter *filter = NULL;
	enum family family = NOT_IP;
	bool ports = false;
	__u32 zero = 0, hash = 0, location = NO_LOCATION, queue;
	struct registers *nic = bpf_map_lookup_elem(&registers, &zero);

	if (!nic)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		family = read_ipv4(skb, &tuple, &ports);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		family = read_ipv6(skb, &tuple, &ports);
	if (family != NOT_IP)
		location = find_location(&tuple, family);
	if (location != NO_LOCATION)
		filter = bpf_map_lookup_elem(&filters, &location);

	if (filter) {
		queue = filter->queue % NIC_QUEUES;
		__sync_fetch_and_add(&filter->hits, packets(skb));
		__sync_fetch_and_add(&nic->by_filter[queue], packets(skb));
	} else {
		if (family != NOT_IP)
			hash = rss_hash(nic, &tuple, family, ports);
		queue = nic->rss_table[hash % RSS_TABLE] % NIC_QUEUES;
		__sync_fetch_and_add(&nic->by_rss[queue], packets(skb));
	}
	__sync_fetch_and_add(&nic->bytes[queue], skb->wire_len);
	skb->queue_mapping = nic->first_ring + queue + 1;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "GPL";
