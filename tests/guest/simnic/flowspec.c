// SPDX-License-Identifier: GPL-2.0-or-later
/* ethtool's flow specification, as the key and mask the hardware compares. */
#include <linux/etherdevice.h>
#include "simnic.h"

#define SN_ALL16	cpu_to_be16(0xffff)

static void sn_ports(struct sn_key *key, struct sn_key *mask, __be16 sport, __be16 sport_mask,
		     __be16 dport, __be16 dport_mask)
{
	key->sport = sport;
	mask->sport = sport_mask;
	key->dport = dport;
	mask->dport = dport_mask;
}

static int sn_parse_l4v4(const struct ethtool_rx_flow_spec *fs, struct sn_key *key,
			 struct sn_key *mask)
{
	const struct ethtool_tcpip4_spec *h = &fs->h_u.tcp_ip4_spec, *m = &fs->m_u.tcp_ip4_spec;

	key->src[0] = h->ip4src;
	mask->src[0] = m->ip4src;
	key->dst[0] = h->ip4dst;
	mask->dst[0] = m->ip4dst;
	sn_ports(key, mask, h->psrc, m->psrc, h->pdst, m->pdst);
	return m->tos ? -EINVAL : 0;
}

static int sn_parse_l4v6(const struct ethtool_rx_flow_spec *fs, struct sn_key *key,
			 struct sn_key *mask)
{
	const struct ethtool_tcpip6_spec *h = &fs->h_u.tcp_ip6_spec, *m = &fs->m_u.tcp_ip6_spec;

	memcpy(key->src, h->ip6src, sizeof(key->src));
	memcpy(mask->src, m->ip6src, sizeof(mask->src));
	memcpy(key->dst, h->ip6dst, sizeof(key->dst));
	memcpy(mask->dst, m->ip6dst, sizeof(mask->dst));
	sn_ports(key, mask, h->psrc, m->psrc, h->pdst, m->pdst);
	return m->tclass ? -EINVAL : 0;
}

static int sn_parse_v4(const struct ethtool_rx_flow_spec *fs, struct sn_key *key,
		       struct sn_key *mask)
{
	const struct ethtool_usrip4_spec *h = &fs->h_u.usr_ip4_spec, *m = &fs->m_u.usr_ip4_spec;

	key->src[0] = h->ip4src;
	mask->src[0] = m->ip4src;
	key->dst[0] = h->ip4dst;
	mask->dst[0] = m->ip4dst;
	key->proto = h->proto;
	mask->proto = m->proto;
	return m->tos || m->l4_4_bytes || m->ip_ver || h->ip_ver != ETH_RX_NFC_IP4 ? -EINVAL : 0;
}

static int sn_parse_v6(const struct ethtool_rx_flow_spec *fs, struct sn_key *key,
		       struct sn_key *mask)
{
	const struct ethtool_usrip6_spec *h = &fs->h_u.usr_ip6_spec, *m = &fs->m_u.usr_ip6_spec;

	memcpy(key->src, h->ip6src, sizeof(key->src));
	memcpy(mask->src, m->ip6src, sizeof(mask->src));
	memcpy(key->dst, h->ip6dst, sizeof(key->dst));
	memcpy(mask->dst, m->ip6dst, sizeof(mask->dst));
	key->proto = h->l4_proto;
	mask->proto = m->l4_proto;
	return m->tclass || m->l4_4_bytes ? -EINVAL : 0;
}

static bool sn_exact(const struct sn_key *key, const struct sn_key *mask)
{
	unsigned int i, words = key->v6 ? 4 : 1;

	if (mask->proto != 0xff || mask->sport != SN_ALL16 || mask->dport != SN_ALL16)
		return false;
	for (i = 0; i < words; i++)
		if (~mask->src[i] || ~mask->dst[i])
			return false;
	return true;
}

/* EOPNOTSUPP: no such flow type here; EINVAL: not with this field or mask */
int sn_flowspec_parse(const struct ethtool_rx_flow_spec *fs, struct sn_key *key,
		      struct sn_key *mask)
{
	u32 type = fs->flow_type & ~(FLOW_EXT | FLOW_MAC_EXT | FLOW_RSS);
	int err;

	memset(key, 0, sizeof(*key));
	memset(mask, 0, sizeof(*mask));
	mask->v6 = 0xff;
	switch (type) {
	case TCP_V4_FLOW:
	case UDP_V4_FLOW:
		err = sn_parse_l4v4(fs, key, mask);
		break;
	case TCP_V6_FLOW:
	case UDP_V6_FLOW:
		err = sn_parse_l4v6(fs, key, mask);
		break;
	case IPV4_USER_FLOW:
		err = sn_parse_v4(fs, key, mask);
		break;
	case IPV6_USER_FLOW:
		err = sn_parse_v6(fs, key, mask);
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (err)
		return err;
	if (type == TCP_V4_FLOW || type == TCP_V6_FLOW)
		key->proto = IPPROTO_TCP;
	else if (type == UDP_V4_FLOW || type == UDP_V6_FLOW)
		key->proto = IPPROTO_UDP;
	if (type != IPV4_USER_FLOW && type != IPV6_USER_FLOW)
		mask->proto = 0xff;
	key->v6 = type == TCP_V6_FLOW || type == UDP_V6_FLOW || type == IPV6_USER_FLOW;
	if (key->v6 && !READ_ONCE(sn_v6))
		return -EINVAL;
	if (fs->flow_type & (FLOW_EXT | FLOW_MAC_EXT) &&
	    (fs->m_ext.vlan_etype || fs->m_ext.vlan_tci || fs->m_ext.data[0] ||
	     fs->m_ext.data[1] || !is_zero_ether_addr(fs->m_ext.h_dest)))
		return -EINVAL;
	if (!READ_ONCE(sn_masks) && !sn_exact(key, mask))
		return -EINVAL;
	return 0;
}
