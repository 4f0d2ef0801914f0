# Follows server.py: takes a ready connection and confirms it too late.
own, client = listen_with_ready_connection()
kept = request(b"T", own)
kept.settimeout(10)
assert kept.recv(1) == b"+"
print("at once:", "a connection" if take(own) else "nothing")
time.sleep(1.5)
try:
    kept.send(b"!")
    print("confirmed")
except BrokenPipeError:
    print("too late")
print("later:", "a connection" if take(own) else "nothing")
time.sleep(60)
