"""Opens a page in headless Chromium, waits until a JavaScript expression is true, prints the DOM as JSON.

Usage: browser.py URL EXPRESSION [SCREENSHOT.png]

It drives Chromium by the DevTools protocol over a pipe. The option --dump-dom would wait for the end of the page's event
stream, which never comes.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time

LIMIT = 60  # seconds
# Chromium reads commands from descriptor 3 and writes answers to 4 (--remote-debugging-pipe).
START = """TMPDIR="$1" exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
--disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe \
--user-data-dir="$1" --window-size=1280,1000 about:blank 3<&"$2" 4>&"$3" 2>/dev/null"""


class DevTools:
    def __init__(self, directory):
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()
        self.browser = subprocess.Popen(
            ["bash", "-c", START, "bash", directory, str(to_browser), str(from_browser)],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.received = b""
        self.session = {}
        self.events = []
        self.last = 0

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params, **self.session}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        while b"\0" not in self.received:
            piece = os.read(self.answers, 1 << 16)
            assert piece, "Chromium has ended"
            self.received += piece
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]
        return result.get("value")


def main(url, expression, screenshot=None):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        tools = DevTools(directory)
        try:
            target = tools.call("Target.createTarget", url="about:blank")["targetId"]
            session = tools.call("Target.attachToTarget", targetId=target, flatten=True)
            tools.session = {"sessionId": session["sessionId"]}
            tools.call("Log.enable")
            tools.call("Runtime.enable")
            tools.call("Page.enable")
            tools.call("Page.navigate", url=url)
            end = time.monotonic() + LIMIT
            is_true = False
            while not is_true and time.monotonic() < end:
                time.sleep(0.1)
                is_true = tools.evaluate(expression) is True
            if screenshot:
                image = tools.call("Page.captureScreenshot", format="png")
                with open(screenshot, "wb") as file:
                    file.write(base64.b64decode(image["data"]))
            errors = [
                event["params"]
                for event in tools.events
                if event.get("method") == "Runtime.exceptionThrown"
                or event.get("method") == "Log.entryAdded"
                and event["params"]["entry"]["level"] == "error"
            ]
            seen = {
                "is_true": is_true,
                "errors": errors,
                "text": tools.evaluate("document.body.innerText"),
                "html": tools.evaluate("document.body.outerHTML"),
            }
            print(json.dumps(seen))
        finally:
            tools.browser.kill()
            tools.browser.wait()


main(*sys.argv[1:])
