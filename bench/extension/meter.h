/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the meter's BPF program and user space share. Addresses are 16 bytes: IPv4 is v4-mapped
 * (::ffff:a.b.c.d), "any" is all zero, so a dual-stack socket and its IPv4 packets have one key.
 * Ports are in host order.
 */
#ifndef ATFND_METER_H
#define ATFND_METER_H

#include <linux/types.h>

struct meter_key {
	__u8 remote[16];
	__u8 local[16];
	__u16 remote_port;
	__u16 local_port;
	__u8 protocol;
	__u8 pad[3];
};

/* One flow whose application has made at least one socket call. */
struct meter_flow {
	__u64 local_segments;  /* delivered on the CPU the application last called from */
	__u64 remote_segments; /* delivered elsewhere */
	__u32 moves;	       /* times app_cpu changed */
	__u32 app_cpu;
	__u64 local_bytes;  /* read on the CPU that had processed them */
	__u64 remote_bytes; /* read on another one */
};

/* Per CPU. */
struct meter_totals {
	__u64 local_segments;
	__u64 remote_segments;
	__u64 unknown_segments; /* of flows whose application has made no call yet */
	__u64 skbs;		/* of all these: a merged (GRO) skb is one of many segments */
	__u64 untracked;	/* socket calls on flows that found the flow map full */
	__u64 local_bytes;	/* read on the CPU that had processed them */
	__u64 remote_bytes;	/* read on another one */
	__u64 unseen_bytes;	/* read from unconnected UDP sockets: the kernel keeps no CPU */
};

#endif
