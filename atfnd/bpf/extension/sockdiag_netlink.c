/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Reads sockets over NETLINK_SOCK_DIAG: sock_diag(7), net/ipv4/{inet,tcp,udp}_diag.c. Changes
 * nothing. libnl carries the socket and the attribute walk; the receive loop is our own because
 * nl_recv() allocates for every datagram.
 */
#define _GNU_SOURCE
#include "sockdiag.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "netns.h"

/* netlink_dump() fills at most 32 KiB a datagram, whatever larger buffer we offer. */
#define DATAGRAM_BYTES 65536
#define DUMP_TRIES 3
#define DESTROYED_PER_CALL 65536

/* The part of struct tcp_info (uapi/linux/tcp.h) we read; libnl's headers pull in libc's older one. */
struct tcp_counters {
	__u8 before[68];
	__u32 rtt_us;
	__u8 between[48];
	__u64 bytes_acked;
	__u64 bytes_received;
};

struct opening {
	struct nl_sock *socket;
	int err;
};

/* A netlink socket stays in the namespace it was made in. */
static void open_socket(void *argument)
{
	struct opening *opening = argument;

	opening->socket = nl_socket_alloc();
	if (!opening->socket) {
		opening->err = ENOMEM;
		return;
	}
	errno = 0;
	if (nl_connect(opening->socket, NETLINK_SOCK_DIAG)) {
		opening->err = errno ? errno : EIO;
		nl_socket_free(opening->socket);
	}
}

int sockdiag_open(int netns_fd, struct nl_sock **socket)
{
	struct opening opening = { 0 };
	int err = netns_call(netns_fd, open_socket, &opening);

	if (err || opening.err)
		return err ? err : opening.err;
	*socket = opening.socket;
	return 0;
}

static int append(struct records *records, const struct sockdiag_record *record)
{
	if (records->count == records->room) {
		size_t room = records->room ? records->room * 2 : 256;
		void *grown = realloc(records->at, room * sizeof(*records->at));

		if (!grown)
			return ENOMEM;
		records->at = grown;
		records->room = room;
	}
	records->at[records->count++] = *record;
	return 0;
}

/* Only bytes the application has taken or given: arrivals it has not read and ACKs do not count.
 * received - rqueue = copied_seq and acked + wqueue = write_seq, each less its start. */
static __u64 application_bytes(const struct inet_diag_msg *msg, const struct tcp_counters *tcp)
{
	__u64 in = tcp->bytes_received, out = tcp->bytes_acked + msg->idiag_wqueue;

	return out + (in > msg->idiag_rqueue ? in - msg->idiag_rqueue : 0);
}

static int is_mapped(const void *address)
{
	static const __u8 prefix[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(address, prefix, sizeof(prefix));
}

/* A dual-stack socket talking IPv4 carries v4-mapped addresses; its packets are IPv4. */
static void fill_addresses(struct sockdiag_record *record, const struct inet_diag_sockid *id,
			   int family)
{
	const __u8 *local = (const __u8 *)id->idiag_src, *remote = (const __u8 *)id->idiag_dst;
	int mapped = family == AF_INET6 && is_mapped(local);

	record->family = family == AF_INET || mapped ? 4 : 6;
	memcpy(record->local, mapped ? local + 12 : local, record->family == 4 ? 4 : 16);
	if (!mapped || is_mapped(remote))
		memcpy(record->remote, mapped ? remote + 12 : remote, record->family == 4 ? 4 : 16);
}

static int is_loopback(const struct sockdiag_record *record)
{
	return record->family == 4 ? record->local[0] == 127
				   : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)record->local);
}

/*
 * Appends what one message says of a socket worth knowing. In a dump, inode 0 is a socket the
 * application has closed and the kernel still winds down: it is gone for us. `protocol` is 0 in
 * destroy messages, which name it themselves.
 */
static int parse(struct nlmsghdr *message, int protocol, struct records *records)
{
	static const __u8 any[16];
	struct inet_diag_msg *msg = nlmsg_data(message);
	struct sockdiag_record record = { .app_bytes = SOCKDIAG_NOT_SAID };
	struct nlattr *attr, *info = NULL;
	struct tcp_counters tcp;
	int left, v6only = 0;

	if (!nlmsg_valid_hdr(message, sizeof(*msg)))
		return EBADMSG;
	fill_addresses(&record, &msg->id, msg->idiag_family);
	if (is_loopback(&record) || (protocol && !msg->idiag_inode))
		return 0;
	nlmsg_for_each_attr (attr, message, sizeof(*msg), left) {
		switch (nla_type(attr)) {
		case INET_DIAG_INFO:
			info = attr;
			break;
		case INET_DIAG_CGROUP_ID:
			record.cgroup = nla_get_u64(attr);
			break;
		case INET_DIAG_SKV6ONLY:
			v6only = nla_get_u8(attr);
			break;
		case INET_DIAG_PROTOCOL:
			protocol = nla_get_u8(attr);
			break;
		}
	}
	if (info && protocol == IPPROTO_TCP && nla_len(info) >= (int)sizeof(tcp)) {
		memcpy(&tcp, nla_data(info), sizeof(tcp));
		record.app_bytes = application_bytes(msg, &tcp);
		record.acked = tcp.bytes_acked;
		record.rtt_us = tcp.rtt_us;
	}
	record.cookie = (__u64)msg->id.idiag_cookie[1] << 32 | msg->id.idiag_cookie[0];
	record.local_port = ntohs(msg->id.idiag_sport);
	record.remote_port = ntohs(msg->id.idiag_dport);
	record.interface = msg->id.idiag_if;
	record.uid = msg->idiag_uid;
	record.inode = msg->idiag_inode;
	record.protocol = protocol;
	record.state = msg->idiag_state;
	record.both = record.family == 6 && !v6only && !memcmp(record.local, any, sizeof(any)) &&
		      !memcmp(record.remote, any, sizeof(any));
	return append(records, &record);
}

