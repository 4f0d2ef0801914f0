# Follows server.py: tries to take a ready connection by a listener at the same address of another network namespace.
own, client = listen_with_ready_connection()
elsewhere = listen_elsewhere(own.getsockname())
elsewhere.setblocking(False)
print("elsewhere:", "a connection" if take(elsewhere) else "nothing")
print("here:", "a connection" if take(own) else "nothing")
time.sleep(60)
