# Has an IPv4 and an IPv6 listener at all addresses for each device. They accept by the first argument: "block" waits in
# accept(2), in the order of the devices, and "poll" accepts if poll(2) reports a connection. Prints the device and the client of
# each connection.
import select, socket, sys, threading, time


def listen(family, device):
    listener = socket.socket(family)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    listener.bind(("", 8443))
    listener.listen()
    return listener


def serve(listener, device):
    while True:
        if is_polled:
            select.select([listener], [], [])
        try:
            client, (ip, port, *_) = listener.accept()
        except BlockingIOError:
            continue
        client.close()
        sys.stdout.write(f"{device} accepted {ip} {port}\n")


is_polled = sys.argv[1] == "poll"
for device in sys.argv[2:]:
    for family in [socket.AF_INET, socket.AF_INET6]:
        listener = listen(family, device)
        listener.setblocking(not is_polled)
        threading.Thread(target=serve, args=[listener, device]).start()
    time.sleep(0.3)
print("listening")
