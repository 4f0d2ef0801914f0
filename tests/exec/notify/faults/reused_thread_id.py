import os
import socket
import time

listener = socket.create_server(("10.81.0.1", 8443))

def serve():
    # Not in the group of the first process, which is killed as a whole.
    os.setsid()
    connection, (host, port) = listener.accept()
    connection.sendall(f"{host}:{port}".encode())
    connection.close()

first = os.fork()
if first == 0:
    serve()
    os._exit(0)
os.waitpid(first, 0)
for _ in range(1000):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(first - 1))
    second = os.fork()
    if second == 0:
        if os.getpid() == first:
            serve()
            time.sleep(60)
        os._exit(0)
    if second == first:
        break
    os.waitpid(second, 0)
else:
    raise SystemExit("the id is not free")
print("reused", first)
os.wait()
