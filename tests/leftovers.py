#!/usr/bin/env python3
"""Runs a command, and fails if it leaves anything of its own behind: a process, a namespace, a rule, a table or a file.

usage: leftovers.py COMMAND [ARGUMENT...]

Orphans of the command become children of this process (PR_SET_CHILD_SUBREAPER), so each process that it has started is found,
whatever its environment, user or session, and no other program of the host. Temporary files are in a directory of the run,
which is removed with it. Elsewhere, what is new counts only if it has peername's name or number, and no running process uses it."""

import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
# How long servers may take to exit after the tests have ended, on a busy machine.
PATIENCE = 10
# How old the table of a killed supervisor has to be until it is removed (STALE_AFTER of crates/exec/src/table.rs), and a bit.
STALE_AFTER = 32
# peername's number in routing rules and routes (RTPROT, docs/routes.md).
PROTOCOL = "211"
FILES = ["/dev/shm/peername-*", "/run/peername*"]
# Locks of keepers that were killed: the next keeper removes them.
EXPECTED = {"file /run/peername-routes"}
LISTS = [
    ["ip", "-4", "rule", "list", "protocol", PROTOCOL],
    ["ip", "-6", "rule", "list", "protocol", PROTOCOL],
    ["ip", "-4", "route", "show", "table", "all", "proto", PROTOCOL],
    ["ip", "-6", "route", "show", "table", "all", "proto", PROTOCOL],
    ["nft", "list", "tables"],
]


def output(command):
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return []
    lines = (line.strip() for line in run.stdout.splitlines())
    return [line for line in lines if command[0] != "nft" or "peername" in line]


def outside():
    """What is in this host's namespaces: rules, tables, files, and namespaces that are mounted."""
    with open("/proc/self/mountinfo") as mounts:
        mount_points = [line.split()[4] for line in mounts if " - nsfs " in line]
    # A namespace without peername in its path is another program's.
    found = {f"namespace {path}" for path in mount_points if "peername" in path}
    for command in LISTS:
        found.update(f"{command[0]}: {line}" for line in output(command))
    for pattern in FILES:
        found.update(f"file {path}" for path in glob.glob(pattern))
    return found - EXPECTED


def is_used(entry):
    """Whether a running process has the file open or mapped: then the file is not left behind, but belongs to another run."""
    kind, _, path = entry.partition(" ")
    if kind != "file":
        return False
    for process in glob.glob("/proc/[0-9]*"):
        try:
            links = [os.readlink(fd) for fd in glob.glob(f"{process}/fd/*")]
            with open(f"{process}/maps") as maps:
                if path in links or any(line.rstrip().endswith(path) for line in maps):
                    return True
        except OSError:
            pass
    return False


def children(pid):
    own = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(path) as listed:
                own += [int(child) for child in listed.read().split()]
        except OSError:
            pass
    return own + [grandchild for child in own for grandchild in children(child)]


def describe(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as line:
        return f"process {pid}: " + line.read().replace(b"\0", b" ").decode(errors="replace").strip()


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def left_processes():
    """Waits for the processes of the run to exit, and ends those that do not."""
    deadline = time.monotonic() + PATIENCE
    while True:
        reap()
        left = children(os.getpid())
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    found = []
    for pid in left:
        try:
            found.append(describe(pid))
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return found


def remove_tables():
    """Starts `peername exec`, which removes the tables of killed supervisors: those of tests are killed with their namespaces."""
    program = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "debug", "peername")
    options = ["--mode", "notify", "--trust", "loopback", "--ports", "1"]
    deadline = time.monotonic() + STALE_AFTER
    while os.path.exists(program) and any(not is_used(f"file {path}") for path in glob.glob("/dev/shm/peername-*")):
        subprocess.run([program, "exec", *options, "--", "true"], stderr=subprocess.DEVNULL, timeout=30)
        if time.monotonic() > deadline:
            break
        time.sleep(1)


def run(command, temporary):
    child = subprocess.Popen(command, env={**os.environ, "TMPDIR": temporary})
    # Orphans are reaped meanwhile: a test may wait until a daemon is gone.
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = outside()
    temporary = tempfile.mkdtemp(prefix="peername-", dir="/tmp")
    os.chmod(temporary, 0o1777)
    code = run(sys.argv[1:], temporary)
    left = left_processes()
    remove_tables()
    left += sorted(entry for entry in outside() - before if not is_used(entry))
    shutil.rmtree(temporary, ignore_errors=True)
    for entry in left:
        print(f"test: left behind: {entry}", file=sys.stderr)
    sys.exit(code or (1 if left else 0))


main()
