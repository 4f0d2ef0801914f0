# Functions of the tests of ports: the jailed program listens at ports that the interceptor uses.
import errno, http.client, socket, subprocess

v4, v6 = socket.AF_INET, socket.AF_INET6

def bind(family, host, port, v6_only=None):
    server = socket.socket(family)
    if v6_only is not None:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6_only)
    server.bind((host, port))
    server.listen()
    server.settimeout(10)
    return server

def serve(family, host, v6_only=None):
    servers = []
    # A connection that the interceptor has accepted on the port stays.
    before = http.client.HTTPConnection("a.test")
    for _ in range(2):
        before.request("GET", "/echo")
        assert b"a.test" in before.getresponse().read()
        before.auto_open = False
        servers = servers or [bind(family, host, port, v6_only) for port in (80, 443, 8081, 7022)]
    for port in (80, 443):
        try:
            bind(family, host, port, v6_only)
            raise SystemExit("bound twice")
        except OSError as error:
            assert error.errno == errno.EADDRINUSE, error
    return servers

def check(servers, addresses):
    for server in servers:
        port = server.getsockname()[1]
        for family, address in addresses:
            with socket.socket(family) as client:
                client.settimeout(10)
                client.connect((address, port))
                assert client.getpeername()[:2] == (address, port)
                server.accept()[0].close()
    for option in ("-4", "-6"):
        for url in ("http://a.test/echo", "https://a.test/echo", "http://a.test:8081/echo"):
            answer = subprocess.check_output(["curl", "-sS", option, url], text=True)
            assert answer.startswith("GET a.test"), answer
    for server in servers:
        port = server.getsockname()[1]
        server.close()
        for family, address in addresses:
            with socket.socket(family) as client:
                assert client.connect_ex((address, port)) == errno.ECONNREFUSED, port
    # The program can't connect to the alternate ports.
    with socket.socket(v4) as client:
        assert client.connect_ex(("192.0.2.1", 1)) == errno.ECONNREFUSED
