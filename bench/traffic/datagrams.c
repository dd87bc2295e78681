// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Numbered UDP datagrams over many flows, and a checker that knows nothing of queues.
 *
 *	datagrams send HOST FIRST-PORT FLOWS RATE ACTIVE TRAIN
 *	datagrams check HOST FIRST-PORT FLOWS PEER FIRST LOG
 *
 * `send` paces RATE datagrams a second, and prints when it began (CLOCK_MONOTONIC): ACTIVE flows send
 * at a time, one after the other, TRAIN datagrams each; then the next ACTIVE ones. `check` receives the flows from number FIRST on, each
 * with a connected socket, prints their cookies as JSON, and until SIGTERM notes each datagram in
 * LOG: when the kernel received it (SO_TIMESTAMPNS: before it is queued anywhere), and of which
 * flow. It is late when a higher number of its flow came before it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#define PEER_PORT 4000
#define MOST_FLOWS 4096
#define BATCH 32
#define BUFFER_BYTES (8 << 20)
#define LATE (1U << 31)
#define TICK_NS 500000

struct datagram {
	uint64_t number; /* in its flow, from 1 on */
	char room[40];
};

struct record {
	int64_t received_ns;
	uint32_t flow; /* LATE is set when it was */
	uint32_t pad;
};

struct flow {
	int fd;
	uint64_t received, highest;
};

static struct flow flows[MOST_FLOWS];
static volatile sig_atomic_t stopping;

static void stop(int signum)
{
	(void)signum;
	stopping = 1;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct sockaddr_in end(const char *address, unsigned int port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (inet_pton(AF_INET, address, &found.sin_addr) != 1)
		errx(2, "%s is no IPv4 address", address);
	return found;
}

static int udp(struct sockaddr_in local)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), size = BUFFER_BYTES;

	if (fd < 0 || bind(fd, (struct sockaddr *)&local, sizeof(local)))
		err(1, "a socket at port %d", ntohs(local.sin_port));
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		err(1, "SO_RCVBUFFORCE");
	return fd;
}

static void send_batch(int fd, struct mmsghdr *messages, unsigned int count)
{
	for (unsigned int sent = 0; sent < count;) {
		int more = sendmmsg(fd, messages + sent, count - sent, 0);

		if (more < 0 && errno != EINTR && errno != ENOBUFS && errno != ECONNREFUSED)
			err(1, "sendmmsg");
		if (more > 0)
			sent += more;
	}
}

static void send_all(const char *host, unsigned int port, unsigned int count, double rate,
		     unsigned int active, unsigned int train)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(PEER_PORT) };
	struct sockaddr_in to[BATCH];
	struct datagram datagrams[BATCH] = {};
	struct iovec parts[BATCH];
	struct mmsghdr messages[BATCH] = {};
	static uint64_t numbers[MOST_FLOWS];
	int fd = udp(any);
	int64_t began = now_ns();
	uint64_t at = 0, sent = 0, turn = (uint64_t)active * train, most_late = rate / 200;
	const struct timespec tick = { .tv_nsec = TICK_NS };

	for (int i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){ &datagrams[i], sizeof(datagrams[i]) };
		messages[i].msg_hdr = (struct msghdr){ &to[i], sizeof(to[i]), &parts[i], 1, NULL, 0,
						       0 };
	}
	printf("{\"began_ns\": %lld}\nready\n", (long long)began);
	fflush(stdout);
	while (!stopping) {
		uint64_t due = (now_ns() - began) * rate / 1e9;

		if (at + most_late < due)
			at = due; /* a turn that was missed is over */
		while (at < due && !stopping) {
			unsigned int n = 0;

			for (; n < BATCH && at < due; n++, at++, sent++) {
				unsigned int flow = (at / turn * active + at % active) % count;

				to[n] = end(host, port + flow);
				datagrams[n].number = ++numbers[flow];
			}
			send_batch(fd, messages, n);
		}
		nanosleep(&tick, NULL);
	}
	printf("{\"sent\": %llu}\n", (unsigned long long)sent);
}

