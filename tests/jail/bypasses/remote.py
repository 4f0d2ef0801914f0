# The canary on the host of the origin: prints each contact by TCP, UDP and ICMP.
import socket, threading

def tcp(family, address, port):
    server = socket.create_server((address, port), family=family)
    while True:
        connection, _ = server.accept()
        print("tcp", port, flush=True)
        connection.settimeout(1)
        try:
            connection.recv(2000)
            connection.sendall(b"hello")
        except OSError:
            pass
        connection.close()

def udp(family, address, port):
    server = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind((address, port))
    while True:
        data, peer = server.recvfrom(2000)
        print("udp", port, flush=True)
        server.sendto(data, peer)

def icmp():
    server = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    while True:
        packet, _ = server.recvfrom(2000)
        if packet[20] == 8:
            print("icmp", flush=True)

threads = [(icmp,)]
for family, address in [(socket.AF_INET, "10.81.0.1"), (socket.AF_INET6, "fd81::1")]:
    threads += [(tcp, family, address, port) for port in (53, 853, 3128, 7000)]
    threads += [(udp, family, address, port) for port in (53, 443, 7000)]
# On every address: broadcasts and multicasts, too.
threads += [(udp, socket.AF_INET, "", 7008), (udp, socket.AF_INET6, "", 7008)]
for function, *arguments in threads:
    threading.Thread(target=function, args=arguments).start()
print("ready", flush=True)
