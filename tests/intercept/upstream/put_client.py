"""Sends a PUT on a kept connection, chunked or with a length. Prints the answer.
Arguments: proxy, authority, the form of the body, the file whose existence lets it go on."""
import http.client, os, ssl, sys, time

host, port = sys.argv[1].split(":")
form, go = sys.argv[3:]
tls = ssl.create_default_context(cafile=sys.argv[2])
connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=10)
connection.set_tunnel("a.test", 9001)
connection.request("GET", "/")
connection.getresponse().read()
print("idle", flush=True)
while not os.path.exists(go):
    time.sleep(0.01)
body = iter([b"the ", b"body"]) if form == "chunked" else b"the body"
connection.request("PUT", "/", body=body, encode_chunked=form == "chunked")
print("sent", flush=True)
answer = connection.getresponse()
print("answer:", answer.status, answer.read().decode(), flush=True)
