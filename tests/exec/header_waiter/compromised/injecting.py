header = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"

def park(listener, own):
    """Parks a connection of a listener for the program's own at the same address. Whether the program gets it."""
    client = socket.create_connection(listener.getsockname())
    client.sendall(b"PROXY UNKNOWN\r\n")
    connection, _ = listener.accept()
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
    return "a connection" if take(own) else "nothing"

one, other = (socket.create_server(("127.0.0.1", port)) for port in (9000, 9001))
print("of the program's namespace:", park(one, one))
print("of another one:", park(listen_elsewhere(other.getsockname()), other))
time.sleep(60)
