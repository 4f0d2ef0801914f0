# Listens at one address of a port at which other programs may listen, too, and prints the clients. With "transparent" it also
# accepts what TPROXY delivers.
import select, socket, sys

is_v6 = ":" in sys.argv[1]
family = socket.AF_INET6 if is_v6 else socket.AF_INET
listener = socket.create_server((sys.argv[1], 8443), family=family, reuse_port=True, dualstack_ipv6=is_v6)
if "transparent" in sys.argv:
    listener.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT
listener.setblocking(False)
print("listening")
while True:
    select.select([listener], [], [])
    try:
        client, (ip, port, *_) = listener.accept()
        client.close()
        print(f"accepted [{ip}]:{port}" if is_v6 else f"accepted {ip}:{port}")
    except BlockingIOError:
        pass
