# Sends server-sent events, each after the client has confirmed the previous one.
import ssl, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
seen = threading.Semaphore(0)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (b"1", b"2", b"3"):
            self.wfile.write(b"9\r\ndata: " + event + b"\n\n\r\n")
            assert seen.acquire(timeout=10), "the client has not seen it"
        self.wfile.write(b"0\r\n\r\n")
    def do_POST(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        seen.release()

server = ThreadingHTTPServer(("10.81.0.1", 9001), Handler)
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
