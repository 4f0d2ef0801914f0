# TCP and UDP servers that report to each client its address. SIGINT exits with 7.
import os, signal, socket, socketserver, threading

signal.signal(signal.SIGINT, lambda *_: os._exit(7))

class Hello(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"%s %d\n" % (self.client_address[0].encode(), self.client_address[1]))

class Datagram(socketserver.BaseRequestHandler):
    def handle(self):
        client = self.client_address
        self.request[1].sendto(b"%s %d" % (client[0].encode(), client[1]), client)

class V6(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6

v4 = socketserver.ThreadingTCPServer(("127.0.0.1", 8443), Hello)
v6 = V6(("::1", 8443), Hello)
udp = socketserver.UDPServer(("127.0.0.1", 8443), Datagram)
for server in [v6, udp]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("user", os.getuid())
print("serving")
v4.serve_forever()
