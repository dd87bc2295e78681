/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the program that counts forwarded packets and user space share.
 */
#ifndef ATFND_PAIRS_H
#define ATFND_PAIRS_H

#include <linux/types.h>

#define PAIRS 4096 /* at most */

struct pair_key {
	__u32 netns; /* inode number of the namespace of the egress interface */
	__u32 ingress_ifindex;
	__u32 egress_ifindex;
	__u32 tx_queue;
	__u32 cpu;
};

struct pair_count {
	__u64 packets; /* as they leave: a segment of GSO is one */
	__u64 bytes;   /* each with its headers, Ethernet's among them */
};

#endif
