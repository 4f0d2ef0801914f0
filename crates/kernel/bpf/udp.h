/* Map keys and values that the program shares with its loader (src/layout.rs). Fields are in network byte order,
 * as in a packet, unless stated otherwise. */
#pragma once

#include <linux/types.h>

/* Longest PROXY header that is compared. Datagrams with a longer one pass to user space. */
#define MAX_HEADER_BYTES 256

/* Source and destination. Addresses are IPv6, or IPv4-mapped IPv6. */
struct address_pair {
	__u8 from[16];
	__u8 to[16];
	__be16 from_port;
	__be16 to_port;
};

/* Identifies a flow's requests: the addresses between balancer and this host, and those in the PROXY header. */
struct request_key {
	struct address_pair addresses;
	__u8 header_addresses[36];
	/* Bytes, in host byte order. */
	__u16 header_len;
	/* Family and transport byte of the header; 0 for a format without one. */
	__u16 family;
};

/* How a datagram is rewritten. Numbers are in host byte order. */
struct rewrite {
	/* Source and destination of the rewritten datagram. */
	struct address_pair new_addresses;
	/* Checksum deltas (RFC 1071), computed by the loader. Addresses and one length: all that changes in the IPv4
	 * header checksum and in the UDP pseudo-header checksum. */
	__u16 addresses_delta;
	/* The delta of the UDP checksum. */
	__u16 udp_delta;
	/* Bytes stripped from a request, or prepended to a reply. */
	__u16 header_len;
	/* Of a reply: the path MTU, in bytes of the IP packet. */
	__u16 path_mtu;
	/* Ingress interface of requests and egress interface of replies. */
	__u32 interface;
	__u32 mark;
	/* Of a reply: whether a request of this flow was rewritten here. Without one, replies might bypass whatever
	 * changed the requests on their way to this host (NAT, a filter). */
	__u32 has_seen_request;
	/* Number of the installation, by which the program knows an entry again: without CAP_PERFMON the verifier refuses to
	 * compare pointers. */
	__u64 installation;
	/* The header that a request must begin with, or that is prepended to a reply; zero beyond its end. */
	__u8 header[MAX_HEADER_BYTES];
	/* Counters: datagrams, payload bytes, and time of the last one (CLOCK_MONOTONIC_COARSE, nanoseconds). */
	__u64 datagrams;
	__u64 bytes;
	__u64 last_used;
};

_Static_assert(sizeof(struct address_pair) == 36, "layout.rs");
_Static_assert(sizeof(struct request_key) == 76, "layout.rs");
_Static_assert(sizeof(struct rewrite) == 344, "layout.rs");
_Static_assert(__builtin_offsetof(struct rewrite, header) == 64, "layout.rs");
_Static_assert(__builtin_offsetof(struct rewrite, datagrams) == 320, "layout.rs");

/* Roles of a local port: bits. */
#define PORT_PROXY_V2 1 /* balancers send here, a PROXY v2 header in each datagram */
#define PORT_SPP 2  /* balancers send here, a Simple Proxy Protocol header in each datagram */
#define PORT_BACKEND 4 /* a backend receives here */

/* Indices of `totals`, in the order of the rows of src/totals.rs. */
#define TOTAL_REQUESTS 0
#define TOTAL_REPLIES 1
#define TOTAL_FAILED_REQUESTS 2
#define TOTAL_FAILED_REPLIES 3
#define TOTALS 4
