"""An HTTP/2 origin that refuses streams as their path says. It logs a line per request: connection, protocol, method, path."""
import socket, ssl, sys, threading
import h2.config, h2.connection, h2.errors, h2.events

tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
tls.set_alpn_protocols(["h2", "http/1.1"])


class Http2:
    def __init__(self, stream, number):
        self.stream, self.number, self.answered = stream, number, 0
        self.requests, self.bodies, self.closing = {}, {}, False
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.conn = h2.connection.H2Connection(config)

    def serve(self):
        self.conn.initiate_connection()
        self.flush()
        while not self.closing and (data := self.stream.recv(65536)):
            for event in self.conn.receive_data(data):
                self.handle(event)
            self.flush()

    def handle(self, event):
        if isinstance(event, h2.events.RequestReceived):
            self.begin(event.stream_id, dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            self.conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if event.stream_id in self.bodies:
                self.bodies[event.stream_id] += len(event.data)
        elif isinstance(event, h2.events.StreamEnded) and event.stream_id in self.requests:
            self.answer(event.stream_id)

    def begin(self, stream, headers):
        path = headers[":path"]
        print(self.number, "h2", headers[":method"], path, flush=True)
        kind = path.partition("?")[0]
        if kind == "/never" or kind == "/fresh" and self.answered:
            self.conn.reset_stream(stream, h2.errors.ErrorCodes.REFUSED_STREAM)
        elif kind == "/internal":
            self.conn.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        elif kind == "/http1":
            self.conn.reset_stream(stream, h2.errors.ErrorCodes.HTTP_1_1_REQUIRED)
        elif kind == "/goaway" and self.answered:
            self.conn.close_connection(last_stream_id=stream - 2)
            self.closing = True
        else:
            self.requests[stream], self.bodies[stream] = headers[":method"], 0

    def answer(self, stream):
        self.answered += 1
        body = f"{self.requests.pop(stream)} {self.bodies.pop(stream)}".encode()
        self.conn.send_headers(stream, [(":status", "200"), ("content-length", str(len(body)))])
        self.conn.send_data(stream, body, end_stream=True)

    def flush(self):
        self.stream.sendall(self.conn.data_to_send())


def serve_http1(stream, number):
    received = b""
    while data := stream.recv(65536):
        received += data
        while b"\r\n\r\n" in received:
            head, _, received = received.partition(b"\r\n\r\n")
            method, path = head.decode().split(" ")[:2]
            print(number, "http/1.1", method, path, flush=True)
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nGET 0")


def serve(plain, number):
    with tls.wrap_socket(plain, server_side=True) as stream:
        if stream.selected_alpn_protocol() == "h2":
            Http2(stream, number).serve()
        else:
            serve_http1(stream, number)


listener = socket.create_server(("10.81.0.1", 9001), backlog=100)
number = 0
while True:
    number += 1
    threading.Thread(target=serve, args=(listener.accept()[0], number), daemon=True).start()
