"""Sends two requests on one connection to a proxy: with a valid password, and with a wrong one of another user."""

import base64
import http.client
import sys

connection = http.client.HTTPConnection(sys.argv[1])
for credentials, path in ((b"bob:b", "/first"), (b"ann:wrong", "/second")):
    authorization = "Basic " + base64.b64encode(credentials).decode()
    connection.request("GET", "http://a.test" + path, headers={"Proxy-Authorization": authorization})
    connection.getresponse().read()
