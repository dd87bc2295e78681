/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the lab NIC's classifier and user space share: the device's registers (one memory-mapped
 * array element), its filter slots (a memory-mapped array) and the map that finds the location of a key.
 * User space takes the layouts from BTF, so structs hold integers and flat arrays only.
 */
#ifndef ATFND_CLASSIFIER_H
#define ATFND_CLASSIFIER_H

#include <linux/types.h>

#define NIC_QUEUES 64
#define NIC_FILTERS 65536 /* most slots a lab may have */
#define NIC_MASKS 32	  /* different masks per address family */
#define TUPLE_WORDS 5
#define RSS_KEY_BYTES 40
#define RSS_TABLE 128
#define RSS_INPUT_BYTES 36 /* IPv6 addresses and ports */

/* A packet's fields as a filter sees them, and the key of the map `locations`. IPv4 addresses are the first
 * four bytes. Without ports (fragment, other protocol) both are zero, which no filter asks for. */
struct tuple {
	__u8 src[16];
	__u8 dst[16];
	__be16 src_port;
	__be16 dst_port;
	__u8 protocol;
	__u8 mask; /* number of the mask that made this key; IPv4 below NIC_MASKS, IPv6 above */
	__u16 zero;
};

/* One slot of the filter table; its number is its location. */
struct filter {
	__u8 key[sizeof(struct tuple)];
	__u32 queue;
	__u32 used;
	__u64 hits;
};

struct registers {
	__u32 queues;
	__u32 first_ring; /* veth's receive queue that is ring 0 of the NIC */
	__u32 interrupts; /* packets come by these, which RPS plays; 0: from NAPI threads */
	__u32 slots;
	__u32 busy;	/* set while a writer is between two writes: found set, it died there */
	__u32 masks[2]; /* per family: this many of its masks are looked at */
	__u32 mask_filters[2 * NIC_MASKS]; /* filters that use a mask; 0 frees it */
	__u64 mask[2 * NIC_MASKS * TUPLE_WORDS];
	__u8 free[NIC_FILTERS / 8]; /* bit set: slot empty; the classifier does not look */
	__u8 rss_key[RSS_KEY_BYTES];
	__u32 rss_table[RSS_TABLE];
	__u32 toeplitz[RSS_INPUT_BYTES * 256]; /* hash of byte b at position p: [p * 256 + b] */
	__u64 by_filter[NIC_QUEUES];	       /* packets */
	__u64 by_rss[NIC_QUEUES];	       /* packets */
	__u64 bytes[NIC_QUEUES];	       /* on the wire, headers included */
};

#endif
