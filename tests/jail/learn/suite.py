"""A test suite: waits until its server listens, asks the server, and then another host at the same port."""
import http.client
import socket
import subprocess
import time

server = subprocess.Popen(
    ["sh", "-c", "sleep 0.5; exec python3 -m http.server --bind 127.0.0.1 80 >/dev/null 2>&1"]
)
was_refused = False
for _ in range(200):
    try:
        socket.create_connection(("127.0.0.1", 80)).close()
        break
    except ConnectionRefusedError:
        was_refused = True
        time.sleep(0.05)
print("refused" if was_refused else "open at once")


def get(host):
    connection = http.client.HTTPConnection(host, 80, timeout=10)
    connection.request("GET", "/" if host == "127.0.0.1" else "/echo")
    return connection.getresponse()


print(get("127.0.0.1").status)
print(get("a.test").read().decode().split(" HTTP")[0][:10])
server.kill()
