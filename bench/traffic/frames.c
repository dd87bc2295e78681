// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Frames to be forwarded, from two ports in turn, at a rate: the place of a hardware generator.
 *
 *	frames RATE SECONDS 64|mix DESTINATION PORT MAC SOURCE PORT MAC SOURCE
 *
 * RATE frames a second leave by both PORTs together, to MAC, as UDP from SOURCE to DESTINATION in
 * FLOWS flows a port. `mix`: 64, 594 and 1518 bytes (with the checksum of Ethernet) at 7 : 4 : 1.
 * Each frame says when it was sent. It sleeps until the next one is due, TICK_NS at least; what it
 * could not send for 10 ms is skipped. PACKET_QDISC_BYPASS: a frame that finds the driver's ring full
 * is lost, as on a wire. It wants a real-time priority above that of all NAPI threads: these would
 * run after each frame otherwise (sendmmsg() calls cond_resched()), and set the pace.
 *
 * Prints "sending", and at the end what was sent and what the ring refused, by port, as JSON.
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
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include "../extension/arrivals.h"

#define FLOWS 16
#define BATCH 16
#define MOST_LATE_NS 10000000
#define TICK_NS 20000
#define FIRST_SOURCE_PORT 20000
#define DESTINATION_PORT 9 /* discard */
#define CHECKSUM_BYTES 4

static const int MIX[] = { 64, 64, 594, 64, 64, 594, 64, 1518, 594, 64, 64, 594 };
static const int SMALL[] = { 64 };

struct frame {
	struct ether_header ethernet;
	struct iphdr ip;
	struct udphdr udp;
	struct stamp stamp;
} __attribute__((packed));

struct port {
	int fd;
	struct frame flows[FLOWS];
	uint64_t at, sent, refused;
};

static struct port ports[PORTS];
static char rest[ETH_FRAME_LEN];
static const int *sizes;
static unsigned int kinds;

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

		memcpy(flow->ethernet.ether_dhost, to, ETH_ALEN);
		memcpy(flow->ethernet.ether_shost, to, ETH_ALEN);
		flow->ethernet.ether_type = htons(ETHERTYPE_IP);
		flow->ip = (struct iphdr){
			.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP
		};
		if (inet_pton(AF_INET, source, &flow->ip.saddr) != 1 ||
		    inet_pton(AF_INET, destination, &flow->ip.daddr) != 1)
			errx(2, "%s or %s is no IPv4 address", source, destination);
		flow->udp.source = htons(FIRST_SOURCE_PORT + number * FLOWS + i);
		flow->udp.dest = htons(DESTINATION_PORT);
		flow->stamp = (struct stamp){ STAMP_MAGIC, number, 0 };
	}
}

/* The next `count` frames of a port. */
static void send_some(struct port *port, unsigned int count)
{
	struct frame frames[BATCH];
	struct iovec parts[BATCH][2];
	struct mmsghdr messages[BATCH] = {};
	uint64_t stamp_ns = now_ns();

	for (unsigned int i = 0; i < count; i++, port->at++) {
		int bytes = sizes[port->at % kinds] - CHECKSUM_BYTES;

		frames[i] = port->flows[port->at % FLOWS];
		frames[i].stamp.sent_ns = stamp_ns;
		frames[i].ip.tot_len = htons(bytes - sizeof(struct ether_header));
		frames[i].udp.len = htons(bytes - sizeof(struct ether_header) -
					  sizeof(struct iphdr));
		frames[i].ip.check = checksum(frames[i].ip);
		parts[i][0] = (struct iovec){ &frames[i], sizeof(frames[i]) };
		parts[i][1] = (struct iovec){ rest, bytes - sizeof(frames[i]) };
		messages[i].msg_hdr.msg_iov = parts[i];
		messages[i].msg_hdr.msg_iovlen = 2;
	}
	for (unsigned int done = 0; done < count;) {
		int more = sendmmsg(port->fd, messages + done, count - done, 0);

		if (more < 0 && errno != ENOBUFS && errno != EINTR)
			err(1, "sendmmsg");
		if (more > 0) {
			port->sent += more;
			done += more;
		} else if (errno == ENOBUFS) {
			port->refused++;
			done++;
		}
	}
}

static void sleep_until(uint64_t due_ns)
{
	uint64_t soonest_ns = now_ns() + TICK_NS;
	struct timespec until;

	if (due_ns < soonest_ns)
		due_ns = soonest_ns;
	until = (struct timespec){ due_ns / 1000000000, due_ns % 1000000000 };
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

int main(int argc, char **argv)
{
	uint64_t began, now, end, at = 0, skipped = 0;
	double rate, most_late;

	if (argc != 5 + 3 * PORTS)
		errx(2, "usage: see frames.c");
	sizes = strcmp(argv[3], "mix") ? SMALL : MIX;
	kinds = sizes == MIX ? sizeof(MIX) / sizeof(*MIX) : 1;
	for (int i = 0; i < PORTS; i++)
		open_port(&ports[i], i, argv[5 + 3 * i], argv[6 + 3 * i], argv[7 + 3 * i], argv[4]);
	rate = atof(argv[1]);
	prctl(PR_SET_TIMERSLACK, 1);
	most_late = rate * MOST_LATE_NS / 1e9;
	puts("sending");
	fflush(stdout);
	began = now = now_ns();
	end = began + (uint64_t)(atof(argv[2]) * 1e9);
	for (; now < end; now = now_ns()) {
		uint64_t due = (now - began) * rate / 1e9;

		if (due > at + most_late + PORTS) {
			skipped += due - at - most_late;
			at = due - most_late;
		}
		for (unsigned int n; (n = due - at > BATCH ? BATCH : due - at) > 0; at += n) {
			unsigned int odd = at % PORTS;

			send_some(&ports[odd], (n + 1) / PORTS);
			if (n > 1)
				send_some(&ports[!odd], n / PORTS);
			if (n == BATCH && now_ns() > end)
				break;
		}
		sleep_until(began + (uint64_t)((at + 1) * 1e9 / rate));
	}
	printf("{\"sent\": [%ju, %ju], \"refused\": [%ju, %ju], \"skipped\": %ju, "
	       "\"seconds\": %.9g}\n",
	       (uintmax_t)ports[0].sent, (uintmax_t)ports[1].sent, (uintmax_t)ports[0].refused,
	       (uintmax_t)ports[1].refused, (uintmax_t)skipped, (now - began) / 1e9);
	return EXIT_SUCCESS;
}
