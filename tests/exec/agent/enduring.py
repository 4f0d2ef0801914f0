"""A server that goes on after accept(2) has returned 0, as it does if the supervisor is killed within the system call that
hands over a connection.

Three threads accept, and report to each client what accept(2) and getpeername(2) return, as `server.c --brief` does. Two of them
wait in accept(2), and one in epoll, for a non-blocking listener of its own."""
import select
import socket
import threading


def listen():
    return socket.create_server(("0.0.0.0", 8443), backlog=512, reuse_port=True)


def serve(listener, wait):
    while True:
        wait()
        try:
            # Standard input has the descriptor 0 and stays open, so no connection can have it.
            number, (ip, port) = listener._accept()
        except BlockingIOError:
            continue
        if number == 0:
            print("accept(2) returned 0", flush=True)
            continue
        with socket.socket(fileno=number) as client:
            try:
                client.recv(64)
                peer = client.getpeername()
                client.sendall(f"accept {ip}:{port} getpeername {peer[0]}:{peer[1]}\n".encode())
            except OSError as error:
                print("an accepted client:", error, flush=True)


blocking, nonblocking = listen(), listen()
nonblocking.setblocking(False)
epoll = select.epoll()
epoll.register(nonblocking, select.EPOLLIN)
for args in [(nonblocking, epoll.poll)] + [(blocking, lambda: None)] * 2:
    threading.Thread(target=serve, args=args).start()
