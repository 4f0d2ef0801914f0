# Attempts against rules and secrets. With `paths` a.test is allowed, but neither below /none nor with DELETE; with `secrets`,
# a.test and h1.test are, and requests to a.test get a secret; with `any`, every host is, and port 7001; with `logged`,
# a.test is, and its requests are logged.

# %% a denied path with dots [succeeds, paths]
for path in ("/./none", "/x/../none", "/echo/../none", "/none/.", "/none/../none", "/echo/./../none"):
    judge(http("a.test", f"GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "204 No Content")

# %% a denied path with escapes [succeeds, paths]
for path in ("/%6eone", "/x/%2e%2e/none", "/x%2f..%2fnone", "/%2e/none", "/%6E%6F%6E%65", "/none%2f", "/none%00", "/%256eone", "/%u006eone", "/no%6ee?x=1"):
    judge(http("a.test", f"GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "204 No Content")

# %% a denied path with slashes [succeeds, paths]
for path in ("//none", "///none", "/x//../none", "/none//", "/\\none", "/x\\..\\none", "/none;x", "/;/none", "/none#", "/none\t"):
    judge(http("a.test", f"GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "204 No Content")

# %% a denied path in absolute form [succeeds, paths]
for target in ("http://a.test/none", "HTTP://A.TEST/none", "http://a.test//none", "http://a.test:80/none"):
    judge(http("a.test", f"GET {target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "204 No Content")

# %% a denied path in other letters [not-tried, paths]
for path in ("/NONE", "/None", "/%EF%BD%8Eone", "/n%C2%BAne", "/%E2%93%9Done", "/none.", "/none%20", "/none::$DATA", "/no\u200bne"):
    text = http("a.test", f"GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n".encode())
    judge(text, "nginx")

# %% a denied path over HTTP/2 [succeeds, paths]
for path in (b"/none", b"/./none", b"//none", b"/%6eone"):
    judge(h2(h2_request(fields(b"a.test", path)), wait=0.5), "\1\5\0\0\0\1\x89")

# %% a denied path behind one that is allowed [succeeds, paths]
one = "GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n"
judge(http("a.test", one * 3 + one.replace("/echo", "/none") + one), "204 No Content")

# %% a WebSocket to a denied path [succeeds, paths]
key = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
judge(http("a.test", f"GET /none HTTP/1.1\r\nHost: a.test\r\n{key}\r\n\r\n"), "204 No Content")

# %% a denied method in other letters [not-tried, paths]
for method in ("DELETE", "delete", "Delete", "DELETE\t", " DELETE", "DELETE  "):
    judge(http("a.test", f"{method} /put HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "nginx")

# %% a denied method over HTTP/2 [not-tried, paths]
for method in (b"DELETE", b"delete", b"DELETE "):
    judge(h2(h2_request(fields(b"a.test", b"/put", method)), wait=0.4), "nginx")

# %% a denied path inside of a tunnel by CONNECT [not-tried, paths]
tunnel = "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n"
judge(http("a.test", tunnel + "GET /none HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "204 No Content")

# %% a secret for another host on the same connection [not-tried, secrets]
text = h2(h2_request(fields(b"a.test", b"/put")), h2_request(fields(b"h1.test"), 3))
judge(text, "SECRET")
judge(http("a.test", "GET /echo HTTP/1.1\r\nHost: h1.test\r\n\r\n", tls="a.test"), "SECRET")

# %% a secret for another host by its name or server name [not-tried, secrets]
for name, server_name, host in (("h1.test", "a.test", "a.test"), ("h1.test", "h1.test", "a.test"), ("a.test", "h1.test", "h1.test"), ("h1.test", "h1.test", "h1.test")):
    judge(http(name, f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n", tls=server_name), "SECRET")

# %% a secret without TLS [not-tried, secrets]
judge(http("a.test", "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "SECRET")
judge(http("a.test", "GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), "SECRET")

# %% a secret that the origin returns (TRACE) [not-tried, secrets]
for method in ("TRACE", "TRACK"):
    judge(http("a.test", f"{method} /echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n", tls="a.test"), "SECRET")

# %% the file of a secret [not-tried, secrets]
path = os.path.dirname(os.environ["CANARY"]) + "/token"
try:
    judge(open(path).read(), "SECRET")
    judge(open("/proc/self/root" + path).read(), "SECRET")
except OSError as error:
    print("closed", error)

# %% a secret in the environment or the arguments of a process [not-tried, secrets]
import glob
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    try:
        if b"SECRET" in open(path, "rb", buffering=0).read(100000) and not path.startswith("/proc/%d/" % os.getpid()):
            print("OUT", path)
    except OSError:
        pass
print("closed")

# %% a name that leads to the host's loopback [succeeds, any]
judge(http("local.test", "GET / HTTP/1.0\r\n\r\n", port=7001), "hello")

# %% the host's loopback as an address, in a rule for every host [succeeds, any]
for address in ("127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"):
    try:
        judge(http(address, "GET / HTTP/1.0\r\n\r\n", port=7001), "hello")
    except OSError as error:
        print("closed", error)

# %% the host's loopback in other numerals [not-tried, any]
for host in ("0x7f000001", "2130706433", "0177.0.0.1", "127.1", "0", "127.0.0.1.", "localhost.", "LOCALHOST", "localhost.localdomain", "127.0.0.1%00.a.test"):
    judge(http("a.test", f"GET http://{host}:7001/ HTTP/1.1\r\nHost: {host}:7001\r\nConnection: close\r\n\r\n"), "hello")

# %% the host's loopback inside of an IPv6 address [not-tried, any]
for host in ("[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::7f00:1]", "[::]", "[0:0:0:0:0:0:0:1%25lo]", "[fe80::1%25lo]"):
    judge(http("a.test", f"GET http://{host}:7001/ HTTP/1.1\r\nHost: {host}:7001\r\nConnection: close\r\n\r\n"), "hello")

# %% a tunnel to the host's loopback by CONNECT [not-tried, any]
for host in ("127.0.0.1:7001", "local.test:7001", "[::1]:7001", "localhost:7001"):
    judge(http("a.test", f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\nGET / HTTP/1.0\r\n\r\n"), "hello")

# %% names that lead to private and translated addresses [not-tried, any]
for name in ("private.test", "shared.test", "metadata.test", "nat64.test", "mapped.test", "sixtofour.test"):
    text = http(name, f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n", wait=2)
    print("closed" if "destination_" in text or text == "" else "OUT", text)

# %% the log of requests, read, written, emptied or removed [not-tried, logged]
directory = os.path.dirname(os.environ["CANARY"]) + "/open/log"
log, other = directory + "/audit.log", directory + "/other-%d" % os.getuid()
open(other, "w").close()
http("a.test", "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
print("OUT" if open(log).read() else "closed")
tries = {
    "open": lambda: os.open(log, os.O_WRONLY | os.O_APPEND),
    "truncate": lambda: os.truncate(log, 0),
    "chmod": lambda: os.chmod(log, 0),
    "unlink": lambda: os.unlink(log),
    "rename": lambda: os.rename(log, log + "-moved"),
    "replace": lambda: os.rename(other, log),
    "link": lambda: os.link(log, log + "-linked"),
}
for name, run in tries.items():
    try:
        run()
        print("OUT", name)
    except OSError as error:
        print("closed", name, error)

# %% the log of requests in a directory that is renamed [not-tried, logged]
directory = os.path.dirname(os.environ["CANARY"]) + "/open/log"
moved = directory + "-moved"
http("a.test", "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
os.rename(directory, moved)
try:
    print("OUT" if open(moved + "/audit.log").read() else "closed")
    os.truncate(moved + "/audit.log", 0)
    print("OUT")
except OSError as error:
    print("closed", error)
finally:
    os.rename(moved, directory)
