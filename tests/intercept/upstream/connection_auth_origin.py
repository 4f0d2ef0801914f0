"""An HTTP/1.1 server that authenticates connections, not requests, as IIS does with NTLM and Negotiate."""
import base64, struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# [MS-NLMP] 2.2.1.2: flags for Unicode and NTLM, a challenge of eight bytes, no target.
CHALLENGE = b"NTLMSSP\0" + struct.pack("<IHHII", 2, 0, 0, 48, 0x201) + b"\1" * 8 + b"\0" * 8
CHALLENGE += struct.pack("<HHI", 0, 0, 48)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    user = None

    def do_GET(self):
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Negotiate":
            self.user = token
        elif scheme == "NTLM":
            message = base64.b64decode(token)
            if message[8] == 1:
                self.user = None
                return self.answer(401, "NTLM " + base64.b64encode(CHALLENGE).decode())
            # [MS-NLMP] 2.2.1.3: the user's name.
            length, _, at = struct.unpack_from("<HHI", message, 36)
            self.user = message[at:at + length].decode("utf-16-le")
        if self.user is None:
            return self.answer(401, "NTLM")
        self.answer(200, None)

    def answer(self, status, challenge):
        body = f"{self.user}\n".encode()
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("10.81.0.1", 9001), Handler).serve_forever()
