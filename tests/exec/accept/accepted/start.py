# Starts `peername exec` with one of `sockets` as descriptor 0, 3 (announced by LISTEN_FDS) or 5, and prints its exit code and errors.
# `foreign` is the listener, and `peername exec` in a network of its own.
import socket, subprocess, sys
binary, mode, descriptor, ports, passed = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", 8443))
client = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
datagrams = socket.socket(type=socket.SOCK_DGRAM)
bound = socket.socket()
bound.bind(("127.0.0.1", 8446))
sockets = {"connection": accepted, "outgoing": client, "listener": listener, "bound": bound, "datagrams": datagrams}
sockets["foreign"] = listener
move = {
    "0": "",
    "3": "exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$;",
    "5": "exec 5<&0 </dev/null;",
}
script = move[descriptor] + ' exec "$@"'
options = ["--trust=any", "--mode=" + mode, *(["--ports=" + ports] if ports else [])]
network = ["unshare", "--net"] if passed == "foreign" else []
args = [*network, "sh", "-c", script, "sh", binary, "exec", *options, "--", "true"]
ended = subprocess.run(args, stdin=sockets[passed], stderr=subprocess.PIPE, text=True)
print("exit", ended.returncode, ended.stderr)
