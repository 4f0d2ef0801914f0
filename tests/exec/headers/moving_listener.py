# Listens at a port that the kernel chooses, then with the same socket at port 8443, where it reports to each client its address.
import socket
listener = socket.socket()
listener.listen()
listener.settimeout(1)
socket.create_connection(listener.getsockname()).sendall(b'no header')
try:
    listener.accept()
    print('it has no header')
except OSError:
    print('refused')
listener.settimeout(None)
listener.shutdown(socket.SHUT_RDWR)
listener.bind(('10.81.0.1', 8443))
listener.listen()
while True:
    conn, peer = listener.accept()
    conn.sendall(b'%s %d\n' % (peer[0].encode(), peer[1]))
    conn.close()
