#!/usr/bin/env python3
"""Records terminal sessions as SVG: docs/demo.svg and docs/jail.svg. Needs the package `rich`, curl and dig.

Usage: recordings.py PROGRAM. What is shown is what PROGRAM and the commands print when they are run here, with an origin on
loopback in place of a public one.
"""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100
SESSIONS = {
    "demo": ["peername demo"],
    "jail": [
        "peername jail --allow localhost:8081 -- curl -sS http://localhost:8081/",
        "peername jail --allow localhost:8081 -- curl -sS https://example.org/",
        "peername jail --allow localhost:8081 -- dig +short +time=2 +tries=1 TXT secret.example.com",
    ],
}


class Origin(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"Hello from the origin.\n")

    def log_message(self, *_):
        pass


def main(program: Path) -> None:
    origin = ThreadingHTTPServer(("127.0.0.1", 8081), Origin)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    path = f"{program.resolve().parent}:{os.environ['PATH']}"
    for name, commands in SESSIONS.items():
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w", encoding="utf-8"))
        for command in commands:
            console.print(Text(f"$ {command}", style="bold green"))
            console.print(Text(output(command, path)))
        console.save_svg(f"docs/{name}.svg", title=f"peername {name}", unique_id=name)


def output(command: str, path: str) -> str:
    """What the command prints to both streams, once all that it has started has ended."""
    done = subprocess.run(
        command, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30,
        env={"PATH": path, "HOME": os.environ["HOME"], "TERM": "xterm-256color"},
    )
    return done.stdout.rstrip("\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
