# Has a listener at all addresses for each device, which wait in accept(2) in the order of the arguments. Prints the device and
# the client of each connection.
import socket, sys, threading, time


def serve(device):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    listener.bind(("0.0.0.0", 8443))
    listener.listen()
    while True:
        client, (ip, port) = listener.accept()
        client.close()
        print(f"{device} accepted {ip}:{port}")


for device in sys.argv[1:]:
    threading.Thread(target=serve, args=[device]).start()
    time.sleep(0.3)
print("listening")
