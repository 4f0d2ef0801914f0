# A TLS origin that answers every method with the request.
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def __getattr__(self, name):
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self.echo
    def echo(self):
        body = (self.requestline + "\r\n" + str(self.headers)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("10.81.0.1", 9001), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
