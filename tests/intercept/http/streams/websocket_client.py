# Opens a WebSocket through the proxy, and prints the echoes, or whether the connection was closed.
import asyncio, socket, ssl, sys, websockets
host, port = sys.argv[1].split(":")
path = sys.argv[3]
tunnel = socket.create_connection((host, int(port)))
tunnel.sendall(b"CONNECT a.test:9001 HTTP/1.1\r\nHost: a.test:9001\r\n\r\n")
assert b" 200 " in tunnel.recv(1000)
tls = ssl.create_default_context(cafile=sys.argv[2])
async def main():
    async with websockets.connect("wss://a.test:9001" + path, sock=tunnel, ssl=tls, server_hostname="a.test", compression=None) as client:
        said = []
        for message in ["one", "two", "x" * 100000]:
            await client.send(message)
            try:
                said.append(await client.recv())
            except websockets.ConnectionClosed:
                return print("closed")
        print(said[0], said[1], len(said[2]))
asyncio.run(main())
