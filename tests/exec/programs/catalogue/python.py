# HTTP servers that report to each client its address; the test appends the line that starts one.
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer as V4
class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.request.getpeername() == self.client_address
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"peer %s %d\n" % (self.client_address[0].encode(), self.client_address[1]))
class V6(V4):
    address_family = socket.AF_INET6
