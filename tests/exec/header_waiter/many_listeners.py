# Listens at 40 ports and then at port 8443, and tells each client its address.
import select, socket

listeners = {}
poll = select.poll()
for port in [*range(9000, 9040), 8443]:
    listener = socket.create_server(("", port))
    listener.setblocking(False)
    listeners[listener.fileno()] = listener
    poll.register(listener, select.POLLIN)
while True:
    for number, _ in poll.poll():
        try:
            client, (ip, port) = listeners[number].accept()
        except BlockingIOError:
            continue
        client.setblocking(True)
        client.sendall(f"{ip}:{port}".encode())
        client.close()
