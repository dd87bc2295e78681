// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Messages of equal size over TCP connections, by one thread that waits in epoll(7).
 *
 *	messages serve ADDRESS PORT BYTES answer|copy|discard WORK_NS [prefer]
 *	messages send ADDRESS PORT BYTES CONNECTIONS BYTES_PER_S
 *
 * `serve` is woken for whole messages (SO_RCVLOWAT). It answers each with the same bytes, or copies it
 * to user space, or discards it there (MSG_TRUNC, tcp(7)), which is what a NIC that places data leaves
 * to do. It works WORK_NS for each. `prefer`: its epoll prefers busy polling (EPIOCSPARAMS, 6.9),
 * so that the kernel suspends interrupts where the queue allows it. `send` offers so many bytes a
 * second, message by message, over all connections in turn.
 *
 * Prints "ready", and on SIGTERM the messages as JSON.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG 4096
#define EVENTS 64
#define MOST_BYTES (1 << 20)
#define MOST_CONNECTIONS 1024
#define MOST_LATE_NS 10000000
#define FULL_NS 100000 /* pause when no socket takes more */

#ifndef EPIOCSPARAMS /* linux/eventpoll.h, 6.9 (18e2bf0edf4d) */
struct epoll_params {
	uint32_t busy_poll_usecs;
	uint16_t busy_poll_budget;
	uint8_t prefer_busy_poll;
	uint8_t pad;
};
#define EPIOCSPARAMS _IOW(0x8A, 0x01, struct epoll_params)
#endif

static char buffer[MOST_BYTES];
static volatile sig_atomic_t stopping;
static uint64_t messages;

static void stop(int signum)
{
	(void)signum;
	stopping = 1;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static struct sockaddr_in end(const char *address, const char *port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	if (inet_pton(AF_INET, address, &found.sin_addr) != 1)
		errx(2, "%s is no IPv4 address", address);
	return found;
}

static void watch(int epoll, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		err(1, "epoll_ctl");
}

static void welcome(int epoll, int listener, int bytes)
{
	int on = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0)
		return;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)))
		err(1, "SO_RCVLOWAT");
	watch(epoll, fd);
}

static void work(uint64_t ns)
{
	uint64_t until = now_ns() + ns;

	while (ns && now_ns() < until)
		;
}

/* One message of a connection; false once there is no whole one. */
static bool take(int fd, int bytes, bool answers, int flags)
{
	ssize_t got = recv(fd, buffer, bytes, flags);

	if (got <= 0) {
		if (!got || (errno != EAGAIN && errno != EINTR))
			close(fd);
		return false;
	}
	messages += got == bytes;
	if (answers && send(fd, buffer, got, MSG_NOSIGNAL) < 0)
		close(fd);
	return got == bytes;
}

static void serve(struct sockaddr_in local, int bytes, const char *what, uint64_t work_ns,
		  bool prefer)
{
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
	struct epoll_params preferred = { .busy_poll_budget = 64, .prefer_busy_poll = 1 };
	int flags = strcmp(what, "discard") ? 0 : MSG_TRUNC, epoll = epoll_create1(EPOLL_CLOEXEC);
	bool answers = !strcmp(what, "answer");
	struct epoll_event ready[EVENTS];

	if (listener < 0 || epoll < 0 ||
	    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(listener, (struct sockaddr *)&local, sizeof(local)) || listen(listener, BACKLOG))
		err(1, "listen");
	watch(epoll, listener);
	if (prefer && ioctl(epoll, EPIOCSPARAMS, &preferred))
		err(1, "EPIOCSPARAMS");
	puts("ready");
	fflush(stdout);
	while (!stopping) {
		int count = epoll_wait(epoll, ready, EVENTS, -1);

		for (int i = 0; i < count; i++) {
			if (ready[i].data.fd == listener)
				welcome(epoll, listener, bytes);
			else if (take(ready[i].data.fd, bytes, answers, flags))
				work(work_ns);
		}
	}
}

/* All of a message, or nothing: the rest of one that was begun is sent before anything else. */
static bool put(int fd, int bytes, int *left)
{
	ssize_t sent = send(fd, buffer, *left ? *left : bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent < 0 && errno != EAGAIN && errno != EINTR)
		err(1, "send");
	if (sent <= 0)
		return false;
	*left = (*left ? *left : bytes) - sent;
	return !*left;
}

static void offer(struct sockaddr_in to, int bytes, int count, double rate)
{
	static int fds[MOST_CONNECTIONS], left[MOST_CONNECTIONS];
	uint64_t began, at = 0, most_late = rate / bytes * MOST_LATE_NS / 1e9 + 1;
	int on = 1, full;

	for (int i = 0; i < count; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fds[i] < 0 || connect(fds[i], (struct sockaddr *)&to, sizeof(to)))
			err(1, "connect");
		setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	}
	puts("ready");
	fflush(stdout);
	began = now_ns();
	while (!stopping) {
		uint64_t due = (now_ns() - began) * rate / bytes / 1e9;
		struct timespec until;
		uint64_t next_ns;

		if (due > at + most_late)
			at = due - most_late;
		for (full = 0; at < due && full < count && !stopping; at++) {
			bool whole = put(fds[at % count], bytes, &left[at % count]);

			messages += whole;
			full = whole ? 0 : full + 1;
		}
		next_ns = began + (at + 1) * 1e9 * bytes / rate;
		if (full == count)
			next_ns = now_ns() + FULL_NS;
		until = (struct timespec){ next_ns / 1000000000, next_ns % 1000000000 };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	}
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = stop }; /* without SA_RESTART: a wait ends */
	bool prefer = argc == 8 && !strcmp(argv[7], "prefer");

	sigaction(SIGTERM, &action, NULL);
	prctl(PR_SET_TIMERSLACK, 1);
	if (argc != 7 && !prefer)
		errx(2, "usage: see messages.c");
	if (atoi(argv[4]) < 1 || atoi(argv[4]) > MOST_BYTES)
		errx(2, "a message has 1 to %d bytes", MOST_BYTES);
	if (!strcmp(argv[1], "serve"))
		serve(end(argv[2], argv[3]), atoi(argv[4]), argv[5], atoll(argv[6]), prefer);
	else if (atoi(argv[5]) < 1 || atoi(argv[5]) > MOST_CONNECTIONS)
		errx(2, "1 to %d connections", MOST_CONNECTIONS);
	else
		offer(end(argv[2], argv[3]), atoi(argv[4]), atoi(argv[5]), atof(argv[6]));
	printf("{\"messages\": %ju}\n", (uintmax_t)messages);
	return EXIT_SUCCESS;
}
