// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The rival that cannot be beaten: one ETHTOOL_SRXCLSRLINS or ETHTOOL_SRXCLSRLDEL after another on
 * one socket, with nothing decided, remembered or checked in between but the return code.
 *
 *	rules_ioctl DEVICE insert|delete < RULES
 *
 * A line of RULES is `SRC-IP SRC-PORT DST-IP DST-PORT QUEUE LOCATION`, of a TCP flow over IPv4; a
 * delete reads its location only. An insert at a used location gives that filter another queue.
 * Prints the nanoseconds that all calls together took. See ethtool(8), include/uapi/linux/ethtool.h.
 */
#include <arpa/inet.h>
#include <err.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#define MOST_FILTERS 65536

static struct ethtool_rxnfc rules[MOST_FILTERS];

static int read_rule(struct ethtool_rxnfc *rule, __u32 command)
{
	struct ethtool_tcpip4_spec *is = &rule->fs.h_u.tcp_ip4_spec;
	struct ethtool_tcpip4_spec *mask = &rule->fs.m_u.tcp_ip4_spec;
	unsigned int sport, dport, queue, location;
	char src[16], dst[16];

	if (scanf("%15s %u %15s %u %u %u", src, &sport, dst, &dport, &queue, &location) != 6)
		return 0;
	rule->cmd = command;
	rule->fs.location = location;
	if (command == ETHTOOL_SRXCLSRLDEL)
		return 1;
	rule->fs.flow_type = TCP_V4_FLOW;
	rule->fs.ring_cookie = queue;
	if (inet_pton(AF_INET, src, &is->ip4src) != 1 || inet_pton(AF_INET, dst, &is->ip4dst) != 1)
		errx(2, "%s or %s is no IPv4 address", src, dst);
	is->psrc = htons(sport);
	is->pdst = htons(dport);
	mask->ip4src = mask->ip4dst = 0xffffffff;
	mask->psrc = mask->pdst = 0xffff;
	return 1;
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char **argv)
{
	struct ifreq request = {};
	size_t count = 0;
	long long began;
	__u32 command;
	int fd;

	if (argc != 3 || (strcmp(argv[2], "insert") && strcmp(argv[2], "delete")))
		errx(2, "usage: rules_ioctl DEVICE insert|delete < RULES");
	command = strcmp(argv[2], "delete") ? ETHTOOL_SRXCLSRLINS : ETHTOOL_SRXCLSRLDEL;
	while (count < MOST_FILTERS && read_rule(&rules[count], command))
		count++;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		err(1, "socket");
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", argv[1]);

	began = now_ns();
	for (size_t i = 0; i < count; i++) {
		request.ifr_data = (void *)&rules[i];
		if (ioctl(fd, SIOCETHTOOL, &request))
			err(1, "%s of rule %zu", argv[2], i);
	}
	printf("%lld\n", now_ns() - began);
	return EXIT_SUCCESS;
}
