# Each of many processes connects to a socket that does not exist. Prints how many had which error.
reader, writer = os.pipe()
for _ in range(600):
    if not os.fork():
        os.write(writer, f"{error(lambda: connect('/nonexistent/socket'))}\n".encode())
        os._exit(0)
    os.wait()
os.close(writer)
errors = os.read(reader, 1 << 16).decode().split()
for name in sorted(set(errors)):
    print(errors.count(name), name)
