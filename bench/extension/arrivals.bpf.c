// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The sink of forwarded frames: counts each and its age, and drops it, at the ingress of an interface.
 *
 * A classifier (clsact) rather than a socket: what it takes of the CPU is that of a driver which
 * takes back what was sent, and of nothing else.
 */
#include "kernel_types.h"
#include "arrivals.h"
#include <bpf/bpf_helpers.h>

#define TC_ACT_OK 0 /* linux/pkt_cls.h */
#define TC_ACT_SHOT 2
#define HEADERS_BYTES 42 /* Ethernet, IPv4, UDP */

__u64 packets[PORTS] = {};
__u64 bytes = 0; /* as on the wire, without preamble and checksum */
__u64 delays[DELAYS] = {};

/* Eight slots for each doubling, so that a slot is at most an eighth wide. */
static __u32 slot_of(__u64 delay_ns)
{
	__u32 exponent = 0;

	for (int shift = 32; shift; shift /= 2) {
		if (delay_ns >> (exponent + shift))
			exponent += shift;
	}
	if (exponent < 3)
		return delay_ns & 7;
	return ((exponent - 2) * 8 + ((delay_ns >> (exponent - 3)) & 7)) & (DELAYS - 1);
}

SEC("tc")
int arrive(struct __sk_buff *skb)
{
	struct stamp stamp;
	__u64 now_ns;

	if (bpf_skb_load_bytes(skb, HEADERS_BYTES, &stamp, sizeof(stamp)) ||
	    stamp.magic != STAMP_MAGIC)
		return TC_ACT_OK;
	now_ns = bpf_ktime_get_ns();
	__sync_fetch_and_add(&packets[stamp.port & (PORTS - 1)], 1);
	__sync_fetch_and_add(&bytes, skb->len);
	__sync_fetch_and_add(&delays[slot_of(now_ns - stamp.sent_ns)], 1);
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "GPL";
