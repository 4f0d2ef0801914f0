"""Sends a PUT on a connection that was idle, chunked or with a length, and prints the answer.
usage: put_client.py PROXY CA chunked|length GO, where the PUT is sent once the file GO exists"""
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
