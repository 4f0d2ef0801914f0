# Accepts, beside a sequence of children without the library, each of which is started by a bare execve(2).
import ctypes, os, platform, socket, sys, threading
listener = socket.create_server(('10.81.0.1', 8443), backlog=128)
listener.set_inheritable(True)
code = '''
def serve(listener, times):
    for _ in range(times):
        connection, shown = listener.accept()
        asked = connection.getpeername()
        connection.sendall(f'{shown[0]}:{shown[1]} {asked[0]}:{asked[1]}\\n'.encode())
        connection.close()
'''
exec(code)
threading.Thread(target=serve, args=(listener, 10**9), daemon=True).start()
child = code + 'import socket, sys; serve(socket.socket(fileno=int(sys.argv[1])), 3)'
number = {'x86_64': 59, 'aarch64': 221}[platform.machine()]
args = [sys.executable, '-S', '-c', child, str(listener.fileno())]
args = (ctypes.c_char_p * 6)(*[arg.encode() for arg in args])
syscall = ctypes.CDLL(None).syscall
while True:
    pid = os.fork()
    if pid == 0:
        syscall(number, args[0], args, None)
        os._exit(127)
    os.waitpid(pid, 0)
