/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the BPF program that takes the frames of bench/traffic/frames.c shares with user space.
 */
#ifndef ATFND_ARRIVALS_H
#define ATFND_ARRIVALS_H

#include <linux/types.h>

#define STAMP_MAGIC 0xa7f4dbe5U
#define PORTS 2	   /* a power of two */
#define DELAYS 512 /* see slot_of() */

/* Behind the UDP header of each frame. */
struct stamp {
	__u32 magic;
	__u32 port;    /* that it was sent at */
	__u64 sent_ns; /* CLOCK_MONOTONIC */
};

#endif
