"""Headless Chromium, driven over its DevTools pipe, with a log of its errors.

No driver and no port: commands and events are JSON with a NUL after each, on descriptors 3 and 4, and the browser ends
when they close. Every wait has a deadline.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import patience, wait_until

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
    *("--disable-extensions", "--no-default-browser-check", "--remote-debugging-pipe"),
)
START = "import os, sys; [os.dup2(int(sys.argv[i]), i + 2) for i in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
DEADLINE = 20.0  # seconds for one answer of an idle machine


class Browser:
    """One Chromium. Raises TimeoutError for an answer that does not come, RuntimeError for a refused command."""

    def __init__(self, program: str, folder: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # out of the way of 3 and 4, which START is about to fill
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, answers)]
        os.close(commands)
        os.close(answers)
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, high), program, *FLAGS, f"--user-data-dir={folder}"],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in high:
            os.close(end)
        self._rest = b""
        self._last = 0
        self.deadline = patience(DEADLINE)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come first are kept."""
        number = self._send(method, session, parameters)
        end = time.monotonic() + self.deadline
        while True:
            answer = self._next(end, method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _send(self, method: str, session: str, parameters: dict[str, Any]) -> int:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        return self._last

    def wait(self, event: str, session: str) -> None:
        """Wait until `event` of `session` has come, now or before."""
        end = time.monotonic() + self.deadline
        while not any(e["method"] == event and e.get("sessionId") == session for e in self.events):
            self._next(end, event)

    def _next(self, end: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not ready:
                raise TimeoutError(f"{method}: no answer within {self.deadline:g} s")
            if not chunk:
                raise RuntimeError(f"{method}: the browser is gone, exit status {self._process.wait(5)}")
            self._rest += chunk
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        if message.get("method") == "Page.javascriptDialogOpening":  # else its page waits for a person
            self._send("Page.handleJavaScriptDialog", message["sessionId"], {"accept": False})
        return message

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(5)


@contextlib.contextmanager
def started(program: str, folder: Path) -> Iterator[Browser]:
    browser = Browser(program, folder)
    try:
        yield browser
    finally:
        browser.close()


@dataclass
class Tab:
    """One page in a browser; `url` is the only address that it may ask for, or any address below `home`."""

    browser: Browser
    url: str
    session: str = ""
    target: str = field(default="", repr=False)
    home: str = ""

    def open(self, width: int, height: int, *, dark: bool = False, fragment: str = "", script: bool = True) -> Tab:
        """Load the page at this size and wait until it is there; without `script` its own scripts do not run."""
        self.target = self.browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page", "Audits"):
            self.do(f"{domain}.enable")
        if not self.home:  # each request of a page is logged, and fails at once
            limits = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
            self.do("Network.emulateNetworkConditions", offline=True, **limits)
        phone = width < 600
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self.do("Emulation.setScriptExecutionDisabled", value=not script)
        self.do("Page.navigate", url=self.url + fragment)
        self.browser.wait("Page.loadEventFired", self.session)
        if script:
            self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
        return self

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise's once it is kept. An exception is raised here."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the left button in the middle of the element, as a person would."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        left, top, width, height = self.evaluate(
            f"(({{x, y, width, height}}) => [x, y, width, height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        where = {"x": left + width / 2, "y": top + height / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def enter(self) -> None:
        """Press the Enter key."""
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13)

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.do("Input.insertText", text=text)

    def choose(self, selector: str, text: str) -> None:
        """Choose the entry of a menu that reads so."""
        menu = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{menu}.value = [...{menu}.options].find((item) => item.text === {json.dumps(text)}).value")
        self.evaluate(f"{menu}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        wait_until(lambda: bool(self.evaluate(expression)), DEADLINE, expression)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        answer = self.do("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def troubles(self) -> list[str]:
        """Errors of the page: console, exceptions, policy violations, requests, and a page wider than its window."""
        problems = [
            text for event in self.browser.events if event.get("sessionId") == self.session for text in self._bad(event)
        ]
        wide, room = self.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        return problems + ([f"overflow: the page is {wide} px wide in a window of {room} px"] if wide > room else [])

    def _bad(self, event: dict[str, Any]) -> Iterator[str]:
        seen = event.get("params", {})
        match event["method"]:
            case "Runtime.consoleAPICalled":
                yield f"console {seen['type']}: {[argument.get('value') for argument in seen['args']]}"
            case "Log.entryAdded" if seen["entry"]["level"] in {"warning", "error"}:
                yield f"log: {seen['entry']['text']}"
            case "Runtime.exceptionThrown":
                yield f"exception: {seen['exceptionDetails'].get('exception', {}).get('description')}"
            case "Audits.issueAdded":
                yield f"issue: {seen['issue']['code']} {json.dumps(seen['issue']['details'])[:300]}"
            case "Page.javascriptDialogOpening":
                yield f"dialog: {seen['message']}"
            case "Network.requestWillBeSent" if not self._own(seen["request"]["url"]):
                yield f"request: {seen['request']['url']}"
            case "Network.webSocketCreated":
                yield f"request: {seen['url']}"
            case "Page.frameNavigated" if not self._own(seen["frame"]["url"]):
                yield f"navigated: {seen['frame']['url']}"

    def _own(self, url: str) -> bool:
        at_home = bool(self.home) and url.removeprefix("blob:").startswith(self.home)
        return at_home or url.startswith("data:") or url.partition("#")[0] == self.url or url == "about:blank"

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)
