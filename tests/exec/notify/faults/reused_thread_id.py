import os
import socket
import sys
import threading
import time

listener = socket.create_server(("10.81.0.1", 8443))

def serve():
    connection, (host, port) = listener.accept()
    connection.sendall(f"{host}:{port}".encode())
    connection.close()

# Neither in the group of the first process, which is killed as a whole.
def serve_in_process():
    process = os.fork()
    if process == 0:
        os.setsid()
        serve()
        os._exit(0)
    os.waitpid(process, 0)
    return process

def serve_in_thread():
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    return thread.native_id

first = {"process": serve_in_process, "thread": serve_in_thread}[sys.argv[1]]()
for _ in range(1000):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(first - 1))
    second = os.fork()
    if second == 0:
        if os.getpid() == first:
            os.setsid()
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
