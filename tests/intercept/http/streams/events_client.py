# Reads server-sent events, and confirms each on a second connection before it reads the next.
import http.client, ssl, sys
host, port = sys.argv[1].split(":")
tls = ssl.create_default_context(cafile=sys.argv[2])

def connect():
    connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=10)
    connection.set_tunnel("a.test", 9001)
    return connection

events = connect()
events.request("GET", "/events")
answer = events.getresponse()
words = connect()
said = []
for _ in range(3):
    said.append(answer.readline().split()[1].decode())
    assert answer.readline() == b"\n"
    words.request("POST", "/seen", body=b"")
    words.getresponse().read()
assert answer.read() == b""
print(*said)
