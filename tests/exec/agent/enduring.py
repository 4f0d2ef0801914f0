"""A server that endures what ends others: accept(2) returns 0 where its supervisor is killed within the system call that hands the
connection over. Three threads accept, and report to each client the address that accept(2) returned and the one that getpeername(2)
returns."""
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
                peer = client.getpeername()
                client.sendall(b"%s %d, %s %d\n" % (ip.encode(), port, peer[0].encode(), peer[1]))
            except OSError as error:
                print("of a client that was accepted:", error, flush=True)


for _ in range(3):
    threading.Thread(target=serve).start()
