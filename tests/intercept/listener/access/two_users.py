"""Sends requests of two users on each of two connections to a proxy: the second user's password is wrong, or the target is."""

import base64
import http.client
import sys

BOB, WRONG, ANN = b"bob:b", b"ann:wrong", b"ann:open:sesame"
for requests in (
    ((BOB, "http://a.test/first"), (WRONG, "http://a.test/second")),
    ((BOB, "http://a.test/first"), (ANN, "ftp://a.test/third")),
):
    connection = http.client.HTTPConnection(sys.argv[1])
    for credentials, target in requests:
        authorization = "Basic " + base64.b64encode(credentials).decode()
        connection.request("GET", target, headers={"Proxy-Authorization": authorization})
        connection.getresponse().read()
