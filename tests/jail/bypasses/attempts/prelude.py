import ctypes, errno, fcntl, os, socket, struct, subprocess, sys, time
SERVER, SERVER6 = "10.81.0.1", "fd81::1"
VICTIM = int(os.environ["VICTIM"])
# Of a System V segment of the canary.
SHARED_KEY = 0x70000000 + VICTIM
libc = ctypes.CDLL(None, use_errno=True)
socket.setdefaulttimeout(2)

def report(error):
    print("closed:", error)
    sys.exit(0)

# A program or file that is missing says nothing about the jail.
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

# Flags of unshare(2): a new user namespace, in which this is the same user, and others.
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

def dns(name, kind, address=SERVER, port=53):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!2H", kind, 1)
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(2)
    client.connect((address, port))
    client.send(query)
    return client.recv(2000), query

def curl(*arguments):
    done = subprocess.run(["curl", "-sS", "--max-time", "10", *arguments], capture_output=True, text=True)
    return done.stdout + done.stderr
