/* A packet that holds one plain datagram: what is in it, and its headers written anew. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "udp.h"

/* Larger payloads, which only loopback can carry in one piece, are for user space. */
#define PAYLOAD_ROOM 16384

struct datagram {
	struct path path;
	__u8 is_v6;
	/* Where the IP header ends. */
	__u32 udp_at;
	struct udphdr udp;
	/* Octets. */
	__u32 payload;
};

static __always_inline void map_v4(__u8 *to, __be32 from)
{
	__builtin_memset(to, 0, 10);
	__builtin_memset(to + 10, 0xff, 2);
	__builtin_memcpy(to + 12, &from, 4);
}

/* Whether this is one whole, plain datagram; what it is. */
static __always_inline int read_v4(struct __sk_buff *skb, struct datagram *it)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	if (ip.protocol != IPPROTO_UDP || ip.ihl != 5 || ip.frag_off & bpf_htons(0x3fff))
		return 0;
	it->udp_at = ETH_HLEN + sizeof(ip);
	if (bpf_skb_load_bytes(skb, it->udp_at, &it->udp, sizeof(it->udp)))
		return 0;
	if (bpf_ntohs(ip.tot_len) != sizeof(ip) + bpf_ntohs(it->udp.len))
		return 0;
	map_v4(it->path.from, ip.saddr);
	map_v4(it->path.to, ip.daddr);
	it->is_v6 = 0;
	return 1;
}

static __always_inline int read_v6(struct __sk_buff *skb, struct datagram *it)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	if (ip.nexthdr != IPPROTO_UDP)
		return 0;
	it->udp_at = ETH_HLEN + sizeof(ip);
	if (bpf_skb_load_bytes(skb, it->udp_at, &it->udp, sizeof(it->udp)))
		return 0;
	if (ip.payload_len != it->udp.len || !it->udp.check)
		return 0;
	__builtin_memcpy(it->path.from, &ip.saddr, 16);
	__builtin_memcpy(it->path.to, &ip.daddr, 16);
	it->is_v6 = 1;
	return 1;
}

static __always_inline int read(struct __sk_buff *skb, struct datagram *it)
{
	int is_plain;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		is_plain = read_v4(skb, it);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		is_plain = read_v6(skb, it);
	else
		return 0;
	if (!is_plain || skb->pkt_type != PACKET_HOST || skb->vlan_present || skb->gso_size)
		return 0;
	it->path.from_port = it->udp.source;
	it->path.to_port = it->udp.dest;
	if (bpf_ntohs(it->udp.len) < sizeof(it->udp))
		return 0;
	it->payload = bpf_ntohs(it->udp.len) - sizeof(it->udp);
	return it->payload < PAYLOAD_ROOM && it->udp_at + bpf_ntohs(it->udp.len) <= skb->len;
}

/* Whether a device is to add the sum of the payload to that of the pseudo header, which is all that stands in
 * the packet (CHECKSUM_PARTIAL). There is no helper that tells; but this is the only state which is neither
 * "checked" nor "the device's sum", and which can't be made "checked". */
static __always_inline int is_partial(struct __sk_buff *skb)
{
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0 || bpf_csum_update(skb, 0) >= 0)
		return 0;
	bpf_csum_level(skb, BPF_CSUM_LEVEL_INC);
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) < 0)
		return 1;
	bpf_csum_level(skb, BPF_CSUM_LEVEL_RESET);
	return 0;
}

/* RFC 1071. */
static __always_inline __u16 sum(__u16 a, __u16 b)
{
	__u32 sum = (__u32)a + b;

	return sum + (sum >> 16);
}

/* RFC 768: no sum stays none, and a sum of 0 is written as its other form. */
static __always_inline __sum16 udp_check(__sum16 check, const struct rewrite *rewrite, int partial)
{
	__u16 new;

	if (!check)
		return 0;
	if (partial)
		return sum(check, rewrite->addresses_delta);
	new = ~sum(~check, rewrite->udp_delta);
	return new ? new : 0xffff;
}

/* Writes the headers of IP and UDP anew, for a payload of so many octets. */
static __always_inline int readdress(struct __sk_buff *skb, struct datagram *it,
				     const struct rewrite *rewrite, __u32 payload, int partial)
{
	const struct path *way = &rewrite->way;

	it->udp.source = way->from_port;
	it->udp.dest = way->to_port;
	it->udp.len = bpf_htons(payload + sizeof(it->udp));
	it->udp.check = udp_check(it->udp.check, rewrite, partial);
	if (it->is_v6) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(&ip.saddr, way->from, 16);
		__builtin_memcpy(&ip.daddr, way->to, 16);
		ip.payload_len = it->udp.len;
		if (bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return 0;
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(&ip.saddr, way->from + 12, 4);
		__builtin_memcpy(&ip.daddr, way->to + 12, 4);
		ip.tot_len = bpf_htons(payload + sizeof(ip) + sizeof(it->udp));
		ip.check = ~sum(~ip.check, rewrite->addresses_delta);
		if (bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return 0;
	}
	return !bpf_skb_store_bytes(skb, it->udp_at, &it->udp, sizeof(it->udp), BPF_F_RECOMPUTE_CSUM);
}

/* `len`, which lies within 1 and `room`, a power of two, in a form that the verifier can see that in. */
static __always_inline __u32 within(__u32 len, __u32 room)
{
	len = (len - 1) & (room - 1);
	barrier_var(len);
	return len + 1;
}
