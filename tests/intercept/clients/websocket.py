"""A WebSocket over HTTP/1.1, echoed by its server."""

import asyncio
import os
import socket
import ssl
import sys
from urllib.parse import urlsplit

import websockets

proxy, url = urlsplit(os.environ["https_proxy"]), urlsplit(sys.argv[1])
to = f"{url.hostname}:{url.port or 443}"
tunnel = socket.create_connection((proxy.hostname, proxy.port))
tunnel.sendall(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode())
answer = b""
while b"\r\n\r\n" not in answer:
    answer += tunnel.recv(1000) or sys.exit("the proxy has closed")
status = answer.split()[1].decode()
if status != "200":
    sys.exit(f"CONNECT {status}")


async def main():
    tls = ssl.create_default_context()
    name = url.hostname
    async with websockets.connect(sys.argv[1], sock=tunnel, ssl=tls, server_hostname=name) as client:
        await client.send("there and back")
        print(await client.recv())


asyncio.run(main())
