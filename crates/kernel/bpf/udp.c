/* The data path of established UDP sessions: at the ingress of devices, a request loses its header and goes on
 * to the backend as its client's, and a reply finds its way back to the balancer.
 *
 * Nothing is decided here. `peername proxy` decides on a session's first datagrams, and once a session is
 * steady it leaves word of what was decided: datagrams that come this way with exactly this header become
 * that. Whatever is not found, or is in any way out of the ordinary (fragments, options, segments that travel
 * as one, more than the way out can take), passes untouched to the socket of `peername proxy`. */

#include "packet.h"

/* TCX_NEXT: to whoever is next, then to the stack. */
#define PASS (-1)
/* TCX_DROP. */
#define DROP 2

#define LOOPBACK 1
/* All that is put in front of replies: a Simple Proxy Protocol header has 38 octets. */
#define REPLY_HEADER 40
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, struct request_key);
	__type(value, struct rewrite);
} requests SEC(".maps");

/* By the way a reply comes from the backend. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, struct path);
	__type(value, struct rewrite);
} replies SEC(".maps");

/* Everybody else's datagrams cost one look here. */
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

/* Too much for the stack, which has 512 octets. Nobody else runs this program on the same CPU meanwhile: at ingress, it
 * runs with softirqs off. */
struct scratch {
	/* What is rewritten may be taken back and told anew, for another session, while this runs. */
	struct rewrite rewrite;
	__u8 header[HEADER_ROOM];
	__u8 payload[PAYLOAD_ROOM];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *counted = bpf_map_lookup_elem(&totals, &what);

	if (counted)
		(*counted)++;
}

static __always_inline void note(struct rewrite *rewrite, __u32 octets)
{
	__sync_fetch_and_add(&rewrite->datagrams, 1);
	__sync_fetch_and_add(&rewrite->octets, octets);
	rewrite->used = bpf_ktime_get_coarse_ns();
}

/* Payload there to scratch; 0 if that worked. */
static __always_inline int take(struct __sk_buff *skb, __u32 at, struct scratch *scratch, __u32 payload)
{
	return payload && bpf_skb_load_bytes(skb, at, scratch->payload, within(payload, PAYLOAD_ROOM));
}

/* And back. */
static __always_inline int put(struct __sk_buff *skb, __u32 at, struct scratch *scratch, __u32 payload)
{
	return payload && bpf_skb_store_bytes(skb, at, scratch->payload, within(payload, PAYLOAD_ROOM),
					      BPF_F_RECOMPUTE_CSUM);
}

static const __u8 V2_SIGNATURE[12] = "\r\n\r\n\0\r\nQUIT\n";

static __always_inline int is_v2(const __u8 *header)
{
	for (int i = 0; i < 12; i++)
		if (header[i] != V2_SIGNATURE[i])
			return 0;
	return 1;
}

/* Takes the key of a request from its header; how long that is, or -1 if there is none that is known here. */
static __always_inline int read_header(struct __sk_buff *skb, const struct datagram *it, __u8 port,
				       struct scratch *scratch, struct request_key *key)
{
	__u32 at = it->udp_at + sizeof(it->udp), len;
	__u8 *header = scratch->header;

	if (it->payload < 16 || bpf_skb_load_bytes(skb, at, header, 16))
		return -1;
	if (!(port & PORT_EACH) || !is_v2(header)) {
		len = 38;
		if (!(port & PORT_SPP) || it->payload < len || bpf_skb_load_bytes(skb, at + 2, key->said, 36))
			return -1;
		return len;
	}
	key->family = header[13];
	len = 16 + (header[14] << 8 | header[15]);
	if (it->payload < len)
		return -1;
	switch (header[13]) {
	case 0x12: /* UDP over IPv4 */
		if (bpf_skb_load_bytes(skb, at + 16, key->said, 12))
			return -1;
		return len;
	case 0x22: /* UDP over IPv6 */
		if (bpf_skb_load_bytes(skb, at + 16, key->said, 36))
			return -1;
		return len;
	}
	return -1;
}

/* Whether a request begins with the header that was agreed on, to the last octet. */
static __always_inline int is_agreed(struct __sk_buff *skb, const struct datagram *it,
				     struct scratch *scratch, const struct rewrite *rewrite)
{
	__u32 len = rewrite->header_len;

	if (len < 16 || len > HEADER_ROOM)
		return 0;
	if (bpf_skb_load_bytes(skb, it->udp_at + sizeof(it->udp), scratch->header, within(len, HEADER_ROOM)))
		return 0;
	/* By the eight, the last eight overlapping. */
	for (__u32 i = 0; i < HEADER_ROOM / 8; i++) {
		__u32 at = i * 8 + 8 < len ? i * 8 : len - 8;
		const __u8 *ours, *its;

		if (at > HEADER_ROOM - 8)
			return 0;
		ours = rewrite->header + at;
		its = scratch->header + at;
		for (int j = 0; j < 8; j++)
			if (ours[j] != its[j])
				return 0;
		if (i * 8 + 8 >= len)
			break;
	}
	return 1;
}

/* Copies what does not change of `it`, but for the header. */
static __always_inline void copy(struct rewrite *copy, const struct rewrite *it)
{
	__builtin_memcpy(copy, it, __builtin_offsetof(struct rewrite, header));
}

