# A TLS origin that answers with the number of segments received after its own flight.
import socket, ssl, struct, sys

def segments(conn):
    # tcpi_data_segs_in of struct tcp_info is at 152.
    info = conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return struct.unpack_from("I", info, 152)[0]

def serve(conn):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = tls.wrap_bio(incoming, outgoing, server_side=True)
    before = 0
    def wait_for(step):
        nonlocal before
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    before = segments(conn)
                    conn.sendall(outgoing.read())
                incoming.write(conn.recv(65536))
    try:
        wait_for(session.do_handshake)
    except ssl.SSLError as error:
        print("alert", error.reason)
        return
    wait_for(lambda: session.read(65536))
    count = str(segments(conn) - before)
    session.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(count), count.encode()))
    conn.sendall(outgoing.read())

tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(*sys.argv[1:3])
listener = socket.create_server(("10.81.0.1", 9001))
while True:
    conn, _ = listener.accept()
    with conn:
        serve(conn)
