# Types into a shell that runs in a jail, and prints what it answers: job control, signals, exit code.
import os, pty, re, sys, time

pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])

text = ""

def wait(pattern):
    global text
    deadline = time.time() + 20
    while not re.search(pattern, text):
        if time.time() > deadline:
            print("waited in vain for", pattern, "in", repr(text))
            sys.exit(1)
        try:
            text += os.read(terminal, 4096).decode()
        except OSError:
            break

def type(line, pattern):
    global text
    text = ""
    os.write(terminal, line)
    wait(pattern)
    print(text)

wait(r"[$#] ")
type(b"sleep 50\n", r"sleep 50")
time.sleep(0.3)
type(b"\x1a", r"Stopped")
type(b"fg\n", r"sleep 50")
time.sleep(0.3)
type(b"\x03", r"[$#] ")
type(b"echo code $?\n", r"code 130")
type(b"sleep 60 & jobs\n", r"Running")
type(b"kill %1; wait; echo over\n", r"over\r\n")
os.write(terminal, b"exit 0\n")
_, status = os.waitpid(pid, 0)
print("done", os.waitstatus_to_exitcode(status))
