// SPDX-License-Identifier: GPL-2.0-or-later
/* The Toeplitz hash of a frame, as RSS contexts have it: key and hashed fields. */
#include "simnic.h"

/* the hash is linear: what each nibble of the input adds to it */
void sn_rss_digest(struct sn_rss *rss)
{
	unsigned int nibble, value, bit;

	for (nibble = 0; nibble < ARRAY_SIZE(rss->nibble); nibble++) {
		u64 window = 0;

		for (bit = 0; bit < 5; bit++)	/* 40 bits hold any 32 of a nibble */
			window = window << 8 | rss->key[nibble / 2 + bit];
		window <<= nibble % 2 * 4;
		for (value = 0; value < 16; value++) {
			u32 hash = 0;

			for (bit = 0; bit < 4; bit++)
				if (value & (8 >> bit))
					hash ^= (u32)(window >> (8 - bit));
			rss->nibble[nibble][value] = hash;
		}
	}
}

static enum sn_kind sn_kind(const struct sn_key *key)
{
	enum sn_kind kind = key->proto == IPPROTO_TCP ? SN_TCP4 :
			    key->proto == IPPROTO_UDP ? SN_UDP4 : SN_IP4;

	return kind + (key->v6 ? SN_TCP6 : 0);
}

/* Toeplitz of the chosen fields, in the order of Microsoft's RSS */
u32 sn_rss_hash(const struct sn_rss *rss, const struct sn_key *key)
{
	unsigned int bytes = key->v6 ? 16 : 4, length = 0, i;
	u8 fields = rss->fields[sn_kind(key)], input[36];
	u32 hash = 0;

	if (fields & RXH_IP_SRC) {
		memcpy(input, key->src, bytes);
		length += bytes;
	}
	if (fields & RXH_IP_DST) {
		memcpy(input + length, key->dst, bytes);
		length += bytes;
	}
	if (fields & RXH_L4_B_0_1) {
		memcpy(input + length, &key->sport, sizeof(key->sport));
		length += sizeof(key->sport);
	}
	if (fields & RXH_L4_B_2_3) {
		memcpy(input + length, &key->dport, sizeof(key->dport));
		length += sizeof(key->dport);
	}
	for (i = 0; i < length; i++)
		hash ^= rss->nibble[2 * i][input[i] >> 4] ^ rss->nibble[2 * i + 1][input[i] & 15];
	return hash;
}
