# Two hundred clients that begin their TLS handshakes at once, and print the serial numbers of the certificates.
import socket, ssl, sys, threading
host, port = sys.argv[1].split(":")
tls = ssl.create_default_context(cafile=sys.argv[2])
ready = threading.Barrier(200, timeout=50)

def client():
    tunnel = socket.create_connection((host, int(port)))
    tunnel.sendall(b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n")
    assert b" 200 " in tunnel.recv(1000)
    ready.wait()
    with tls.wrap_socket(tunnel, server_hostname="b.test") as stream:
        print(stream.getpeercert()["serialNumber"] + "\n", end="", flush=True)

for _ in range(200):
    threading.Thread(target=client).start()
