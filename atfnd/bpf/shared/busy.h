/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the busy program and user space share: one of these a CPU. Times are CLOCK_MONOTONIC
 * nanoseconds, counted from the start of the program.
 */
#ifndef ATFND_BUSY_H
#define ATFND_BUSY_H

#include <linux/types.h>

struct busy_time {
	__u64 switches;		/* 0: it is not known yet whether the CPU is idle */
	__u64 idle_ns;		/* its idle task ran, until idle_since_ns */
	__u64 idle_since_ns;	/* 0: it does not run now */
	__u64 over_idle_ns;	/* softirqs that interrupted the idle task */
	__u64 network_ns;	/* softirqs NET_RX and NET_TX, but those that a NAPI thread ran */
	__u64 softirq_since_ns; /* 0: none runs now */
};

#endif
