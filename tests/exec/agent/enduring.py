"""A server that endures what ends others: accept(2) returns 0 where its supervisor is killed within the system call that hands the
connection over. Three threads accept, and report to each client what accept(2) and getpeername(2) return, as `server.c --brief`
does."""
import socket
import threading

listener = socket.create_server(("0.0.0.0", 8443), backlog=512)


def serve():
    while True:
        # Standard input is 0, and stays open.
        number, (ip, port) = listener._accept()
        if number == 0:
            print("accept(2) returned 0", flush=True)
            continue
        with socket.socket(fileno=number) as client:
            try:
                client.recv(64)
                peer = client.getpeername()
                client.sendall(f"accept {ip}:{port} getpeername {peer[0]}:{peer[1]}\n".encode())
            except OSError as error:
                print("of a client that was accepted:", error, flush=True)


for _ in range(3):
    threading.Thread(target=serve).start()
