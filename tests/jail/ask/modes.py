# Requests two hosts, with terminal modes in which typing an answer would edit it.
import subprocess, termios
modes = termios.tcgetattr(0)
modes[0] |= termios.IGNCR
modes[6][termios.VERASE] = b"n"
modes[6][termios.VKILL] = b"e"
termios.tcsetattr(0, termios.TCSANOW, modes)
for host in ("a.test", "b.test"):
    subprocess.run(["curl", "-sS", "--max-time", "15", f"https://{host}/echo"])
