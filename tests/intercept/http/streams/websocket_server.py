import asyncio, ssl, sys, websockets
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
async def echo(socket):
    async for message in socket:
        await socket.send(message)
async def main():
    async with websockets.serve(echo, "10.81.0.1", 9001, ssl=tls):
        await asyncio.Future()
asyncio.run(main())
