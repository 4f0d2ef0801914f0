# Echoes the messages of WebSockets; at /cut it resets the connection.
import asyncio, ssl, struct, sys, websockets
from socket import SO_LINGER, SOL_SOCKET
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
async def echo(socket):
    async for message in socket:
        if socket.path == "/cut":
            # With a reset, not with a FIN.
            tcp = socket.transport.get_extra_info("socket")
            tcp.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            socket.transport.abort()
        else:
            await socket.send(message)
async def main():
    async with websockets.serve(echo, "10.81.0.1", 9001, ssl=tls):
        await asyncio.Future()
asyncio.run(main())
