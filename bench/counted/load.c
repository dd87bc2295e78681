// SPDX-License-Identifier: GPL-2.0-or-later
/* What runs in the guest while it is counted. It gives the plugin its orders, so that a window has
 * exact edges and no process is started in it. On a real machine they do nothing, and `ask` is the
 * client of the benches on the lab NIC (bench/traffic/requests.py).
 *
 *   load mark
 *   load pingpong CPU CPU ROUNDS [SPINIDLE.KO]
 *   load watch CPU WARM_MS WINDOW_MS WINDOWS SPINIDLE.KO
 *   load ask tcp|short|udp ADDRESS PORT PORTS CONNECTIONS CPUS SERVER_CPUS RATE WARM_MS
 *            WINDOW_MS WINDOWS SPINIDLE.KO TIMES REQUEST PROLOGUE
 *   load receive tcp|udp ADDRESS PORT BYTES
 *
 * `pingpong`: two threads hand a line to each other. `watch`: windows of what others do, with
 * interrupts of the CPUs below this one. `ask`: CONNECTIONS are shared by a thread for
 * each of CPUS (6,7), and go to PORTS ports, from PORT on, in turn. RATE: requests a second of all,
 * at random times (exponential) that do not wait for answers; a request goes out on the connection
 * that is idle longest, or waits for one, and took as long as from when it was due. 0: each
 * connection asks when it is answered. REQUEST is hexadecimal, and sent TIMES times; an answer is
 * as long as the first one; PROLOGUE is sent once on each connection. It says "connected" and asks
 * seldom, until SIGUSR1 comes: then idle CPUs spin, the cache model is on, and the windows are
 * measured. Prints a line of JSON for each window. Times are virtual. SERVER_CPUS: interrupts of
 * the CPUs below this number are counted. CPUS `-`: one thread, on any CPU. SPINIDLE.KO `-`: idle
 * CPUs stay as they are, times are real, and it says "measuring" and "measured" around each window.
 *
 * `short`: a connection for each request, which the server closes. `udp`: a datagram that is lost
 * is not asked for again.
 *
 * `receive`: a server of one thread that answers BYTES with one, and so a datagram that is not an
 * even part of them. A UDP socket is connected to the sender of its first datagram.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* As in plugin.c */
#define ORDER(number) __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x5a5a0000 + " #number)
#define MARK() ORDER(0)
#define MODEL_ON() ORDER(1)
#define MODEL_OFF() ORDER(2)
#define SLICES_EQUAL() ORDER(3)
#define SLICES_OF_QEMU() ORDER(4)

enum { MOST_CLIENTS = 8, MOST_ANSWERS = 1 << 17, SELDOM_US = 50000, QUIET_MS = 100 };
enum { ROOM = 1 << 18 }; /* for a request, in a socket */

struct bytes {
	uint32_t size;
	uint8_t data[4096];
};

struct connection {
	int fd;
	bool connecting;
	uint32_t got;
	uint64_t asked_ns;
};

struct client {
	pthread_t thread;
	int cpu, count, epoll;
	struct connection *connections, **idle; /* a ring of `count` */
	uint32_t freed, taken;			/* put into it, and out */
	uint64_t due_ns;			/* the next request; 0: none was yet */
	struct drand48_data chance;
	uint64_t answers; /* since the start */
	uint32_t took_ns[MOST_ANSWERS];
	uint32_t kept; /* of them, in this window */
};

struct interrupts {
	uint64_t ipis, of_nic;
};

static struct client clients[MOST_CLIENTS];
static struct sockaddr_in server;
static int first_port, ports, opened_so_far;
static struct bytes request, prologue;
static uint32_t answer_bytes, times;
static bool seldom = true, measuring, udp, closes;
static double gap_ns; /* of a client, on average; 0: none */
static int turn __attribute__((aligned(64)));
static bool second_ready __attribute__((aligned(64)));
static int players[2], rounds;
static uint64_t played_ns;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

static void spin_idle(const char *module)
{
	int fd = open(module, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
		die(module);
	close(fd);
}

static void halt_idle(void)
{
	if (syscall(SYS_delete_module, "spinidle", O_NONBLOCK))
		die("spinidle");
}

static void begin(const char *module)
{
	SLICES_EQUAL();
	if (module)
		spin_idle(module);
	MODEL_ON();
}

static void end(const char *module)
{
	MODEL_OFF();
	if (module)
		halt_idle();
	SLICES_OF_QEMU();
}

static void *play(void *data)
{
	int me = data == &players[1];

	run_on(players[me]);
	if (me)
		__atomic_store_n(&second_ready, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&second_ready, __ATOMIC_ACQUIRE))
		__builtin_ia32_pause();
	uint64_t began = now_ns();

	if (!me)
		MARK();
	for (int i = 0; i < rounds; i++) {
		while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != me)
			__builtin_ia32_pause(); /* as locks do */
		__atomic_store_n(&turn, !me, __ATOMIC_RELEASE);
	}
	while (!me && __atomic_load_n(&turn, __ATOMIC_ACQUIRE))
		__builtin_ia32_pause();
	if (!me) {
		MARK();
		played_ns = now_ns() - began;
	}
	return NULL;
}

