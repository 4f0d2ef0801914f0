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

elsewhere = listen_elsewhere(own.getsockname())
elsewhere.setblocking(False)
print("elsewhere:", "a connection" if take(elsewhere) else "nothing")
print("here:", "a connection" if take(own) else "nothing")
time.sleep(60)
