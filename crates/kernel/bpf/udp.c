/* Offload of established UDP sessions, the fast path: at the ingress of devices, a request's PROXY header is
 * stripped and the datagram goes to the backend from the client's address, and a reply is sent back to the balancer.
 *
 * Nothing is decided here. `peername proxy` decides on a session's first datagrams, and once a session is steady it
 * installs a flow: datagrams with its addresses and exactly its header are rewritten as it says. A datagram that
 * matches no flow, or is out of the ordinary (fragments, options, GSO, larger than the path MTU), passes unchanged
 * to the socket of `peername proxy`: the slow path. */

#include "packet.h"

/* TCX_NEXT: on to the next program, then to the stack. */
#define PASS (-1)
/* TCX_DROP. */
#define DROP 2

#define LOOPBACK 1
/* The most that is prepended to replies: a Simple Proxy Protocol header has 38 bytes. */
#define REPLY_HEADER_BYTES 40

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, struct request_key);
	__type(value, struct rewrite);
} requests SEC(".maps");

/* Rewrites of replies, by source and destination of a reply from the backend. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, struct address_pair);
	__type(value, struct rewrite);
} replies SEC(".maps");

/* Roles of local ports. Unrelated datagrams cost one lookup here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOTALS);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

/* Per-CPU working memory: the stack has only 512 bytes. The program never runs twice at a time on one CPU: at
 * ingress it runs with softirqs off. */