static void pingpong(char **words, const char *module)
{
	pthread_t threads[2];

	players[0] = atoi(words[0]);
	players[1] = atoi(words[1]);
	rounds = atoi(words[2]);
	begin(module);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, play, &players[i]))
			die("pthread_create");
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	end(module);
	printf("{\"ns\": %ju}\n", (uintmax_t)played_ns);
}

/* RES and CAL, and the NIC's own, of the first `cpus`. */
static struct interrupts interrupts(int cpus)
{
	static char text[1 << 16];
	struct interrupts found = { 0 };
	int fd = open("/proc/interrupts", O_RDONLY | O_CLOEXEC);
	ssize_t size = 0, got;

	while ((got = read(fd, text + size, sizeof(text) - 1 - size)) > 0)
		size += got;
	close(fd);
	text[size] = '\0';
	for (char *rest, *line = strtok_r(text, "\n", &rest); line;
	     line = strtok_r(NULL, "\n", &rest)) {
		bool ipi = strstr(line, "RES:") || strstr(line, "CAL:");
		char *at = strchr(line, ':');

		if (!at || (!ipi && !strstr(line, "sim0-")))
			continue;
		at++;
		for (int cpu = 0; cpu < cpus; cpu++)
			*(ipi ? &found.ipis : &found.of_nic) += strtoull(at, &at, 10);
	}
	return found;
}

static void put(int fd, const struct bytes *what, uint32_t left)
{
	for (; left--;)
		if (send(fd, what->data, what->size,
			 MSG_NOSIGNAL | (left && !udp ? MSG_MORE : 0)) != (ssize_t)what->size)
			die("send");
}

/* The bytes that come until it is quiet. */
static uint32_t heard(int fd)
{
	struct timeval quiet = { 0, QUIET_MS * 1000 }, forever = { 0 };
	uint8_t buffer[4096];
	ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
	uint32_t all = 0;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &quiet, sizeof(quiet));
	for (; got > 0; got = recv(fd, buffer, sizeof(buffer), 0))
		all += got;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof(forever));
	return all;
}

