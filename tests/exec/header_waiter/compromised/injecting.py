# Follows server.py: parks a connection of another network namespace for a listener of the program.
def is_served(listener, own):
    """Whether the program gets a connection of a listener that is parked for its own at the same address."""
    client = park(listener, own)
    time.sleep(0.3)
    try:
        client.sendall(HEADER[20:])
    except ConnectionError:
        pass
    time.sleep(0.5)
    return "a connection" if take(own) else "nothing"

one, other = (socket.create_server(("127.0.0.1", port)) for port in (9000, 9001))
print("of the program's namespace:", is_served(one, one))
print("of another one:", is_served(listen_elsewhere(other.getsockname()), other))
time.sleep(60)
