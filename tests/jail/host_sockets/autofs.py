# Mounts autofs at the path in the first argument, prints the requests for its directories, and runs jails by the binary in the
# second argument.
import ctypes, os, struct, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
point, jail = sys.argv[1:3]
reader, writer = os.pipe()
options = f"fd={writer},pgrp={os.getpgrp()},minproto=5,maxproto=5,indirect"
libc.mount(None, b"/", None, 0x4000 | 0x40000, None)
assert libc.mount(b"test", point.encode(), b"autofs", 0, options.encode()) == 0, ctypes.get_errno()
# This process group is the automounter's: it may make directories there.
os.mkdir(point + "/mounted")
assert libc.mount(b"tmpfs", (point + "/mounted").encode(), b"tmpfs", 0, None) == 0
with open(point + "/mounted/secret", "w") as file:
    file.write("SECRET")
control = os.open(point, os.O_RDONLY)

def answer():
    while True:
        packet = os.read(reader, 4096)
        token, = struct.unpack_from("I", packet, 8)
        length, = struct.unpack_from("I", packet, 40)
        print("outside: asked for", packet[44:44 + length].decode(), flush=True)
        import fcntl
        fcntl.ioctl(control, 0x9361, token)  # AUTOFS_IOC_FAIL

threading.Thread(target=answer, daemon=True).start()
lookup = "import os,sys; os.path.exists(sys.argv[1] + '/leak'); print('jail:', os.listdir(sys.argv[1])) if len(sys.argv) > 2 else None"
subprocess.run(["/usr/bin/python3", "-c", lookup, point], start_new_session=True)
subprocess.run([jail, "jail", "-q", "--", "/usr/bin/python3", "-c", lookup, point, "list"], start_new_session=True)
search = "import glob,sys; print('hidden:', [path for path in glob.glob(sys.argv[1] + '/**/secret', recursive=True)])"
temporary = os.environ.get("TMPDIR", "/tmp")
subprocess.run([jail, "jail", "-q", "--hide", point + "/mounted", "--", "/usr/bin/python3", "-c", search, temporary + "/peername-jail-*"], start_new_session=True)
os.chmod(os.path.dirname(point), 0o700)
user = ["setpriv", "--reuid=1", "--regid=1", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
subprocess.run([*user, jail, "jail", "-q", "--", "echo", "out of reach"], start_new_session=True)