/* What comes through the kernel is answered through the kernel from now on. */
static __always_inline void open_replies(const struct path *request)
{
	struct path way;
	struct rewrite *reply;

	__builtin_memcpy(way.from, request->to, 16);
	__builtin_memcpy(way.to, request->from, 16);
	way.from_port = request->to_port;
	way.to_port = request->from_port;
	reply = bpf_map_lookup_elem(&replies, &way);
	if (reply)
		reply->is_open = 1;
}

static __always_inline int request(struct __sk_buff *skb, struct datagram *it, __u8 port)
{
	struct request_key key = { .path = it->path };
	__u8 nobody[2 * ETH_ALEN] = {};
	struct rewrite *found, *rewrite;
	struct scratch *scratch;
	__u32 zero = 0, at = it->udp_at + sizeof(it->udp), payload;
	int header, partial;

	scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!scratch)
		return PASS;
	rewrite = &scratch->rewrite;
	header = read_header(skb, it, port, scratch, &key);
	if (header < 0)
		return PASS;
	key.header_len = header;
	found = bpf_map_lookup_elem(&requests, &key);
	if (!found)
		return PASS;
	copy(rewrite, found);
	/* By another device it may be forged, which the stack looks into; or it is on its way to this one (bridges,
	 * bonds). */
	if (rewrite->interface != skb->ifindex || !is_agreed(skb, it, scratch, found))
		return PASS;
	/* The copy is this session's if it still is the one that is found. */
	if (bpf_map_lookup_elem(&requests, &key) != found)
		return PASS;
	payload = it->payload - header;
	if (take(skb, at + header, scratch, payload))
		return PASS;

	/* From here on it is ours. */
	partial = is_partial(skb);
	if (put(skb, at, scratch, payload) || bpf_skb_change_tail(skb, at + payload, 0) ||
	    !readdress(skb, it, rewrite, payload, partial))
		goto failed;
	skb->mark = rewrite->mark;
	/* On loopback it has its route already: to this host. From elsewhere it goes there, where its client is not out
	 * of place; addressed to nobody's device, as all is there. */
	if (skb->ifindex != LOOPBACK && bpf_skb_store_bytes(skb, 0, nobody, sizeof(nobody), 0))
		goto failed;
	if (!found->datagrams)
		open_replies(&rewrite->way);
	note(found, payload);
	count(TOTAL_REQUESTS);
	return skb->ifindex == LOOPBACK ? PASS : bpf_redirect(LOOPBACK, BPF_F_INGRESS);
failed:
	count(TOTAL_FAILED_REQUESTS);
	return DROP;
}

static __always_inline int reply(struct __sk_buff *skb, struct datagram *it)
{
	__u32 zero = 0, at = it->udp_at + sizeof(it->udp), payload = it->payload, header;
	struct rewrite *found, *rewrite;
	struct scratch *scratch;
	int partial;

	scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!scratch)
		return PASS;
	rewrite = &scratch->rewrite;
	found = bpf_map_lookup_elem(&replies, &it->path);
	if (!found)
		return PASS;
	copy(rewrite, found);
	header = rewrite->header_len;
	if (header > REPLY_HEADER || payload + header >= PAYLOAD_ROOM)
		return PASS;
	/* What is too long for the way is sent in fragments by user space. */
	if (!rewrite->is_open || at - ETH_HLEN + header + payload > rewrite->most)
		return PASS;
	if (header)
		__builtin_memcpy(scratch->header, found->header, REPLY_HEADER);
	if (bpf_map_lookup_elem(&replies, &it->path) != found || take(skb, at, scratch, payload))
		return PASS;

	/* From here on it is ours. */
	partial = is_partial(skb);
	if (header &&
	    (bpf_skb_change_tail(skb, at + header + payload, 0) ||
	     bpf_skb_store_bytes(skb, at, scratch->header, within(header, HEADER_ROOM), BPF_F_RECOMPUTE_CSUM) ||
	     put(skb, at + header, scratch, payload)))
		goto failed;
	if (!readdress(skb, it, rewrite, payload + header, partial))
		goto failed;
	skb->mark = 0;
	note(found, payload);
	count(TOTAL_REPLIES);
	return rewrite->interface == LOOPBACK ? PASS : bpf_redirect_neigh(rewrite->interface, 0, 0, 0);
failed:
	count(TOTAL_FAILED_REPLIES);
	return DROP;
}

SEC("classifier")
int datagrams(struct __sk_buff *skb)
{
	struct datagram it;
	__u32 port;
	__u8 *what;

	if (!read(skb, &it))
		return PASS;
	port = bpf_ntohs(it.path.to_port);
	what = bpf_map_lookup_elem(&ports, &port);
	/* A reply to a client whose port is such a one is user space's, too. */
	if (what && *what & (PORT_EACH | PORT_SPP))
		return request(skb, &it, *what);
	/* Backends answer clients by way of loopback, where the routes of transparent proxies lead. */
	if (skb->ifindex != LOOPBACK)
		return PASS;
	port = bpf_ntohs(it.path.from_port);
	what = bpf_map_lookup_elem(&ports, &port);
	return what && *what & PORT_BACKEND ? reply(skb, &it) : PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
