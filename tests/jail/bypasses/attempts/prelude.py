import ctypes, errno, fcntl, os, signal, socket, ssl, struct, subprocess, sys, tempfile, termios, time
SERVER, SERVER6 = "10.81.0.1", "fd81::1"
VICTIM = int(os.environ["VICTIM"])
# The key of the canary's System V segment.
SHARED_KEY = 0x70000000 + VICTIM
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
PR_SET_NO_NEW_PRIVS, PTRACE_SEIZE = 38, 0x4206
SECCOMP = {"x86_64": 317}.get(os.uname().machine, 277)
socket.setdefaulttimeout(2)

def report(error):
    print("closed:", error)
    sys.exit(0)

# FileNotFoundError is a failure, not a refusal: a missing program or file says nothing about the jail.
def on_error(kind, error, trace):
    is_refusal = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    print("closed:" if is_refusal else "failed:", repr(error))

sys.excepthook = on_error

def call(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

def tcp(address, port, family=socket.AF_INET, data=b"x"):
    connection = socket.socket(family)
    connection.settimeout(5)
    connection.connect((address, port))
    connection.sendall(data)
    try:
        received = connection.recv(100)
    except ConnectionResetError as error:
        report(error)
    print("OUT", received)

def unix(path, kind=socket.SOCK_STREAM):
    deadline = time.monotonic() + 1
    while True:
        client = socket.socket(socket.AF_UNIX, kind)
        try:
            client.connect(path)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                report(error)
    print("OUT", client.recv(100))

# Makes the namespaces of these flags of unshare(2), one of them a user namespace, in which this is the same user.
def own_namespace(flags):
    user, group = os.geteuid(), os.getegid()
    call(libc.unshare(flags))
    for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)

def udp(address, port, family=socket.AF_INET, data=b"x" * 20):
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.settimeout(2)
    client.connect((address, port))
    client.send(data)
    print("OUT", client.recv(100))

def query(name, kind, kind_of_class=1, flags=0x100, extra=b""):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    return struct.pack("!6H", 7, flags, 1, 0, 0, int(extra != b"")) + labels + struct.pack("!2H", kind, kind_of_class) + extra

def dns(name, kind, address=SERVER, port=53):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(2)
    client.connect((address, port))
    client.send(query(name, kind))
    return client.recv(2000), query(name, kind)

# The server outside returns the query. The jail's name server has no data of these types, or does not answer.
def ask(packet):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(0.3)
    client.connect((SERVER, 53))
    client.send(packet)
    try:
        response = client.recv(5000)
    except TimeoutError:
        print("closed: no response")
        return
    has_data = len(response) >= 8 and response[6:8] != bytes(2)
    print("OUT" if response == packet or has_data else "closed", response)

# Opens each file to write, and writes nothing.
def open_to_write(paths):
    for path in paths:
        try:
            os.close(os.open(path, os.O_WRONLY))
            print("OUT", path)
        except OSError:
            pass
    print("closed")

# Sends bytes to a server, by TLS if there is a server name, and returns what it answers.
def http(host, request, port=None, tls=None, protocols=(), wait=1):
    connection = socket.create_connection((host, port or (443 if tls is not None else 80)), 2)
    if tls is not None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if protocols:
            context.set_alpn_protocols(protocols)
        connection = context.wrap_socket(connection, server_hostname=tls or None)
    connection.settimeout(wait)
    connection.sendall(request if isinstance(request, bytes) else request.encode())
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except OSError:
        pass
    return received.decode("latin-1")

# The HEADERS frame of an HTTP/2 request without a body, each field a literal of HPACK.
def h2_request(fields, stream=1):
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
    return struct.pack("!I", len(block) << 8 | 1) + b"\5" + struct.pack("!I", stream) + block

def h2(*requests, tls="a.test", host="a.test", wait=1):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    return http(host, preface + b"".join(requests), tls=tls, protocols=["h2"], wait=wait)

def fields(authority, path=b"/echo", method=b"GET", scheme=b"https", more=()):
    return [(b":method", method), (b":scheme", scheme), (b":path", path), (b":authority", authority), *more]

# `sign` is in the text only if a request that is not allowed was answered.
def judge(text, sign):
    print("OUT" if sign in text else "closed", repr(text))

# Builds a static program that connects to the server by its own system calls; returns its path.
def build_connector(directory):
    source = """
        #include <arpa/inet.h>
        #include <sys/socket.h>
        int main(void) {
            int client = socket(AF_INET, SOCK_STREAM, 0);
            struct sockaddr_in server = {AF_INET, htons(7000), {inet_addr("10.81.0.1")}};
            return connect(client, (void *)&server, sizeof server) ? 1 : 0;
        }
    """
    with open(directory + "/a.c", "w") as file:
        file.write(source)
    subprocess.run(["cc", "-static", "-o", directory + "/a", directory + "/a.c"], check=True)
    return directory + "/a"

def curl(*arguments):
    done = subprocess.run(["curl", "-sS", "--max-time", "10", *arguments], capture_output=True, text=True)
    return done.stdout + done.stderr

# Landlock scopes signals since Linux 6.12.
def require_signal_scope():
    if libc.syscall(444, None, 0, 1) < 6 and is_jailed():
        print("skipped: no Landlock with scopes in this kernel")
        sys.exit(0)

def is_jailed():
    return "PEERNAME_JAIL_TEST" in os.environ

# The kernel drops a signal without an error: the canary reports whether it arrived.
def outcome():
    return "closed: sent, and dropped" if is_jailed() else "OUT: sent"

# Joins the process group of the canary, and sends data to a socket that signals its owner. `own` makes the group the owner.
def in_group_of_victim(own):
    group = os.getpgid(VICTIM)
    if os.fork() == 0:
        try:
            if os.getpgrp() != group:
                os.setpgid(0, group)
            owned, sender = socket.socketpair()
            own(owned, group)
            fcntl.fcntl(owned, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(owned, fcntl.F_SETFL, os.O_ASYNC)
            sender.send(b"x")
            time.sleep(0.2)
            print(outcome(), flush=True)
        except OSError as error:
            print("closed", repr(error), flush=True)
        os._exit(0)
    os.wait()

# The process ids of mediators and interceptors, those of other jails included.
def processes_of_jail():
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if "peername" in read_or_nothing("/proc/%d/comm" % pid) and pid != os.getpid()]

def read_or_nothing(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""

# The kernel checks the capability first, so any other error is about the arguments: the call was permitted.
def permitted(result):
    number = ctypes.get_errno()
    is_refused = result < 0 and number in (errno.EPERM, errno.EACCES, errno.ENOSYS)
    print("closed" if is_refused else "OUT", result, os.strerror(number))

# Connects to a Unix socket again and again until `seconds` have passed, at least once, and reports the canary's greeting.
def connect_for(seconds, path):
    end = time.monotonic() + seconds
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(0.1)
        try:
            client.connect(path)
            client.setblocking(False)
            if client.recv(10) == b"hello":
                print("OUT", path)
        except OSError:
            pass
        if time.monotonic() >= end:
            return

def connect_by(address):
    client = socket.socket(socket.AF_UNIX)
    call(libc.connect(client.fileno(), address, len(address)))
    print("OUT", client.recv(10))
