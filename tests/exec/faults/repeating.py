# Tells each client its address. Repeats accept(2) after each signal and each error, which it prints.
import errno, signal, socket, time

signal.signal(signal.SIGUSR1, lambda *_: None)
listener = socket.create_server(("10.81.0.1", 8443))
while True:
    try:
        connection, (ip, port) = listener.accept()
    except OSError as error:
        print(f"accept: {errno.errorcode[error.errno]}")
        time.sleep(0.02)
        continue
    connection.sendall(f"{ip}:{port}".encode())
    connection.close()
