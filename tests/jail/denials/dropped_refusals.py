"""Connects to ports at which nothing listens, by sockets that drop the refusal."""
import socket
import struct
import threading

IP_MINTTL = 21
IPV6_MINHOPCOUNT = 73


def open_socket(family=socket.AF_INET):
    client = socket.socket(family)
    client.setblocking(False)
    return client


def drop_low_ttl(client):
    client.setsockopt(socket.IPPROTO_IP, IP_MINTTL, 255)


by_ttl = open_socket()
drop_low_ttl(by_ttl)
by_ttl.connect_ex(("203.0.113.5", 9001))

by_hop_count = open_socket(socket.AF_INET6)
by_hop_count.setsockopt(socket.IPPROTO_IPV6, IPV6_MINHOPCOUNT, 255)
by_hop_count.connect_ex(("2001:db8::5", 9003))

with_timeout = open_socket()
with_timeout.setblocking(True)
with_timeout.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 200_000))
drop_low_ttl(with_timeout)
with_timeout.connect_ex(("203.0.113.5", 9004))

# The kernel sends the SYN again after a second, and then gets the refusal.
retried = open_socket()
retried.setblocking(True)
drop_low_ttl(retried)
accept_all = threading.Timer(0.2, retried.setsockopt, (socket.IPPROTO_IP, IP_MINTTL, 0))
accept_all.start()
retried.connect_ex(("203.0.113.5", 9005))
