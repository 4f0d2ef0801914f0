# A forwardAuth service that prints each request, and decides by its URI and host.
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        said = [self.headers.get(name, "-") for name in ("X-Peername-Mode", "X-Forwarded-Method",
            "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Uri")]
        print(*said, "for", self.headers["X-Forwarded-For"])
        denied = "secret" in said[4] or said[3].startswith("b.test") or "X-Open" in self.headers
        words = b"no" if "words" in said[4] else b""
        elsewhere = said[3].startswith("other.test")
        self.send_response(302 if elsewhere else 403 if denied else 200)
        self.send_header("Content-Type", "text/x-words")
        self.send_header("Cache-Control", "max-age=3600")
        self.send_header("X-Why", "secret")
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("127.0.0.1", 9191), Handler).serve_forever()
