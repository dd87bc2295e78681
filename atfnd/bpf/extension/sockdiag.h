/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the sock_diag files of the extension share: one record a socket, how it is dumped, and which
 * records a watcher has seen. The record's layout is written here and nowhere else; Python reads it
 * from sockdiag_layout().
 */
#ifndef ATFND_SOCKDIAG_H
#define ATFND_SOCKDIAG_H

#include <linux/netlink.h>
#include <linux/types.h>
#include <netlink/socket.h>
#include <stddef.h>

#define SOCKDIAG_NOT_SAID ((__u64)-1)

/* X(struct-module code, C type, name, array suffix). Integers are in host order. */
/* clang-format off */
#define SOCKDIAG_FIELDS(X)                                                                        \
	X("Q", __u64, cookie, )                                                                   \
	X("Q", __u64, app_bytes, ) /* read and written by the application; or NOT_SAID */             \
	X("Q", __u64, acked, ) /* bytes that the peer has; a SYN counts one; 0: not said */        \
	X("Q", __u64, cgroup, ) /* cgroup v2 id, 0: not said */                                   \
	X("Q", __u64, first_ns, ) /* when a watcher first saw it (CLOCK_MONOTONIC), 0 in a dump */ \
	X("16s", __u8, local, [16]) /* IPv4 in the first four bytes, also when it was v4-mapped */ \
	X("16s", __u8, remote, [16])                                                              \
	X("H", __u16, local_port, )                                                               \
	X("H", __u16, remote_port, )                                                              \
	X("I", __u32, interface, )                                                                \
	X("I", __u32, uid, )                                                                      \
	X("I", __u32, rtt_us, ) /* smoothed; 0: not said */                                       \
	X("I", __u32, inode, )                                                                    \
	X("B", __u8, family, ) /* 4 or 6: of the packets, not of the socket */                    \
	X("B", __u8, protocol, )                                                                  \
	X("B", __u8, state, )                                                                     \
	X("B", __u8, both, ) /* bound to :: and not v6only: IPv4 reaches it too */
/* clang-format on */

struct sockdiag_record {
#define FIELD(code, type, name, array) type name array;
	SOCKDIAG_FIELDS(FIELD)
#undef FIELD
};

/* A growing array that is reused from one dump to the next. */
struct records {
	struct sockdiag_record *at;
	size_t count, room;
};

/*
 * sockdiag_netlink.c. All of these return 0 or a positive errno and may be called without the GIL.
 * Loopback sockets are left out: there is no NIC to steer. EAGAIN from a dump: it stayed
 * inconsistent (NLM_F_DUMP_INTR) after a few tries.
 */
int sockdiag_open(int netns_fd, struct nl_sock **socket);
int sockdiag_dump(struct nl_sock *socket, int family, int protocol, __u32 states,
		  struct records *records);
int sockdiag_listen(struct nl_sock *socket);
/* What ended since the last call, at most 64 Ki sockets; `lost` counts overruns (ENOBUFS). */
int sockdiag_destroyed(struct nl_sock *socket, struct records *records, unsigned long long *lost);

/* sockdiag_seen.c: cookies of the last dump and what was known of them. */
struct seen;
struct seen_slot {
	__u64 cookie, bytes, first_ns;
	__u32 missed;
};

struct seen *seen_new(void);
void seen_free(struct seen *seen);
/*
 * Compares a dump with the one before it. `records` keeps only the sockets used since then that are
 * old enough and have carried enough; `gone` gets the cookies absent from two dumps in a row (one
 * dump may miss a socket: it walks hash chains that change under it). 0 or ENOMEM.
 */
int seen_compare(struct seen *seen, struct records *records, __u64 now_ns, __u64 min_bytes,
		 __u64 min_age_ns, __u64 **gone, size_t *gone_count);

#endif
