"""A FUSE file system with one file, `denied`. While the file GATE exists it answers no request, like an NFS server that is gone.

usage: hanging_file.py DIRECTORY CONTENT GATE"""

import ctypes
import errno
import os
import stat
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, BATCH_FORGET = 1, 2, 3, 14, 15, 18, 25, 26, 42
ROOT, FILE = 1, 2

directory, content, gate = sys.argv[1:]
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"fuse", directory.encode(), b"fuse.test", 0, options.encode()):
    raise OSError(ctypes.get_errno(), "mount(2)")
print("mounted", flush=True)


def attributes(node):
    status = os.stat(content)
    seconds = [int(status.st_atime), int(status.st_mtime), int(status.st_ctime)]
    nanoseconds = [time % 10**9 for time in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)]
    mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o644
    size = 0 if node == ROOT else status.st_size
    return struct.pack("<6Q10I", node, size, 1, *seconds, *nanoseconds, mode, 1, 0, 0, 0, 4096, 0)


def answer(operation, node, body):
    if operation == INIT:
        return struct.pack("<IIIIHHIIHH8I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
    if operation == LOOKUP:
        if body.rstrip(b"\0") != b"denied":
            return errno.ENOENT
        return struct.pack("<QQQQII", FILE, 0, 0, 0, 0, 0) + attributes(FILE)
    if operation == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if operation == OPEN:
        return struct.pack("<QII", 0, 0, 0)
    if operation == READ:
        offset, size = struct.unpack_from("<QI", body, 8)
        with open(content, "rb") as file:
            return file.read()[offset : offset + size]
    return b"" if operation in (RELEASE, FLUSH) else errno.ENOSYS


while True:
    try:
        request = os.read(fuse, 1 << 17)
    except OSError as error:
        if error.errno == errno.ENODEV:
            sys.exit()
        continue
    _, operation, unique, node = struct.unpack_from("<IIQQ", request)
    if operation in (FORGET, BATCH_FORGET):
        continue
    while os.path.exists(gate):
        time.sleep(0.05)
    reply = answer(operation, node, request[40:])
    error, payload = (-reply, b"") if isinstance(reply, int) else (0, reply)
    os.write(fuse, struct.pack("<IiQ", 16 + len(payload), error, unique) + payload)
