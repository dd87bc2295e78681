// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Frames to be forwarded, from two ports in turn, at a rate: the place of a hardware generator.
 *
 *	frames RATE SECONDS DESTINATION PORT MAC SOURCE PORT MAC SOURCE
 *
 * RATE frames of 64 bytes (with the checksum of Ethernet) a second leave by both PORTs together, to
 * MAC, as UDP from SOURCE to DESTINATION in FLOWS flows a port. It sleeps until the next one is due;
 * what it could not send for 10 ms is skipped. PACKET_QDISC_BYPASS: a frame that
 * finds the driver's ring full is lost, as on a wire. It wants a real-time priority above that of all
 * NAPI threads: these would run after each frame otherwise, and set the pace. Prints "sending".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ether.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#define PORTS 2
#define FLOWS 16
#define MOST_LATE_NS 10000000
#define FIRST_SOURCE_PORT 20000
#define DESTINATION_PORT 9 /* discard */
#define DATA_BYTES 18

struct frame {
	struct ether_header ethernet;
	struct iphdr ip;
	struct udphdr udp;
	uint8_t data[DATA_BYTES];
} __attribute__((packed));

struct port {
	int fd;
	struct frame flows[FLOWS];
	uint64_t at;
};

static struct port ports[PORTS];

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static uint16_t checksum(struct iphdr ip)
{
	uint16_t words[sizeof(ip) / sizeof(uint16_t)];
	uint32_t sum = 0;

	memcpy(words, &ip, sizeof(ip));
	for (unsigned int i = 0; i < sizeof(ip) / sizeof(*words); i++)
		sum += words[i];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static void open_port(struct port *port, unsigned int number, const char *name, const char *mac,
		      const char *source, const char *destination)
{
	struct sockaddr_ll local = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(name) };
	struct ether_addr *to = ether_aton(mac);
	int on = 1;

	port->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (port->fd < 0 || !local.sll_ifindex || !to ||
	    bind(port->fd, (struct sockaddr *)&local, sizeof(local)) ||
	    setsockopt(port->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof(on)))
		err(1, "port %s", name);
	for (int i = 0; i < FLOWS; i++) {
		struct frame *flow = &port->flows[i];
		struct iphdr ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP };

		if (inet_pton(AF_INET, source, &ip.saddr) != 1 ||
		    inet_pton(AF_INET, destination, &ip.daddr) != 1)
			errx(2, "%s or %s is no IPv4 address", source, destination);
		ip.tot_len = htons(sizeof(*flow) - sizeof(flow->ethernet));
		ip.check = checksum(ip);
		memcpy(flow->ethernet.ether_dhost, to, ETH_ALEN);
		memcpy(flow->ethernet.ether_shost, to, ETH_ALEN);
		flow->ethernet.ether_type = htons(ETHERTYPE_IP);
		flow->ip = ip;
		flow->udp.source = htons(FIRST_SOURCE_PORT + number * FLOWS + i);
		flow->udp.dest = htons(DESTINATION_PORT);
		flow->udp.len = htons(sizeof(flow->udp) + DATA_BYTES);
	}
}

/* The next frame of a port. */
static void send_one(struct port *port)
{
	const struct frame *flow = &port->flows[port->at++ % FLOWS];

	if (send(port->fd, flow, sizeof(*flow), 0) < 0 && errno != ENOBUFS && errno != EINTR)
		err(1, "send");
}

static void sleep_until(uint64_t due_ns)
{
	struct timespec until = { due_ns / 1000000000, due_ns % 1000000000 };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

int main(int argc, char **argv)
{
	uint64_t began, now, end, at = 0;
	double rate, most_late;

	if (argc != 4 + 3 * PORTS)
		errx(2, "usage: see frames.c");
	for (int i = 0; i < PORTS; i++)
		open_port(&ports[i], i, argv[4 + 3 * i], argv[5 + 3 * i], argv[6 + 3 * i], argv[3]);
	rate = atof(argv[1]);
	prctl(PR_SET_TIMERSLACK, 1);
	most_late = rate * MOST_LATE_NS / 1e9;
	puts("sending");
	fflush(stdout);
	began = now = now_ns();
	end = began + (uint64_t)(atof(argv[2]) * 1e9);
	for (; now < end; now = now_ns()) {
		uint64_t due = (now - began) * rate / 1e9;

		if (due > at + most_late + PORTS)
			at = due - most_late;
		for (; at < due; at++)
			send_one(&ports[at % PORTS]);
		sleep_until(began + (uint64_t)((at + 1) * 1e9 / rate));
	}
	return EXIT_SUCCESS;
}