/* `how`: SOCK_NONBLOCK, or 0. */
static int opened(int how)
{
	int one = 1, room = ROOM;
	int fd = socket(AF_INET, (udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | how, 0);

	if (fd < 0 ||
	    (connect(fd, (struct sockaddr *)&server, sizeof(server)) && errno != EINPROGRESS))
		die("connect");
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	if (!udp)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static int greeted(void)
{
	server.sin_port = htons(first_port + opened_so_far++ % ports);
	int fd = opened(0);

	if (prologue.size) {
		put(fd, &prologue, 1);
		heard(fd);
	}
	if (!answer_bytes) {
		put(fd, &request, times);
		answer_bytes = heard(fd);
	}
	return fd;
}

static void watch(const struct client *client, struct connection *each, int how, uint32_t events)
{
	struct epoll_event event = { events, { .ptr = each } };

	if (epoll_ctl(client->epoll, how, each->fd, &event))
		die("epoll_ctl");
}

static void ask(struct client *client, uint64_t due_ns)
{
	struct connection *to = client->idle[client->taken++ % client->count];

	to->got = 0;
	to->asked_ns = due_ns;
	to->connecting = closes;
	if (closes) {
		to->fd = opened(SOCK_NONBLOCK);
		watch(client, to, EPOLL_CTL_ADD, EPOLLOUT);
	} else {
		put(to->fd, &request, times);
	}
}

/* What is due, as far as there are connections; how long nothing will be, NULL: until an answer. */
static struct timespec *ask_due(struct client *client)
{
	static __thread struct timespec pause;
	bool paced = gap_ns > 0 && !__atomic_load_n(&seldom, __ATOMIC_RELAXED);
	double chance;

	while (client->taken != client->freed) {
		uint64_t now = now_ns();

		if (!paced) {
			ask(client, now);
			continue;
		}
		if (!client->due_ns)
			client->due_ns = now;
		if (client->due_ns > now) {
			pause.tv_sec = (client->due_ns - now) / 1000000000;
			pause.tv_nsec = (client->due_ns - now) % 1000000000;
			return &pause;
		}
		ask(client, client->due_ns);
		drand48_r(&client->chance, &chance);
		client->due_ns += -log(1 - chance) * gap_ns;
	}
	return NULL;
}

static void came(struct client *client, struct connection *from)
{
	static __thread uint8_t buffer[1 << 16];

	if (from->connecting) {
		from->connecting = false;
		put(from->fd, &request, times);
		watch(client, from, EPOLL_CTL_MOD, EPOLLIN);
		return;
	}
	ssize_t got = recv(from->fd, buffer, sizeof(buffer), MSG_DONTWAIT);

	if (got < 0 ? errno != EAGAIN : !got && (!closes || from->got < answer_bytes))
		die("recv");
	from->got += got > 0 ? got : 0;
	if (from->got < answer_bytes || (closes && got))
		return;
	if (closes)
		close(from->fd);
	__atomic_store_n(&client->answers, client->answers + 1, __ATOMIC_RELAXED);
	uint32_t kept = __atomic_load_n(&client->kept, __ATOMIC_RELAXED);

	if (__atomic_load_n(&measuring, __ATOMIC_RELAXED) && kept < MOST_ANSWERS) {
		client->took_ns[kept] = now_ns() - from->asked_ns;
		__atomic_store_n(&client->kept, kept + 1, __ATOMIC_RELAXED);
	}
	client->idle[client->freed++ % client->count] = from;
	ask_due(client);
}

static void *serve_connections(void *data)
{
	struct client *client = data;
	struct epoll_event events[64];

	if (client->cpu >= 0)
		run_on(client->cpu);
	prctl(PR_SET_TIMERSLACK, 1); /* ns */
	srand48_r(now_ns(), &client->chance);
	for (;;) {
		struct timespec *pause = ask_due(client);
		int ready = epoll_pwait2(client->epoll, events, 64, pause, NULL);

		for (int i = 0; i < ready; i++)
			came(client, events[i].data.ptr);
		if (__atomic_load_n(&seldom, __ATOMIC_RELAXED))
			usleep(SELDOM_US);
	}
	return NULL;
}

static uint64_t answers(int count)
{
	uint64_t all = 0;

	for (int i = 0; i < count; i++)
		all += __atomic_load_n(&clients[i].answers, __ATOMIC_RELAXED);
	return all;
}

static void say(const char *word)
{
	puts(word);
	fflush(stdout);
}

/* `says`: when it begins, and when it is over. */
static void window(int count, int server_cpus, unsigned int window_ms, bool says)
{
	static uint32_t took_ns[MOST_CLIENTS * MOST_ANSWERS];
	struct interrupts before = interrupts(server_cpus), after;
	uint64_t asked, began;
	uint32_t kept = 0;

	for (int i = 0; i < count; i++)
		__atomic_store_n(&clients[i].kept, 0, __ATOMIC_RELAXED);
	if (says)
		say("measuring");
	__atomic_store_n(&measuring, true, __ATOMIC_RELAXED);
	began = now_ns();
	asked = answers(count);
	MARK();
	usleep(window_ms * 1000);
	MARK();
	asked = answers(count) - asked;
	began = now_ns() - began;
	__atomic_store_n(&measuring, false, __ATOMIC_RELAXED);
	if (says)
		say("measured");
	after = interrupts(server_cpus);
	for (int i = 0; i < count; i++) {
		uint32_t of = __atomic_load_n(&clients[i].kept, __ATOMIC_RELAXED);

		memcpy(took_ns + kept, clients[i].took_ns, of * sizeof(*took_ns));
		kept += of;
	}
	printf("{\"requests\": %ju, \"ns\": %ju, \"ipis\": %ju, \"interrupts\": %ju, "
	       "\"took_ns\": [",
	       (uintmax_t)asked, (uintmax_t)began, (uintmax_t)(after.ipis - before.ipis),
	       (uintmax_t)(after.of_nic - before.of_nic));
	for (uint32_t i = 0; i < kept; i++)
		printf("%s%u", i ? ", " : "", took_ns[i]);
	say("]}");
}

static int start_clients(char *of_cpus, int connections)
{
	int count = 0;

	for (char *rest, *cpu = strtok_r(of_cpus, ",", &rest); cpu && count < MOST_CLIENTS;
	     cpu = strtok_r(NULL, ",", &rest))
		clients[count++].cpu = strcmp(cpu, "-") ? atoi(cpu) : -1;
	for (int i = 0; i < count; i++) {
		struct client *client = &clients[i];

		client->count = connections / count;
		client->epoll = epoll_create1(EPOLL_CLOEXEC);
		client->connections = calloc(client->count, sizeof(*client->connections));
		client->idle = calloc(client->count, sizeof(*client->idle));
		if (client->epoll < 0 || !client->connections || !client->idle)
			die("start");
		for (int j = 0; j < client->count; j++) {
			struct connection *each = &client->connections[j];

			each->fd = greeted();
			if (closes)
				close(each->fd);
			else
				watch(client, each, EPOLL_CTL_ADD, EPOLLIN);
			client->idle[client->freed++] = each;
		}
		if (pthread_create(&client->thread, NULL, serve_connections, client))
			die("pthread_create");
	}
	return count;
}

static struct bytes unhex(const char *text)
{
	struct bytes found = { 0 };

	for (; text[0] && text[1] && found.size < sizeof(found.data); text += 2)
		sscanf(text, "%2hhx", &found.data[found.size++]);
	return found;
}

/* TCP or UDP, ADDRESS and PORT. */
static void find_server(char **words)
{
	udp = !strcmp(words[0], "udp");
	first_port = atoi(words[2]);
	server.sin_family = AF_INET;
	server.sin_port = htons(first_port);
	if (inet_pton(AF_INET, words[1], &server.sin_addr) != 1)
		die(words[1]);
}

/* `fd`, or the server's port by default, is watched. */
static int received(int epoll, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int one = 1;

	if (fd < 0) {
		fd = socket(AF_INET, udp ? SOCK_DGRAM : SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, (struct sockaddr *)&server, sizeof(server)) ||
		    (!udp && listen(fd, 64)))
			die("listen");
	}
	event.data.fd = fd;
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		die("epoll_ctl");
	return fd;
}

/* The socket that listens from now on: a UDP socket that did becomes the connection. */
static int accepted(int epoll, int listener)
{
	struct sockaddr_in from;
	socklen_t size = sizeof(from);

	if (!udp) {
		received(epoll, accept(listener, NULL, NULL));
		return listener;
	}
	if (recvfrom(listener, NULL, 0, MSG_PEEK, (struct sockaddr *)&from, &size) < 0 ||
	    connect(listener, (struct sockaddr *)&from, size))
		die("accept");
	return received(epoll, -1);
}

static void receive(uint32_t bytes)
{
	static uint8_t buffer[1 << 17]; /* as iperf3's */
	static uint32_t come[1 << 10];	/* by descriptor */
	int epoll = epoll_create1(0), listener = received(epoll, -1);
	struct epoll_event events[64];

	for (;;) {
		for (int i = epoll_wait(epoll, events, 64, -1) - 1; i >= 0; i--) {
			int fd = events[i].data.fd;
			ssize_t got = 1;

			if (fd == listener)
				listener = accepted(epoll, fd);
			else if ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0)
				come[fd] = udp && bytes % got ? bytes : come[fd] + got;
			for (; come[fd] >= bytes; come[fd] -= bytes)
				send(fd, "", 1, MSG_NOSIGNAL);
			if (got > 0)
				continue;
			come[fd] = 0;
			close(fd);
		}
	}
}

