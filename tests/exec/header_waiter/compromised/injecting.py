def park_and_take(listener, own):
    """Parks a connection of `listener` for the program's listener `own` at the same address, and tries to take it there."""
    client = park(listener, own)
    time.sleep(0.3)
    try:
        client.sendall(HEADER[20:])
    except ConnectionError:
        pass
    time.sleep(0.5)
    return "a connection" if take(own) else "nothing"

own, other = (socket.create_server(("127.0.0.1", port)) for port in (9000, 9001))
print("of the program's namespace:", park_and_take(own, own))
print("of another one:", park_and_take(listen_elsewhere(other.getsockname()), other))
time.sleep(60)
