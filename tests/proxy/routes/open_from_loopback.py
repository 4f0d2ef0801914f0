"""Opens a TCP and a UDP flow from a loopback address to a client, and prints the error of each."""
import socket
client = ('203.0.113.9', 9100)
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    flow = socket.socket(socket.AF_INET, kind)
    flow.settimeout(1)
    flow.bind(('127.0.0.1', 0))
    try:
        flow.connect(client)
        flow.send(b'data')
    except OSError as error:
        print(error)
