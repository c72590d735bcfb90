"""Chromium without a window, driven over a pipe by its own protocol: no package, no port.

The protocol is JSON, each message ended by a null byte; Chromium reads descriptor 3 and writes 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FOUND = next(filter(None, map(shutil.which, NAMES)), None)
"""The browser of this machine; None without one."""

_WITHIN_S = 60.0

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)

_START = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for place, each in enumerate(pipes, start=3):
    os.dup2(each, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Gives the pipes the numbers that Chromium expects, and becomes Chromium."""


class Browser:
    """One window. Collects what pages report as errors and what they ask the network for."""

    def __init__(self, profile: Path) -> None:
        """
        Args:
            profile: an empty folder for its files.
        """
        assert FOUND is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [sys.executable, "-c", _START, str(to_browser), str(from_browser)]
        command += [FOUND, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    # -- what it shows ---------------------------------------------------------------------------

    def open(
        self, path: Path, *, width: int = 1200, scheme: str = "light", media: str = "screen"
    ) -> None:
        """Open a file in a window of this width, light or dark, on a screen or in print."""
        self._events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=path.absolute().as_uri())
        self._wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has drawn itself, so that it has done its scrolling."""
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.call("Runtime.evaluate", expression=frames, awaitPromise=True)

    def press(self, key: str) -> None:
        """Press and release a key, such as Tab or ArrowRight."""
        codes = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Enter": 13, "End": 35}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        """The whole page, to its end."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        made = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(made["data"]))

    @property
    def errors(self) -> list[str]:
        """What the page reported as an error since it was opened."""
        found = []
        for event in self._events:
            details = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(json.dumps(details["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning"):
                    found.append(json.dumps(details["args"]))
                case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
                    found.append(details["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened, itself included."""
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]

    # -- the protocol ----------------------------------------------------------------------------

    def call(self, method: str, /, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_for(self, method: str) -> None:
        if any(event["method"] == method for event in self._events):
            return
        while self._next().get("method") != method:
            pass

    def _next(self) -> dict[str, Any]:
        """The next message; events are kept as well."""
        give_up = time.monotonic() + _WITHIN_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, give_up - time.monotonic()))
            assert ready, f"{FOUND} did not answer within {_WITHIN_S:g} s"
            data = os.read(self._read, 1 << 20)
            assert data, f"{FOUND} ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message
