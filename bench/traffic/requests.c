// SPDX-License-Identifier: GPL-2.0-or-later
/* Requests over many connections of a server, at times that do not wait for its answers.
 *
 *   requests tcp|short|udp ADDRESS PORT CONNECTIONS RATE WARM_S WINDOW_S REQUEST [PROLOGUE]
 *
 * RATE requests a second come in a Poisson process over all connections; each takes the one that is
 * free for longest, or waits for one. Its latency counts from the time when it was to be sent. RATE 0: each
 * connection asks again as soon as it is answered, and latency counts from there. `short`: a
 * connection for each request, which the server closes. PROLOGUE is sent once on each connection.
 * REQUEST and PROLOGUE are hexadecimal. An answer is as long as the first one was.
 *
 * Prints "connected"; "measuring" and "measured" around the window; then one line of JSON. Exits
 * with 1 and words on standard error when a connection breaks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 16, LOST_NS = 500000000, QUIET_MS = 100, QUEUE = 1 << 20 };

struct connection {
	int fd;
	bool busy;
	uint32_t got;
	uint64_t intended_ns;
	uint64_t sent_ns;
};

struct bytes {
	uint8_t data[4096];
	size_t size;
};

static struct sockaddr_in server;
static struct bytes request, prologue;
static struct connection *connections;
static int count, epoll, *idle, first_idle, idles;
static bool udp, closes;
static uint32_t answer_bytes;
static uint64_t begin_ns, end_ns, answers, lost;
static uint64_t *took_ns, room;
static uint64_t *waiting, first_waiting, last_waiting;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "unexpected");
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void say(const char *word)
{
	puts(word);
	fflush(stdout);
}

static struct bytes unhex(const char *text)
{
	struct bytes found = { .size = strlen(text) / 2 };

	if (found.size > sizeof(found.data))
		die("request");
	for (size_t i = 0; i < found.size; i++)
		sscanf(text + 2 * i, "%2hhx", &found.data[i]);
	return found;
}

static int opened(bool wait)
{
	int one = 1, fd = socket(AF_INET, udp ? SOCK_DGRAM : SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	if (!udp)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!wait)
		fcntl(fd, F_SETFL, O_NONBLOCK);
	if (connect(fd, (struct sockaddr *)&server, sizeof(server)) && errno != EINPROGRESS)
		die("connect");
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static void put(int fd, const struct bytes *what)
{
	if (send(fd, what->data, what->size, MSG_NOSIGNAL) != (ssize_t)what->size)
		die("send");
}

/* Bytes until it is quiet (`most` 0), or until there are `most`, or until it is closed. */
static uint32_t swallowed(int fd, uint32_t most)
{
	static uint8_t buffer[MOST_BYTES];
	struct pollfd one = { fd, POLLIN, 0 };
	uint32_t all = 0;

	while (!most || all < most) {
		if (poll(&one, 1, all && !most ? QUIET_MS : 2000) <= 0)
			break;
		ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
		if (got <= 0)
			break;
		all += got;
	}
	return all;
}

static void watch(int number, uint32_t events)
{
	struct epoll_event event = { events, { .u32 = number } };

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, connections[number].fd, &event))
		die("epoll_ctl");
}

static void put_idle(int number)
{
	idle[(first_idle + idles++) % count] = number;
}

static int take_idle(void)
{
	int number = idle[first_idle];

	first_idle = (first_idle + 1) % count;
	idles--;
	return number;
}

static void ask(int number, uint64_t intended)
{
	struct connection *to = &connections[number];

	to->busy = true;
	to->got = 0;
	to->intended_ns = intended;
	to->sent_ns = now_ns();
	if (closes) {
		to->fd = opened(false);
		watch(number, EPOLLOUT);
	} else {
		put(to->fd, &request);
	}
}

static void answered(int number, uint64_t now, bool whole)
{
	struct connection *from = &connections[number];

	from->busy = false;
	if (from->intended_ns >= begin_ns && now < end_ns) {
		if (whole) {
			if (answers == room) {
				room = room ? 2 * room : 1 << 16;
				took_ns = realloc(took_ns, room * sizeof(*took_ns));
				if (!took_ns)
					die("memory");
			}
			took_ns[answers] = now - from->intended_ns;
		}
		answers += whole;
		lost += !whole;
	}
	if (first_waiting != last_waiting)
		ask(number, waiting[first_waiting++ % QUEUE]);
	else
		put_idle(number);
}

