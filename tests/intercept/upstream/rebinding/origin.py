# Origins with and without TLS that close each connection, so that the next request resolves the name again.
import http.server, ssl, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here\n")
plain, secure = (http.server.ThreadingHTTPServer(("10.81.0.1", port), Handler) for port in (80, 443))
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(*sys.argv[1:3])
secure.socket = tls.wrap_socket(secure.socket, server_side=True)
threading.Thread(target=plain.serve_forever).start()
secure.serve_forever()