struct scratch {
	/* A copy: the entry may be removed, and its memory used for another flow, while the program runs. */
	struct rewrite rewrite;
	__u8 header[MAX_HEADER_BYTES];
	__u8 payload[MAX_PAYLOAD_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline void count_total(__u32 total)
{
	__u64 *counted = bpf_map_lookup_elem(&totals, &total);

	if (counted)
		(*counted)++;
}

static __always_inline void count_rewrite(struct rewrite *rewrite, __u32 bytes)
{
	__sync_fetch_and_add(&rewrite->datagrams, 1);
	__sync_fetch_and_add(&rewrite->bytes, bytes);
	rewrite->last_used = bpf_ktime_get_coarse_ns();
}

/* Loads the payload at `at` into scratch memory; 0 on success. */
static __always_inline int load_payload(struct __sk_buff *skb, __u32 at, struct scratch *scratch, __u32 payload)
{
	return payload && bpf_skb_load_bytes(skb, at, scratch->payload, bounded(payload, MAX_PAYLOAD_BYTES));
}

/* Stores the payload from scratch memory at `at`; 0 on success. */
static __always_inline int store_payload(struct __sk_buff *skb, __u32 at, struct scratch *scratch, __u32 payload)
{
	return payload && bpf_skb_store_bytes(skb, at, scratch->payload, bounded(payload, MAX_PAYLOAD_BYTES),
					      BPF_F_RECOMPUTE_CSUM);
}

static const __u8 V2_SIGNATURE[12] = "\r\n\r\n\0\r\nQUIT\n";

static __always_inline int is_proxy_v2(const __u8 *header)
{
	for (int i = 0; i < 12; i++)
		if (header[i] != V2_SIGNATURE[i])
			return 0;
	return 1;
}

/* Fills a request's key from its PROXY header. Returns the header's length, or -1 without a header of a known format. */
static __always_inline int parse_header(struct __sk_buff *skb, const struct datagram *it, __u8 port,
				       struct scratch *scratch, struct request_key *key)
{
	__u32 at = it->udp_at + sizeof(it->udp), len;
	__u8 *header = scratch->header;

	if (it->payload < 16 || bpf_skb_load_bytes(skb, at, header, 16))
		return -1;
	if (!(port & PORT_PROXY_V2) || !is_proxy_v2(header)) {
		len = 38;
		if (!(port & PORT_SPP) || it->payload < len || bpf_skb_load_bytes(skb, at + 2, key->header_addresses, 36))
			return -1;
		return len;
	}
	key->family = header[13];
	len = 16 + (header[14] << 8 | header[15]);
	if (it->payload < len)
		return -1;
	switch (header[13]) {
	case 0x12: /* UDP over IPv4 */
		if (bpf_skb_load_bytes(skb, at + 16, key->header_addresses, 12))
			return -1;
		return len;
	case 0x22: /* UDP over IPv6 */
		if (bpf_skb_load_bytes(skb, at + 16, key->header_addresses, 36))
			return -1;
		return len;
	}
	return -1;
}

/* Whether a request begins with exactly the flow's header, byte for byte. All offsets are constants: without CAP_PERFMON the
 * verifier refuses one instruction that adds different numbers to a pointer (Spectre). */
static __always_inline int has_flow_header(struct __sk_buff *skb, const struct datagram *it,
				     struct scratch *scratch, const struct rewrite *rewrite)
{
	const __u64 *ours = (const __u64 *)rewrite->header;
	__u64 *its = (__u64 *)scratch->header;
	__u32 len = rewrite->header_len;
	__u64 differing = 0;

	if (len < 16 || len > MAX_HEADER_BYTES)
		return 0;
	/* Zero beyond its end, as the flow's header is. */
	__builtin_memset(its, 0, MAX_HEADER_BYTES);
	if (bpf_skb_load_bytes(skb, it->udp_at + sizeof(it->udp), its, bounded(len, MAX_HEADER_BYTES)))
		return 0;
#pragma unroll
	for (int i = 0; i < MAX_HEADER_BYTES / 8; i++)
		differing |= ours[i] ^ its[i];
	return !differing;
}

/* Copies what stays constant in an entry, except the header. The number of the installation is read first: if a later lookup
 * finds the same number, this copy, and all that was read of the entry in between, belong to that installation. */
static __always_inline void copy_constant(struct rewrite *copy, const struct rewrite *it)
{
	copy->installation = it->installation;
	barrier();
	__builtin_memcpy(copy, it, __builtin_offsetof(struct rewrite, installation));
}

/* Enables the offload of replies, at the first offloaded request. */
static __always_inline void offload_replies(const struct address_pair *request)
{
	struct address_pair reply_addresses;
	struct rewrite *reply;

	__builtin_memcpy(reply_addresses.from, request->to, 16);
	__builtin_memcpy(reply_addresses.to, request->from, 16);
	reply_addresses.from_port = request->to_port;
	reply_addresses.to_port = request->from_port;
	reply = bpf_map_lookup_elem(&replies, &reply_addresses);
	if (reply)
		reply->has_seen_request = 1;
}

static __always_inline int request(struct __sk_buff *skb, struct datagram *it, __u8 port)
{
	struct request_key key = { .addresses = it->addresses };
	__u8 zero_macs[2 * ETH_ALEN] = {};
	struct rewrite *found, *again, *rewrite;
	struct scratch *scratch;
	__u32 zero = 0, at = it->udp_at + sizeof(it->udp), payload;
	int header, partial;

	scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!scratch)
		return PASS;
	rewrite = &scratch->rewrite;
	header = parse_header(skb, it, port, scratch, &key);
	if (header < 0)
		return PASS;
	key.header_len = header;
	found = bpf_map_lookup_elem(&requests, &key);
	if (!found)
		return PASS;
	copy_constant(rewrite, found);
	/* A datagram from another device may be forged, which the stack checks; or that device is a port of a bridge
	 * or bond, and the datagram arrives at the flow's interface later. */
	if (rewrite->interface != skb->ifindex || !has_flow_header(skb, it, scratch, found))
		return PASS;
	again = bpf_map_lookup_elem(&requests, &key);
	if (!again || again->installation != rewrite->installation)
		return PASS;
	payload = it->payload - header;
	if (load_payload(skb, at + header, scratch, payload))
		return PASS;

	/* Point of no return: from here on, the packet is changed, and a failure drops it. */
	partial = is_partial(skb);
	if (store_payload(skb, at, scratch, payload) || bpf_skb_change_tail(skb, at + payload, 0) ||
	    !rewrite_headers(skb, it, rewrite, payload, partial))
		goto failed;
	skb->mark = rewrite->mark;
	/* On loopback the packet already has its route: to this host. From another device it is redirected to loopback,
	 * where the client's source address is not filtered; with MAC addresses of zero, as all packets there. */
	if (skb->ifindex != LOOPBACK && bpf_skb_store_bytes(skb, 0, zero_macs, sizeof(zero_macs), 0))
		goto failed;
	if (!found->datagrams)
		offload_replies(&rewrite->new_addresses);
	count_rewrite(found, payload);
	count_total(TOTAL_REQUESTS);
	return skb->ifindex == LOOPBACK ? PASS : bpf_redirect(LOOPBACK, BPF_F_INGRESS);
failed:
	count_total(TOTAL_FAILED_REQUESTS);
	return DROP;
}

static __always_inline int reply(struct __sk_buff *skb, struct datagram *it)
{
	__u32 zero = 0, at = it->udp_at + sizeof(it->udp), payload = it->payload, header;
	struct rewrite *found, *again, *rewrite;
	struct scratch *scratch;
	int partial;

	scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!scratch)
		return PASS;
	rewrite = &scratch->rewrite;
	found = bpf_map_lookup_elem(&replies, &it->addresses);
	if (!found)
		return PASS;
	copy_constant(rewrite, found);
	header = rewrite->header_len;
	if (header > REPLY_HEADER_BYTES || payload + header >= MAX_PAYLOAD_BYTES)
		return PASS;
	/* User space sends a reply that exceeds the path MTU in fragments. */
	if (!rewrite->has_seen_request || at - ETH_HLEN + header + payload > rewrite->path_mtu)
		return PASS;
	if (header)
		__builtin_memcpy(scratch->header, found->header, REPLY_HEADER_BYTES);
	again = bpf_map_lookup_elem(&replies, &it->addresses);
	if (!again || again->installation != rewrite->installation || load_payload(skb, at, scratch, payload))
		return PASS;

