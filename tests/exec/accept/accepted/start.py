# Starts `peername exec` with an accepted connection, the listener on port 8443, or a UDP socket as descriptor 0 or 3, and prints its
# exit code and errors.
import socket, subprocess, sys
binary, mode, descriptor, ports, passed = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", 8443))
client = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
datagrams = socket.socket(type=socket.SOCK_DGRAM)
sockets = {"connection": accepted, "listener": listener, "datagrams": datagrams}
script = f'{"exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$;" if descriptor == "3" else ""} exec "$@"'
args = ["sh", "-c", script, "sh", binary, "exec", "--trust=any", "--mode=" + mode, "--ports=" + ports, "--", "true"]
ended = subprocess.run(args, stdin=sockets[passed], stderr=subprocess.PIPE, text=True)
print("exit", ended.returncode, ended.stderr)
