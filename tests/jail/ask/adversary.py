import fcntl, os, signal, subprocess, sys, termios, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
terminal = os.open("/dev/tty", os.O_RDWR)
curl = subprocess.Popen(["curl", "-sS", "https://a.test/echo"])
while os.tcgetpgrp(terminal) == os.getpgrp():
    time.sleep(0.01)
try:
    fcntl.ioctl(terminal, termios.TIOCSTI, b"a")
except OSError as error:
    print("typing failed:", error.errno, flush=True)
os.tcsetpgrp(terminal, os.getpgrp())
print("taken", flush=True)
sys.exit(curl.wait())
