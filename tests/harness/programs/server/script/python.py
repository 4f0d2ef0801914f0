# Servers for IPv4 and IPv6 that report to each client its address.
import socket, socketserver, threading

class Hello(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"%s %d\n" % (self.client_address[0].encode(), self.client_address[1]))

class V6(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6

v4 = socketserver.ThreadingTCPServer(("127.0.0.1", 9000), Hello)
v6 = V6(("::1", 9000), Hello)
threading.Thread(target=v4.serve_forever, daemon=True).start()
v6.serve_forever()