/* Note the datagrams that one socket has; how many these were. */
static int receive(unsigned int index, uint32_t name, FILE *log)
{
	struct datagram datagrams[BATCH];
	char control[BATCH][CMSG_SPACE(sizeof(struct timespec))];
	struct iovec parts[BATCH];
	struct mmsghdr messages[BATCH] = {};
	struct flow *flow = &flows[index];
	int count;

	for (int i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){ &datagrams[i], sizeof(datagrams[i]) };
		messages[i].msg_hdr.msg_iov = &parts[i];
		messages[i].msg_hdr.msg_iovlen = 1;
		messages[i].msg_hdr.msg_control = control[i];
		messages[i].msg_hdr.msg_controllen = sizeof(control[i]);
	}
	count = recvmmsg(flow->fd, messages, BATCH, MSG_DONTWAIT, NULL);
	for (int i = 0; i < count; i++) {
		struct cmsghdr *header = CMSG_FIRSTHDR(&messages[i].msg_hdr);
		struct record record = { .flow = name };
		struct timespec stamp;

		if (!header || header->cmsg_type != SCM_TIMESTAMPNS)
			errx(1, "a datagram without a time");
		memcpy(&stamp, CMSG_DATA(header), sizeof(stamp));
		record.received_ns = stamp.tv_sec * 1000000000LL + stamp.tv_nsec;
		if (datagrams[i].number < flow->highest)
			record.flow |= LATE;
		else
			flow->highest = datagrams[i].number;
		flow->received++;
		if (fwrite(&record, sizeof(record), 1, log) != 1)
			err(1, "the log");
	}
	return count;
}

static void check_all(const char *host, unsigned int port, unsigned int count, const char *peer,
		      uint32_t first, const char *path)
{
	struct sockaddr_in from = end(peer, PEER_PORT);
	struct epoll_event ready[BATCH];
	uint64_t received = 0, lost = 0;
	int poll = epoll_create1(EPOLL_CLOEXEC), on = 1, found;
	FILE *log = fopen(path, "wb");

	if (!log || poll < 0)
		err(1, "%s", path);
	printf("{\"cookies\": [");
	for (unsigned int i = 0; i < count; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.u32 = i };
		int fd = udp(end(host, port + first + i));
		uint64_t cookie;
		socklen_t size = sizeof(cookie);

		if (connect(fd, (struct sockaddr *)&from, sizeof(from)) ||
		    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)) ||
		    getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) ||
		    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event))
			err(1, "flow %u", first + i);
		flows[i].fd = fd;
		printf("%s%llu", i ? ", " : "", (unsigned long long)cookie);
	}
	puts("]}\nready");
	fflush(stdout);
	do {
		found = epoll_wait(poll, ready, BATCH, stopping ? 0 : 100);
		for (int i = 0; i < found; i++)
			receive(ready[i].data.u32, first + ready[i].data.u32, log);
	} while (found > 0 || !stopping);
	for (unsigned int i = 0; i < count; i++) {
		received += flows[i].received;
		lost += flows[i].highest - flows[i].received;
	}
	if (fclose(log))
		err(1, "%s", path);
	printf("{\"received\": %llu, \"lost\": %llu}\n", (unsigned long long)received,
	       (unsigned long long)lost);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = stop }; /* without SA_RESTART: a wait ends */

	sigaction(SIGTERM, &action, NULL);
	prctl(PR_SET_TIMERSLACK, 10000);
	if (argc != 8 || atoi(argv[4]) < 1 || atoi(argv[4]) > MOST_FLOWS)
		errx(2, "usage: datagrams send|check HOST FIRST-PORT FLOWS ...");
	if (!strcmp(argv[1], "send"))
		send_all(argv[2], atoi(argv[3]), atoi(argv[4]), atof(argv[5]), atoi(argv[6]),
			 atoi(argv[7]));
	else
		check_all(argv[2], atoi(argv[3]), atoi(argv[4]), argv[5], atoi(argv[6]), argv[7]);
	return EXIT_SUCCESS;
}
