# Follows server.py: parks a connection for another listener than its own, and one for a listener that is closed then.
own = socket.create_server(("127.0.0.1", 9000))
second = socket.create_server(("127.0.0.1", 9001))

def wait_closed(client, what):
    client.settimeout(10)
    try:
        client.sendall(HEADER[20:])
        ended = client.recv(1) == b""
    except ConnectionError:
        ended = True
    print(f"closed: {what}" if ended else f"served: {what}")

client = park(own, second)
wait_closed(client, "another listener's address")
client = park(own, own)
time.sleep(0.2)
own.close()
time.sleep(1)
print("completed")
wait_closed(client, "no listener of the program")
time.sleep(60)