static void came(int number, uint32_t events)
{
	static uint8_t buffer[MOST_BYTES];
	struct connection *from = &connections[number];

	if (closes && events & EPOLLOUT) {
		struct epoll_event event = { EPOLLIN, { .u32 = number } };

		put(from->fd, &request);
		epoll_ctl(epoll, EPOLL_CTL_MOD, from->fd, &event);
		return;
	}
	ssize_t got = recv(from->fd, buffer, sizeof(buffer), 0);

	if (got < 0 && errno == EAGAIN)
		return;
	if (got < 0 || (!got && !closes) || (!got && from->got < answer_bytes))
		die("recv");
	if (udp ? from->busy : closes ? !got : (from->got += got) >= answer_bytes) {
		if (closes)
			close(from->fd);
		answered(number, now_ns(), true);
	} else if (closes) {
		from->got += got;
	}
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void connect_all(void)
{
	uint32_t greeting = 0;

	for (int i = 0; i < count; i++) {
		put_idle(i);
		if (closes && i)
			continue;
		connections[i].fd = opened(true);
		if (prologue.size) {
			put(connections[i].fd, &prologue);
			greeting = swallowed(connections[i].fd, greeting);
		}
		if (!i) {
			put(connections[i].fd, &request);
			answer_bytes = swallowed(connections[i].fd, 0);
			errno = 0;
			if (!answer_bytes)
				die("no answer");
		}
		if (closes)
			close(connections[i].fd);
		else
			watch(i, EPOLLIN);
	}
}

static void run(double rate, double warm_s, double window_s)
{
	struct epoll_event events[256];
	uint64_t now = now_ns(), due = now;
	bool measuring = false;

	begin_ns = now + (uint64_t)(warm_s * 1e9);
	end_ns = begin_ns + (uint64_t)(window_s * 1e9);
	while ((now = now_ns()) < end_ns) {
		if (!measuring && now >= begin_ns) {
			say("measuring");
			measuring = true;
		}
		while (rate > 0 && due <= now) {
			if (idles)
				ask(take_idle(), due);
			else if (last_waiting - first_waiting < QUEUE)
				waiting[last_waiting++ % QUEUE] = due;
			due += (uint64_t)(-log(1 - drand48()) / rate * 1e9);
		}
		while (rate <= 0 && idles)
			ask(take_idle(), now_ns());
		uint64_t until = measuring || begin_ns > end_ns ? end_ns : begin_ns;

		if (rate > 0 && due < until)
			until = due;
		if (udp && until > now + LOST_NS / 4)
			until = now + LOST_NS / 4;
		struct timespec left = { 0 };

		now = now_ns();
		if (until > now) {
			left.tv_sec = (until - now) / 1000000000;
			left.tv_nsec = (until - now) % 1000000000;
		}
		int ready = epoll_pwait2(epoll, events, 256, &left, NULL);

		for (int i = 0; i < ready; i++)
			came(events[i].data.u32, events[i].events);
		for (int i = 0; udp && i < count; i++)
			if (connections[i].busy && connections[i].sent_ns + LOST_NS < now)
				answered(i, now, false);
	}
	say("measured");
}

int main(int argc, char **argv)
{
	struct rlimit files = { 65536, 65536 };

	if (argc < 9) {
		fputs("usage: see requests.c\n", stderr);
		return 2;
	}
	udp = !strcmp(argv[1], "udp");
	closes = !strcmp(argv[1], "short");
	server.sin_family = AF_INET;
	server.sin_port = htons(atoi(argv[3]));
	if (inet_pton(AF_INET, argv[2], &server.sin_addr) != 1)
		die("address");
	count = atoi(argv[4]);
	request = unhex(argv[8]);
	if (argc > 9)
		prologue = unhex(argv[9]);
	setrlimit(RLIMIT_NOFILE, &files);
	epoll = epoll_create1(0);
	connections = calloc(count, sizeof(*connections));
	idle = calloc(count, sizeof(*idle));
	waiting = calloc(QUEUE, sizeof(*waiting));
	if (count < 1 || epoll < 0 || !connections || !idle || !waiting)
		die("start");
	connect_all();
	say("connected");
	run(atof(argv[5]), atof(argv[6]), atof(argv[7]));
	qsort(took_ns, answers, sizeof(*took_ns), by_size);
	printf("{\"answers\": %ju, \"lost\": %ju, \"seconds\": %.9g, \"unasked\": %ju, "
	       "\"p50_ns\": %ju, \"p99_ns\": %ju}\n",
	       (uintmax_t)answers, (uintmax_t)lost, (end_ns - begin_ns) / 1e9,
	       (uintmax_t)(last_waiting - first_waiting),
	       (uintmax_t)(answers ? took_ns[answers / 2] : 0),
	       (uintmax_t)(answers ? took_ns[answers * 99 / 100] : 0));
	return 0;
}
