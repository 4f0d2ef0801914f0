header = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"
own = socket.create_server(("127.0.0.1", 9000))
second = socket.create_server(("127.0.0.1", 9001))

def parked_for(claimed):
    client = socket.create_connection(own.getsockname())
    client.sendall(b"PROXY UNKNOWN\r\n")
    served, _ = own.accept()
    client.sendall(header[:20])
    time.sleep(0.1)
    request(b"P", served, claimed)
    served.close()
    return client

def wait_closed(client, what):
    client.settimeout(10)
    try:
        client.sendall(header[20:])
        ended = client.recv(1) == b""
    except ConnectionError:
        ended = True
    print(f"closed: {what}" if ended else f"served: {what}")

client = parked_for(second)
wait_closed(client, "another listener's address")
client = parked_for(own)
time.sleep(0.2)
own.close()
time.sleep(1)
print("completed")
wait_closed(client, "no listener of the program")
time.sleep(60)
