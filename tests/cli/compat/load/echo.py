# Prints the address of each client, and echoes.
import asyncio
async def echo(reader, writer):
    print("%s:%d" % writer.get_extra_info("peername"))
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()
async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 25578, backlog=1024)
    print("ready")
    await server.serve_forever()
asyncio.run(main())
