"""Announces COUNT containers to an agent, and keeps them. Each is a thread with a seccomp filter of its own, which allows all calls.
usage: many_containers.py SOCKET COUNT"""
import ctypes
import json
import os
import socket
import struct
import sys
import threading
import time

libc = ctypes.CDLL(None)
seccomp = 277 if os.uname().machine == "aarch64" else 317
allow = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000))
program = struct.pack("HxxxxxxP", 1, ctypes.addressof(allow))
announced = threading.Semaphore(0)


def announce(number):
    # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER
    listener = libc.syscall(seccomp, 1, 8, program)
    message = {"fds": ["seccompFd"], "state": {"id": f"many-{number}"}}
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(sys.argv[1])
        socket.send_fds(agent, [json.dumps(message).encode()], [listener])
        # The agent closes the connection.
        agent.recv(1)
    os.close(listener)
    announced.release()
    time.sleep(60)


# PR_SET_NO_NEW_PRIVS
libc.prctl(38, 1, 0, 0, 0)
for number in range(int(sys.argv[2])):
    threading.Thread(target=announce, args=[number], daemon=True).start()
    announced.acquire()
print("announced", flush=True)
time.sleep(60)
