"""Prints the error of each way to connect by TCP Fast Open."""

import errno
import socket

DESTINATION = ("203.0.113.5", 1234)
# setsockopt(2), of IPPROTO_TCP.
TCP_FASTOPEN_CONNECT = 30

def attempt(call):
    with socket.socket() as client:
        client.settimeout(5)
        try:
            call(client)
            print("no error")
        except OSError as error:
            print("EOPNOTSUPP" if error.errno == errno.EOPNOTSUPP else error)

attempt(lambda client: client.sendto(b"x", socket.MSG_FASTOPEN, DESTINATION))
attempt(lambda client: client.sendmsg([b"x"], [], socket.MSG_FASTOPEN, DESTINATION))
attempt(lambda client: client.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1))
