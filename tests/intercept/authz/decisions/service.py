# A forwardAuth service that prints each request, and decides by its URI and host.
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        mode, method, scheme, host, uri = (self.headers.get(name, "-") for name in ("X-Peername-Mode",
            "X-Forwarded-Method", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Uri"))
        print(mode, method, scheme, host, uri, "for", self.headers["X-Forwarded-For"])
        denied = "secret" in uri or host.startswith("b.test") or "X-Open" in self.headers
        body = b"no" if "words" in uri else b""
        redirected = host.startswith("other.test")
        self.send_response(302 if redirected else 403 if denied else 200)
        self.send_header("Content-Type", "text/x-words")
        self.send_header("Cache-Control", "max-age=3600")
        self.send_header("X-Why", "secret")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("127.0.0.1", 9191), Handler).serve_forever()
