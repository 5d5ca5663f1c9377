"""A real Chromium without a window, driven by the DevTools protocol over two pipes.

Source: chromedevtools.github.io/devtools-protocol; messages on the pipes (file descriptors 3 and 4
of the browser) are JSON, each ended by NUL.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from loadtests.errors import LoadtestError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60.0
Message = dict[str, Any]


class Browser:
    """One browser; tabs are made with ``page``. Safe for one thread."""

    def __init__(self, writing: int, reading: int) -> None:
        self._writing = writing
        self._ids = count(1)
        self._changed = threading.Condition()  # guards what follows
        self._answers: dict[int, Message] = {}
        self._events: list[Message] = []
        self._ended = False
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def _read(self, reading: int) -> None:
        held = b""
        while data := os.read(reading, 1 << 16):
            *messages, held = (held + data).split(b"\0")
            with self._changed:
                for raw in messages:
                    message = json.loads(raw)
                    if "id" in message:
                        self._answers[message["id"]] = message
                    else:
                        self._events.append(message)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def call(self, method: str, session: str | None = None, **params: Any) -> Message:
        """The result of a command. Raises: LoadtestError with the browser's words."""
        number = next(self._ids)
        message: Message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        with self._changed:
            there = self._changed.wait_for(
                lambda: number in self._answers or self._ended, TIMEOUT_S
            )
            answer = self._answers.pop(number, None)
        if not there or answer is None:
            raise LoadtestError(f"the browser did not answer {method}")
        if "error" in answer:
            raise LoadtestError(f"{method}: {answer['error']['message']}")
        result: Message = answer["result"]
        return result

    def events(self, session: str, method: str) -> list[Message]:
        """The parameters of events of a tab so far."""
        with self._changed:
            return [
                one["params"]
                for one in self._events
                if one.get("sessionId") == session and one["method"] == method
            ]

    def page(self, *, width: int = 1200, height: int = 900) -> Page:
        """A new tab in a profile of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        made = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        target = made["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self.session = session
        self._context = context

    def close(self) -> None:
        """Ends the tab and forgets its profile."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **params: Any) -> Message:
        """As of Browser, for this tab."""
        return self._browser.call(method, self.session, **params)

    def events(self, method: str) -> list[Message]:
        """The parameters of this tab's events so far."""
        return self._browser.events(self.session, method)

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Give the tab a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def prefer(self, scheme: str) -> None:
        """What the system prefers: "dark" or "light"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def go(self, url: str) -> None:
        """Open an address; returns when it is loaded."""
        before = len(self.events("Page.loadEventFired"))
        error = self.call("Page.navigate", url=url).get("errorText")
        if error:
            raise LoadtestError(f"{url}: {error}")
        self.wait(lambda: len(self.events("Page.loadEventFired")) > before, f"{url} loads")

    def run(self, script: str) -> Any:
        """The value of an expression, awaited. Raises: LoadtestError if it throws."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise LoadtestError(f"{script[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true. One that throws is not true yet."""
        tried = f"(() => {{ try {{ return !!({script}); }} catch {{ return false; }} }})()"
        self.wait(lambda: self.run(tried), script)

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds. Raises: LoadtestError."""
        ends_s = time.monotonic() + TIMEOUT_S
        pause = threading.Event()
        while not holds():
            if time.monotonic() > ends_s:
                raise LoadtestError(f"the page did not come to: {what}\n{self.text()[:2000]}")
            pause.wait(0.02)

    def text(self) -> str:
        """All that can be read."""
        return str(self.run("document.body.innerText"))

    def press(self, key: str, code: str = "", text: str = "") -> None:
        """Press a key, as of KeyboardEvent.key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, text=text)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        return [one["request"]["url"] for one in self.events("Network.requestWillBeSent")]

    def problems(self) -> list[str]:
        """Errors and warnings of the console, refusals by policy among them."""
        logged = [one["entry"] for one in self.events("Log.entryAdded")]
        thrown = self.events("Runtime.exceptionThrown")
        return [
            *(f"{one['level']}: {one['text']} {one.get('url', '')}" for one in logged),
            *(str(one["exceptionDetails"].get("exception", one)) for one in thrown),
        ]


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """A running browser, ended with all its processes. Raises: LoadtestError without one."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise LoadtestError("needs Debian's chromium")
    to_browser, writing = os.pipe()
    reading, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="lodefs-chromium-", ignore_cleanup_errors=True) as home:
        command = [
            program,
            "--headless=new",
            "--no-sandbox",  # of root; what it opens is ours
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={home}",
            *arguments,
        ]
        # the browser expects its pipes at 3 and 4
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": home},
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            browser = Browser(writing, reading)
            browser.call("Browser.getVersion")
            yield browser
            browser.call("Browser.close")
        finally:
            os.close(writing)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
