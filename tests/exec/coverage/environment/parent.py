# Listens, and executes a child with an empty environment, which inherits the listener and accepts.
import ctypes, platform, socket, subprocess, sys
listener = socket.create_server(('10.81.0.1', 8443))
listener.set_inheritable(True)
child = '''
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, shown = listener.accept()
    asked = connection.getpeername()
    connection.sendall(f'{shown[0]}:{shown[1]} {asked[0]}:{asked[1]}\\n'.encode())
    connection.close()
'''
args = [sys.executable, '-c', child, str(listener.fileno())]
if sys.argv[1] == 'propagated':
    subprocess.run(args, env={}, close_fds=False)
else:
    number = {'x86_64': 59, 'aarch64': 221}[platform.machine()]
    args = (ctypes.c_char_p * 5)(*[arg.encode() for arg in args])
    ctypes.CDLL(None).syscall(number, args[0], args, None)
