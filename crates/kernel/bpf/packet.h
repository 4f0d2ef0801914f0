/* Parsing a packet that holds one plain UDP datagram, and rewriting its headers. */
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

/* Larger payloads, which only loopback carries unfragmented, pass to user space. */
#define MAX_PAYLOAD_BYTES 16384

struct datagram {
	struct address_pair addresses;
	__u8 is_v6;
	/* Offset of the UDP header. */
	__u32 udp_at;
	struct udphdr udp;
	/* Length of the payload, in bytes. */
	__u32 payload;
};

static __always_inline void map_v4(__u8 *to, __be32 from)
{
	__builtin_memset(to, 0, 10);
	__builtin_memset(to + 10, 0xff, 2);
	__builtin_memcpy(to + 12, &from, 4);
}

/* Parses an IPv4 datagram without options and fragments; 0 for anything else. */
static __always_inline int parse_v4(struct __sk_buff *skb, struct datagram *it)
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
	map_v4(it->addresses.from, ip.saddr);
	map_v4(it->addresses.to, ip.daddr);
	it->is_v6 = 0;
	return 1;
}

/* Parses an IPv6 datagram without extension headers; 0 for anything else, or if there is no checksum. */
static __always_inline int parse_v6(struct __sk_buff *skb, struct datagram *it)
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
	__builtin_memcpy(it->addresses.from, &ip.saddr, 16);
	__builtin_memcpy(it->addresses.to, &ip.daddr, 16);
	it->is_v6 = 1;
	return 1;
}

/* Parses a datagram for this host that is neither VLAN-tagged nor a GSO packet; 0 for anything else. */
static __always_inline int parse(struct __sk_buff *skb, struct datagram *it)
{
	int is_plain;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		is_plain = parse_v4(skb, it);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		is_plain = parse_v6(skb, it);
	else
		return 0;
	if (!is_plain || skb->pkt_type != PACKET_HOST || skb->vlan_present || skb->gso_size)
		return 0;
	it->addresses.from_port = it->udp.source;
	it->addresses.to_port = it->udp.dest;
	if (bpf_ntohs(it->udp.len) < sizeof(it->udp))
		return 0;
	it->payload = bpf_ntohs(it->udp.len) - sizeof(it->udp);
	return it->payload < MAX_PAYLOAD_BYTES && it->udp_at + bpf_ntohs(it->udp.len) <= skb->len;
}

/* Whether the checksum is CHECKSUM_PARTIAL: the packet holds that of the pseudo header, and the device adds the
 * payload. No helper reports it; but this is the only state that is neither CHECKSUM_UNNECESSARY nor
 * CHECKSUM_COMPLETE and cannot be made CHECKSUM_UNNECESSARY. */
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

/* Adds one's complement sums (RFC 1071). */
static __always_inline __u16 add_sums(__u16 a, __u16 b)
{
	__u32 sum = (__u32)a + b;

	return sum + (sum >> 16);
}

/* Updates the UDP checksum. RFC 768: an absent checksum (0) stays absent, and a computed 0 is sent as 0xffff. */
static __always_inline __sum16 udp_check(__sum16 check, const struct rewrite *rewrite, int partial)
{
	__u16 new;

	if (!check)
		return 0;
	if (partial)
		return add_sums(check, rewrite->addresses_delta);
	new = ~add_sums(~check, rewrite->udp_delta);
	return new ? new : 0xffff;
}

/* Rewrites the IP and UDP headers for `payload` bytes. */
static __always_inline int rewrite_headers(struct __sk_buff *skb, struct datagram *it,
				     const struct rewrite *rewrite, __u32 payload, int partial)
{
	const struct address_pair *to = &rewrite->new_addresses;

	it->udp.source = to->from_port;
	it->udp.dest = to->to_port;
	it->udp.len = bpf_htons(payload + sizeof(it->udp));
	it->udp.check = udp_check(it->udp.check, rewrite, partial);
	if (it->is_v6) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(&ip.saddr, to->from, 16);
		__builtin_memcpy(&ip.daddr, to->to, 16);
		ip.payload_len = it->udp.len;
		if (bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return 0;
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(&ip.saddr, to->from + 12, 4);
		__builtin_memcpy(&ip.daddr, to->to + 12, 4);
		ip.tot_len = bpf_htons(payload + sizeof(ip) + sizeof(it->udp));
		ip.check = ~add_sums(~ip.check, rewrite->addresses_delta);
		if (bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return 0;
	}
	return !bpf_skb_store_bytes(skb, it->udp_at, &it->udp, sizeof(it->udp), BPF_F_RECOMPUTE_CSUM);
}

/* Bounds `len` to 1..=`room`, a power of two, in a form that the verifier can follow. */
static __always_inline __u32 bounded(__u32 len, __u32 room)
{
	len = (len - 1) & (room - 1);
	barrier_var(len);
	return len + 1;
}
