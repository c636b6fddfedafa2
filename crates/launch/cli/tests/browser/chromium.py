"""A headless Chromium, driven through the pipe of its DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# Longer than any answer needs on a busy machine.
LIMIT_SECONDS = 60


class Chromium:
    """A browser that records every request."""

    def __init__(self):
        program = os.environ.get("RDZV_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
        assert program, "there is no chromium in PATH; install Debian's package `chromium`"
        self.profile = tempfile.mkdtemp(prefix="rdzv-chromium-")
        to_browser, self.writer = os.pipe()
        self.reader, from_browser = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
        flags += " --no-first-run --disable-background-networking --disable-component-update"
        shell = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, program, self.profile],
            pass_fds=[to_browser, from_browser], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.requests, self.errors = b"", 0, [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(LIMIT_SECONDS)
        os.close(self.reader)
        os.close(self.writer)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def next(self):
        end = time.monotonic() + LIMIT_SECONDS
        while b"\0" not in self.buffer:
            ready = select.select([self.reader], [], [], max(0, end - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            self.buffer += os.read(self.reader, 1 << 20)
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            case "Log.entryAdded" if message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.errors.append("a script opened a dialog")
        return message

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ["Page", "Network", "Runtime", "Log"]:
            page.call(f"{domain}.enable")
        page.call("Page.navigate", url=url)
        return page


class Page:
    """A page in the browser."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def value(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)[
            "result"
        ].get("value")

    def wait(self, script, seconds=LIMIT_SECONDS):
        """Waits until a script has a value that is true."""
        end = time.monotonic() + seconds
        while not (value := self.value(script)):
            assert time.monotonic() < end, f"{script}\n{self.value('document.body.innerText')}"
            select.select([], [], [], 0.1)
        return value

    def form(self, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
