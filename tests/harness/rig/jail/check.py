# A forwardAuth service at the port in the first argument, which allows the hosts in the others.
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Check(BaseHTTPRequestHandler):
    def do_GET(self):
        host = self.headers["X-Forwarded-Host"]
        method, uri = self.headers["X-Forwarded-Method"], self.headers["X-Forwarded-Uri"]
        print(host, method, uri, flush=True)
        allowed = host in sys.argv[2:] or host.rsplit(":", 1)[0] in sys.argv[2:]
        body = b"allowed" if allowed else b"no such host for you"
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Check)
print("ready", flush=True)
server.serve_forever()
