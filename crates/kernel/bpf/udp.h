/* What the program and its loader (src/layout.rs) both know: the shapes of keys and values. All fields are as
 * they stand in a packet, in network byte order, unless said otherwise. */
#pragma once

#include <linux/types.h>

/* Longest PROXY header that is compared. User space deals with longer ones. */
#define HEADER_ROOM 256

/* Addresses are IPv6, or IPv4 mapped into it. */
struct path {
	__u8 from[16];
	__u8 to[16];
	__be16 from_port;
	__be16 to_port;
};

/* A request of a client: the way it comes from the balancer, and the addresses and ports in its header. */
struct request_key {
	struct path path;
	__u8 said[36];
	/* Octets, in the host's byte order. */
	__u16 header_len;
	/* As in the header; 0 where that has none. */
	__u16 family;
};

/* What becomes of a datagram. Numbers are in the host's byte order. */
struct rewrite {
	/* The way it goes on. */
	struct path way;
	/* What is added to sums (RFC 1071), known beforehand: to that of addresses and one length, which is all that
	 * changes in the IPv4 header, and in UDP's pseudo header; ... */
	__u16 addresses_delta;
	/* ... and to UDP's own. */
	__u16 udp_delta;
	/* Octets taken off a request, or put in front of a reply. */
	__u16 header_len;
	/* Of a reply: the largest IP packet that goes all the way. */
	__u16 most;
	/* The device that requests come in by and replies leave by. */
	__u32 interface;
	__u32 mark;
	/* Of a reply: whether a request has gone this way. Else replies might not be seen by whoever changed their
	 * requests on their way to us. */
	__u32 is_open;
	/* What must stand in front of a request, or is put in front of a reply; zero beyond its end. */
	__u8 header[HEADER_ROOM];
	/* How often, payload octets, and when last: CLOCK_MONOTONIC_COARSE, nanoseconds. */
	__u64 datagrams;
	__u64 octets;
	__u64 used;
};

_Static_assert(sizeof(struct path) == 36, "layout.rs");
_Static_assert(sizeof(struct request_key) == 76, "layout.rs");
_Static_assert(sizeof(struct rewrite) == 336, "layout.rs");
_Static_assert(__builtin_offsetof(struct rewrite, header) == 56, "layout.rs");
_Static_assert(__builtin_offsetof(struct rewrite, datagrams) == 312, "layout.rs");

/* What a port of this host is to us: bits. */
#define PORT_EACH 1 /* balancers send here, a PROXY v2 header in each datagram */
#define PORT_SPP 2  /* balancers send here, a Simple Proxy Protocol header in each datagram */
#define PORT_BACKEND 4

/* Places of `totals`. */
#define TOTAL_REQUESTS 0
#define TOTAL_REPLIES 1
#define TOTAL_FAILED_REQUESTS 2
#define TOTAL_FAILED_REPLIES 3
#define TOTALS 4
