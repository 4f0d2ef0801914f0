header = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"
own = socket.create_server(("127.0.0.1", 9000))
elsewhere = listen_elsewhere(own.getsockname())
client = socket.create_connection(elsewhere.getsockname())
client.sendall(b"PROXY UNKNOWN\r\n")
connection, _ = elsewhere.accept()
client.sendall(header[:20])
time.sleep(0.1)
request(b"P", connection, own)
connection.close()
time.sleep(0.3)
try:
    client.sendall(header[20:])
except ConnectionError:
    pass
time.sleep(0.5)
print("here:", "a connection" if take(own) else "nothing")
time.sleep(60)
