# Four workers with a listener each at one address tell clients their addresses. The one that serves the first client hangs then.
import os, select, socket, time

token, put = os.pipe()
os.set_blocking(token, False)
os.write(put, b"!")
listeners = [socket.create_server(("10.81.0.1", 8443), reuse_port=True) for _ in range(4)]
listener = listeners[0]
for other in listeners[1:]:
    if os.fork() == 0:
        listener = other
        break
for other in listeners:
    if other is not listener:
        other.close()
listener.setblocking(False)
while True:
    select.select([listener], [], [])
    try:
        connection, (ip, port) = listener.accept()
    except BlockingIOError:
        continue
    connection.sendall(f"{ip}:{port}".encode())
    connection.close()
    try:
        os.read(token, 1)
    except BlockingIOError:
        continue
    print("hangs")
    time.sleep(1000)
