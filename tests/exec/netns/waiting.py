# A thread waits in accept(2). SIGUSR2 shuts the listener down, and the error of accept(2) is printed.
import errno, signal, socket, threading

listener = socket.create_server(("127.0.0.1", 8443))

def serve():
    try:
        while True:
            client, address = listener.accept()
            client.sendall(b"%s %d\n" % (address[0].encode(), address[1]))
            client.close()
    except OSError as error:
        print("accept:", errno.errorcode[error.errno])

threading.Thread(target=serve, daemon=True).start()
signal.signal(signal.SIGUSR2, lambda *_: listener.shutdown(socket.SHUT_RDWR))
print("serving")
while True:
    signal.pause()
