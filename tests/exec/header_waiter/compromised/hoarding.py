header = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"
own = socket.create_server(("127.0.0.1", 9000))
own.setblocking(False)
client = socket.create_connection(own.getsockname())
client.sendall(header[:20])
time.sleep(0.1)
try:
    own.accept()
except BlockingIOError:
    pass
client.sendall(header[20:])
time.sleep(0.5)

kept = request(b"T", own)
kept.settimeout(10)
assert kept.recv(1) == b"+"
print("at once:", "a connection" if take(own) else "nothing")
time.sleep(1.5)
try:
    kept.send(b"!")
    print("confirmed")
except BrokenPipeError:
    print("too late")
print("later:", "a connection" if take(own) else "nothing")
time.sleep(60)
