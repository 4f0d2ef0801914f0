# Makes a request that waits for an answer on the terminal. Tries to type that answer, and to take the terminal.
import fcntl, os, signal, subprocess, sys, termios, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
terminal = os.open("/dev/tty", os.O_RDWR)
curl = subprocess.Popen(["curl", "-sS", "https://a.test/echo"])
while os.tcgetpgrp(terminal) == os.getpgrp():
    time.sleep(0.01)
try:
    fcntl.ioctl(terminal, termios.TIOCSTI, b"a")
except OSError as error:
    # One write: between two of them, the question could be printed.
    os.write(1, b"typing failed: %d\n" % error.errno)
os.tcsetpgrp(terminal, os.getpgrp())
os.write(1, b"taken\n")
sys.exit(curl.wait())
