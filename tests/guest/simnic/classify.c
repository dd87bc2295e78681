// SPDX-License-Identifier: GPL-2.0-or-later
/* What a NIC does with a frame: parse it, look up a filter, hash it, choose a queue. */
#include <linux/if_ether.h>
#include <net/flow_dissector.h>
#include "simnic.h"

/* false: not IP. `offset` is the network header's, from skb->data. */
bool sn_dissect(const struct sk_buff *skb, __be16 proto, int offset, struct sn_key *key)
{
	struct flow_keys flow = {};

	memset(key, 0, sizeof(*key));
	if (!__skb_flow_dissect(NULL, skb, &flow_keys_dissector, &flow, skb->data, proto, offset,
				skb_headlen(skb), FLOW_DISSECTOR_F_STOP_AT_ENCAP))
		return false;
	switch (flow.control.addr_type) {
	case FLOW_DISSECTOR_KEY_IPV4_ADDRS:
		key->src[0] = flow.addrs.v4addrs.src;
		key->dst[0] = flow.addrs.v4addrs.dst;
		break;
	case FLOW_DISSECTOR_KEY_IPV6_ADDRS:
		memcpy(key->src, &flow.addrs.v6addrs.src, sizeof(key->src));
		memcpy(key->dst, &flow.addrs.v6addrs.dst, sizeof(key->dst));
		key->v6 = 1;
		break;
	default:
		return false;
	}
	if (flow.control.flags & FLOW_DIS_IS_FRAGMENT)
		return true;
	key->proto = flow.basic.ip_proto;
	if (sn_key_has_ports(key)) {
		key->sport = flow.ports.src;
		key->dport = flow.ports.dst;
	}
	return true;
}

/*
 * The queue of `port` that `skb` goes to, -1: drop. Under RCU. The hash is 0 for
 * what is not IP. A filter may give an RSS context, and an offset into the
 * queues it chooses (ETHTOOL_RX_FLOW_RSS).
 */
int sn_classify(struct sn_port *port, const struct sk_buff *skb, u32 *hash, bool *l4)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	u32 last = port->queues - 1, queue = 0;
	struct sn_rule *rule = NULL;
	const struct sn_rss *rss;
	struct sn_key key;

	if (!sn_dissect(skb, eth->h_proto, ETH_HLEN, &key))
		return 0;
	if (READ_ONCE(port->table.live))
		rule = sn_table_lookup(&port->table, &key);
	rss = rcu_dereference(port->rss[rule && rule->rss ? rule->context : 0]);
	if (!rss)
		rss = rcu_dereference(port->rss[0]);
	*hash = sn_rss_hash(rss, &key);
	*l4 = sn_key_has_ports(&key);
	if (rule) {
		if (rule->drop)
			return -1;
		queue = READ_ONCE(rule->queue);
		if (!rule->rss)
			return min(queue, last);
	}
	return min(queue + rss->indir[*hash % SN_INDIR], last);
}