	/* Point of no return: from here on, the packet is changed, and a failure drops it. */
	partial = is_partial(skb);
	if (header &&
	    (bpf_skb_change_tail(skb, at + header + payload, 0) ||
	     bpf_skb_store_bytes(skb, at, scratch->header, bounded(header, MAX_HEADER_BYTES), BPF_F_RECOMPUTE_CSUM) ||
	     store_payload(skb, at + header, scratch, payload)))
		goto failed;
	if (!rewrite_headers(skb, it, rewrite, payload + header, partial))
		goto failed;
	skb->mark = 0;
	count_rewrite(found, payload);
	count_total(TOTAL_REPLIES);
	return rewrite->interface == LOOPBACK ? PASS : bpf_redirect_neigh(rewrite->interface, 0, 0, 0);
failed:
	count_total(TOTAL_FAILED_REPLIES);
	return DROP;
}

SEC("classifier")
int datagrams(struct __sk_buff *skb)
{
	struct datagram it;
	__u32 port;
	__u8 *role;

	if (!parse(skb, &it))
		return PASS;
	port = bpf_ntohs(it.addresses.to_port);
	role = bpf_map_lookup_elem(&ports, &port);
	/* A reply to a client with such a port is taken for a request, and passes to user space. */
	if (role && *role & (PORT_PROXY_V2 | PORT_SPP))
		return request(skb, &it, *role);
	/* Backends answer clients through loopback, where the routes of transparent proxies lead. */
	if (skb->ifindex != LOOPBACK)
		return PASS;
	port = bpf_ntohs(it.addresses.from_port);
	role = bpf_map_lookup_elem(&ports, &port);
	return role && *role & PORT_BACKEND ? reply(skb, &it) : PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
