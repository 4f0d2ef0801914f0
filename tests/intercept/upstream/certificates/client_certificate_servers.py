# TLS origins that require a client certificate, one with TLS 1.2 and one with TLS 1.3.
import http.server, ssl, sys, threading
here = sys.argv[1]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"hello\n")
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass
for port, version in (9012, ssl.TLSVersion.TLSv1_2), (9013, ssl.TLSVersion.TLSv1_3):
    server = Server(("10.81.0.1", port), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=f"{here}/root.pem")
    context.minimum_version = context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(f"{here}/old.test.pem", f"{here}/old.test.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever).start()
