/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the BPF program that times waits for spinlocks shares with user space.
 */
#ifndef ATFND_WAITS_H
#define ATFND_WAITS_H

#include <linux/types.h>

/* Per CPU, since the program was loaded. Times are nanoseconds. */
struct waits_totals {
	__u64 socket_waits; /* for the spinlock of a TCP socket of the namespace */
	__u64 socket_ns;
	__u64 other_waits; /* for any other spinlock of the machine */
	__u64 other_ns;
	__u64 softirq_skbs; /* TCP processed them as they came */
	__u64 backlog_skbs; /* the thread that owned the socket did it later (sk_backlog) */
	__u64 local_bytes;  /* read on the CPU that had processed them */
	__u64 remote_bytes; /* read on another one */
	__u64 untracked;    /* sockets that found the table of locks full */
	__u64 unfinished;   /* waits whose end was not seen */
};

#endif
