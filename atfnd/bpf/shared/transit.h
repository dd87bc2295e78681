/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the transit program and user space share. Times are CLOCK_MONOTONIC nanoseconds, a queue is
 * its NAPI id; packets are those of the wire (a merged skb counts as its segments).
 */
#ifndef ATFND_TRANSIT_H
#define ATFND_TRANSIT_H

#include <linux/types.h>

#define TRANSIT_RINGS 16
#define TRANSIT_SERVED (1 << 16)
#define TRANSIT_CPUS 1024

/* One socket's packets on their way from queue A to queue B; the key is its cookie. */
struct transit_flow {
	__u64 move; /* user space's name for this move */
	__u64 last_a_ns;
	__u64 first_b_ns; /* 0: nothing through B yet */
	__u64 last_b_ns;
	__u64 last_elsewhere_ns;
	__u64 a_packets;
	__u64 b_packets;
	__u64 late_packets;	 /* through A or R after the first through B */
	__u64 elsewhere_packets; /* through neither */
	__u32 napi_a;
	__u32 napi_b;
	__u32 elsewhere_napi; /* of the last one */
	__u32 napi_r;	      /* on the way from A to B; 0: none */
};

/* The end of a poll (tracepoint napi:napi_poll). */
struct transit_poll {
	__u64 ended_ns;
	__u32 work;
	__u32 budget;
};

/* One watched queue. User space writes napi_id and after_ns, the program the rest; an answer carries
 * the question it belongs to, so that neither waits for the other. */
struct transit_ring {
	__u64 after_ns;	     /* question: is all delivered that was in the ring then? 0: none */
	__u64 ended_after;   /* the question after which a poll has ended: ... */
	__u64 drained_after; /* the question answered yes ... */
	struct transit_poll ended;   /* ... this one; the next one began after the question */
	struct transit_poll drained; /* ... by this one */
	__u64 polls;
	__u64 polled_ns;  /* the end of the last one; read before polled_cpu, written after it */
	__u32 polled_cpu; /* where it was */
	__u32 full;	  /* it took its whole budget: the next begins at once */
	__u64 served_ns;  /* of polls that began so, ... */
	__u64 served_packets; /* ... and what they polled; both halved at TRANSIT_SERVED */
	__u64 napi;	      /* struct napi_struct *; 0: not known yet */
	__u32 napi_id;	      /* 0: unused */
	__u32 pad;
};

/* The backlog of one CPU: packets that were given to it, and delivered; both wrap. */
struct transit_backlog {
	__u32 cpu;
	__u32 head;
	__u32 tail;
};

/* A violation: packets of one skb that were delivered through A or R after the first through B. */
struct transit_event {
	__u64 at_ns;
	__u64 first_b_ns;
	__u64 move;
	__u64 cookie;
	__u32 napi_id; /* where they were delivered */
	__u32 packets;
};

#endif
