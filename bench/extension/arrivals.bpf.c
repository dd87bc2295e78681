// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The sink of forwarded frames, at the ingress of an interface: drops each. Who counts how often it
 * runs is the plugin (bench/counted/plugin.c).
 *
 * A classifier (clsact) rather than a socket: what it takes of the CPU is that of a driver which
 * takes back what was sent, and of nothing else.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>

#define TC_ACT_SHOT 2 /* linux/pkt_cls.h */

SEC("tc")
int arrive(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "GPL";
