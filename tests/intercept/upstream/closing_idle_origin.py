"""An HTTP/1.1 origin that answers with the body of the request. It closes every other connection after one answer, once the file
`close` exists beside its key, and removes that file."""
import os, socket, ssl, sys, threading, time

tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
close = os.path.join(os.path.dirname(sys.argv[2]), "close")


def read_body(stream, head):
    if "transfer-encoding: chunked" in head:
        body = b""
        while size := int(stream.readline(), 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
        return body
    lengths = [line.split()[1] for line in head if line.startswith("content-length: ")]
    return stream.read(int(lengths[0])) if lengths else b""


def answer(stream):
    head = []
    while line := stream.readline().decode().strip().lower():
        head.append(line)
    body = read_body(stream, head)
    stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    stream.flush()


def serve(plain, closes):
    with tls.wrap_socket(plain, server_side=True) as secured, secured.makefile("rwb") as stream:
        answer(stream)
        if not closes:
            return answer(stream)
        while not os.path.exists(close):
            time.sleep(0.01)
        secured.shutdown(socket.SHUT_RDWR)
        os.remove(close)
        print("closed", flush=True)


listener = socket.create_server(("10.81.0.1", 9001))
for number in range(100):
    threading.Thread(target=serve, args=(listener.accept()[0], number % 2 == 0), daemon=True).start()