static void measure(char **words)
{
	const char *module = strcmp(words[11], "-") ? words[11] : NULL;
	int server_cpus = atoi(words[6]), count, signal;
	sigset_t go;

	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &go, NULL);
	find_server(words);
	closes = !strcmp(words[0], "short");
	ports = atoi(words[3]);
	times = atoi(words[12]);
	request = unhex(words[13]);
	prologue = unhex(words[14]);
	count = start_clients(words[5], atoi(words[4]));
	if (atof(words[7]) > 0)
		gap_ns = count * 1e9 / atof(words[7]);
	if (clients[count - 1].cpu >= 0)
		run_on(clients[count - 1].cpu);
	say("connected");
	sigwait(&go, &signal);
	begin(module);
	__atomic_store_n(&seldom, false, __ATOMIC_RELAXED);
	usleep(atoi(words[8]) * 1000);
	for (int i = 0; i < atoi(words[10]); i++)
		window(count, server_cpus, atoi(words[9]), !module);
	__atomic_store_n(&seldom, true, __ATOMIC_RELAXED);
	end(module);
}

static void watch_others(char **words)
{
	run_on(atoi(words[0]));
	begin(words[4]);
	usleep(atoi(words[1]) * 1000);
	for (int i = 0; i < atoi(words[3]); i++)
		window(0, atoi(words[0]), atoi(words[2]), false);
	end(words[4]);
}

int main(int argc, char **argv)
{
	mlockall(MCL_CURRENT);
	if (argc == 2 && !strcmp(argv[1], "mark"))
		MARK();
	else if ((argc == 5 || argc == 6) && !strcmp(argv[1], "pingpong"))
		pingpong(argv + 2, argc == 6 ? argv[5] : NULL);
	else if (argc == 7 && !strcmp(argv[1], "watch"))
		watch_others(argv + 2);
	else if (argc == 17 && !strcmp(argv[1], "ask"))
		measure(argv + 2);
	else if (argc == 6 && !strcmp(argv[1], "receive")) {
		find_server(argv + 2);
		receive(atoi(argv[5]));
	} else
		return 2;
	fflush(stdout);
	_exit(0);
}
