# A TLS origin whose response has 240 fields.
import ssl, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        for number in range(240):
            self.send_header(f"X-Many-{number}", "value")
        self.send_header("Content-Length", "0")
        self.end_headers()

server = ThreadingHTTPServer(("10.81.0.1", 9001), Handler)
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