static int request_dump(struct nl_sock *socket, __u32 sequence, int family, int protocol,
			__u32 states)
{
	struct {
		struct nlmsghdr header;
		struct inet_diag_req_v2 req;
	} request = {
		.header = { .nlmsg_len = sizeof(request),
			    .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			    .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
			    .nlmsg_seq = sequence },
		.req = { .sdiag_family = family,
			 .sdiag_protocol = protocol,
			 .idiag_ext = 1 << (INET_DIAG_INFO - 1),
			 .idiag_states = states },
	};

	return send(nl_socket_get_fd(socket), &request, sizeof(request), 0) < 0 ? errno : 0;
}

/* Reads one answer to its end; `interrupted` is set when the kernel says it is inconsistent. */
static int read_dump(struct nl_sock *socket, __u32 sequence, int protocol, char *datagram,
		     struct records *records, int *interrupted)
{
	for (;;) {
		ssize_t got = recv(nl_socket_get_fd(socket), datagram, DATAGRAM_BYTES, MSG_TRUNC);
		int left = got, err;

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno;
		if (got > DATAGRAM_BYTES)
			return EMSGSIZE;
		for (struct nlmsghdr *message = (void *)datagram; nlmsg_ok(message, left);
		     message = nlmsg_next(message, &left)) {
			if (message->nlmsg_seq != sequence)
				continue; /* the rest of a dump that failed earlier */
			*interrupted |= message->nlmsg_flags & NLM_F_DUMP_INTR;
			if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR)
				return -*(int *)nlmsg_data(message); /* both begin with an errno */
			err = parse(message, protocol, records);
			if (err)
				return err;
		}
	}
}

int sockdiag_dump(struct nl_sock *socket, int family, int protocol, __u32 states,
		  struct records *records)
{
	char *datagram = malloc(DATAGRAM_BYTES);
	int err = datagram ? 0 : ENOMEM, interrupted = 1;

	for (int i = 0; i < DUMP_TRIES && !err && interrupted; i++) {
		__u32 sequence = nl_socket_use_seq(socket);

		interrupted = 0;
		records->count = 0;
		err = request_dump(socket, sequence, family, protocol, states);
		if (!err)
			err = read_dump(socket, sequence, protocol, datagram, records,
					&interrupted);
	}
	free(datagram);
	return err ? err : interrupted ? EAGAIN : 0;
}

int sockdiag_listen(struct nl_sock *socket)
{
	static const int buffer_bytes = 8 << 20;

	errno = 0;
	if (nl_socket_add_memberships(socket, SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY,
				      SKNLGRP_INET_UDP_DESTROY, SKNLGRP_INET6_UDP_DESTROY, 0) ||
	    nl_socket_set_nonblocking(socket) ||
	    setsockopt(nl_socket_get_fd(socket), SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes,
		       sizeof(buffer_bytes)))
		return errno ? errno : EIO;
	return 0;
}

int sockdiag_destroyed(struct nl_sock *socket, struct records *records, unsigned long long *lost)
{
	char datagram[8192] __attribute__((aligned(8)));

	records->count = 0;
	for (int i = 0; i < DESTROYED_PER_CALL; i++) {
		ssize_t got = recv(nl_socket_get_fd(socket), datagram, sizeof(datagram), 0);
		int left = got, err;

		if (got < 0 && errno == ENOBUFS)
			++*lost;
		if (got < 0 && (errno == ENOBUFS || errno == EINTR))
			continue;
		if (got < 0)
			return errno == EAGAIN ? 0 : errno;
		for (struct nlmsghdr *message = (void *)datagram; nlmsg_ok(message, left);
		     message = nlmsg_next(message, &left)) {
			if (message->nlmsg_type != SOCK_DIAG_BY_FAMILY)
				continue;
			err = parse(message, 0, records);
			if (err)
				return err;
		}
	}
	return 0;
}
