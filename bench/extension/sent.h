/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the rival that steers by transmitted packets and user space share.
 */
#ifndef ATFND_SENT_H
#define ATFND_SENT_H

#include <linux/types.h>

#define SENT_CPUS 64

/* Per CPU. */
struct sent_totals {
	__u64 packets; /* transmitted by flows that have a filter */
	__u64 moves;   /* of them, those that moved the filter of their flow */
};

#endif
