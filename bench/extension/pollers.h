/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the BPF program that times NAPI threads shares with user space.
 */
#ifndef ATFND_POLLERS_H
#define ATFND_POLLERS_H

#include <linux/types.h>

#define POLLERS 16

/* Of one thread, since the program was loaded. Times are nanoseconds on a CPU. */
struct poller_totals {
	__u64 polls;	   /* that found packets */
	__u64 empty_polls; /* that found none */
	__u64 packets;
	__u64 work_ns;	/* in polls that found packets */
	__u64 empty_ns; /* in polls that found none */
	__u64 other_ns; /* between a poll and going to sleep or losing the CPU */
	__u64 off_ns;	/* from when it left its CPU to when it had one again */
	__u64 sleeps;	/* it gave the CPU away by itself */
};

#endif
