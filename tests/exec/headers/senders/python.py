# An HTTP server that reports to each client its address.
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        line = "peer %s %d" % self.request.getpeername()
        assert self.request.getpeername() == self.client_address
        print(line)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(line.encode() + b"\n")
ThreadingHTTPServer(("10.81.0.1", 8443), Hello).serve_forever()
