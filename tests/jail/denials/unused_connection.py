import socket, ssl, sys, time
client = socket.create_connection(("b.test", 443))
client = ssl._create_unverified_context().wrap_socket(client, server_hostname="b.test")
open(sys.argv[1], "w").close()
time.sleep(5)
