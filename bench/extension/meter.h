/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the meter's BPF program and user space share. Addresses are 16 bytes: IPv4 is v4-mapped
 * (::ffff:a.b.c.d), "any" is all zero, so a dual-stack socket and its IPv4 packets have one key.
 * Ports are in host order, times are CLOCK_MONOTONIC nanoseconds.
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
	__u64 changed_ns;      /* first call on app_cpu */
	__u64 last_remote_ns;  /* last delivery elsewhere since changed_ns, 0 for none */
	__u32 moves;	       /* times app_cpu changed */
	__u32 remote_since;    /* segments delivered elsewhere since changed_ns */
	__u32 app_cpu;
	__u32 from_cpu; /* app_cpu before the last change */
	__u32 pending;	/* changed, and nothing delivered on app_cpu since */
	__u32 pad;
	__u64 local_bytes;  /* read on the CPU that had processed them */
	__u64 remote_bytes; /* read on another one */
};

/* Per CPU; a merged (GRO) skb is one skb of many segments. */
struct meter_totals {
	__u64 local_segments;
	__u64 remote_segments;
	__u64 unknown_segments; /* of flows whose application has made no call yet */
	__u64 local_skbs;
	__u64 remote_skbs;
	__u64 unknown_skbs;
	__u64 other_skbs;   /* not TCP or UDP, or a fragment */
	__u64 untracked;    /* socket calls on flows that found the flow map full */
	__u64 superseded;   /* CPU changes before the previous one was reacted to */
	__u64 lost;	    /* reactions that found the ring full */
	__u64 local_bytes;  /* read on the CPU that had processed them */
	__u64 remote_bytes; /* read on another one */
	__u64 unseen_bytes; /* read from unconnected UDP sockets: the kernel keeps no CPU */
};

/* One application move that was reacted to. */
struct meter_reaction {
	__u8 remote[16];
	__u8 local[16];
	__u16 remote_port;
	__u16 local_port;
	__u32 protocol;
	__u64 changed_ns;     /* first socket call on the new CPU */
	__u64 last_remote_ns; /* last delivery elsewhere after it, 0 for none */
	__u64 first_local_ns; /* first delivery on the new CPU */
	__u32 remote_since;   /* segments delivered elsewhere in between */
	__u16 from_cpu;
	__u16 to_cpu;
};

#endif
