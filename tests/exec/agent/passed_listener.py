"""Two programs in two containers: one passes its listener to the other (SCM_RIGHTS), which reports to each client what
accept(2) and getpeername(2) return, as `server.c --brief` does.
usage: passed_listener.py pass|receive SOCKET"""
import signal
import socket
import sys

action, path = sys.argv[1:]
if action == "pass":
    listener = socket.create_server(("0.0.0.0", 8443))
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(path)
    socket.send_fds(channel, [b"listener"], [listener.fileno()])
    listener.close()
    signal.pause()
channels = socket.socket(socket.AF_UNIX)
channels.bind(path)
channels.listen()
print("waiting", flush=True)
_, [number], _, _ = socket.recv_fds(channels.accept()[0], 64, 1)
listener = socket.socket(fileno=number)
print("received", flush=True)
while True:
    client, (ip, port) = listener.accept()
    client.recv(64)
    peer = client.getpeername()
    client.sendall(f"accept {ip}:{port} getpeername {peer[0]}:{peer[1]}\n".encode())
    client.close()
