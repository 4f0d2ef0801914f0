"""A forwardAuth service for the tests. It prints each request as a line of JSON. Each line of standard input sets the answer
from then on: {"status": 200, "headers": [["a", "b"]], "body": "", "delay": 0}."""

import contextlib
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

answer = {"status": 500, "headers": [], "body": ""}
print_lock = threading.Lock()


def print_line(line):
    with print_lock:
        print(line, flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        headers = [[name.lower(), value] for name, value in self.headers.items()]
        print_line(json.dumps({"line": self.requestline, "headers": headers, "from": self.client_address[1]}))
        time.sleep(answer.get("delay", 0))
        body = answer["body"].encode()
        self.send_response(answer["status"])
        for name, value in answer["headers"]:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(ConnectionError):  # the client may have closed
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


host, port = sys.argv[1].rsplit(":", 1)
server = ThreadingHTTPServer((host, int(port)), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print_line(f"listening {host}:{server.server_address[1]}")
for line in sys.stdin:
    answer = json.loads(line)
    print_line("set")
