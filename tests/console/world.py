"""A broker, a console as a process beside it, and a real browser in front."""

from __future__ import annotations

import array
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from tests.console.chromium import Chromium

import pentalog
from pentalog.clients.kafka import ClientOptions, Cluster
from pentalog.kernels import Cells, Producing, encode_rows
from pentalog.model import batch
from pentalog.model.types import Partition, Record
from pentalog.testing.ports import reserve_port

T = TypeVar("T")

PATIENCE_S = 120.0
BATCH_RECORDS = 8_000
VALUE_BYTES = 100


class ConsoleProcess:
    """`python -m pentalog.console` in front of a broker."""

    def __init__(self, broker: pentalog.Broker, *arguments: str) -> None:
        command = [
            *(sys.executable, "-m", "pentalog.console", "--listen", "127.0.0.1:0"),
            *("--servers", broker.address("kafka"), "--data", str(broker.data)),
            *("--http", broker.address("http"), "--with-parent", "--log-level", "warning"),
            *arguments,
        ]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.url = line.rpartition(" ")[2].strip()
        assert self.url.startswith("http"), f"{line!r}: {self.stop()}"

    def stop(self) -> str:
        """As a broker's end does it; returns what it complained of."""
        _, errors = self._process.communicate(timeout=30)
        return errors


class Browser:
    """One Chromium; waits for what it is asked for."""

    def __init__(self, chromium: Chromium, url: str, pictures: Path, *arguments: str) -> None:
        options = ChromeOptions()
        options.binary_location = chromium.browser
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
            "--window-size=1280,900", "--hide-scrollbars",
            # Chromium lowers the priority of pages in the background.
            "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows",
            "--disable-background-timer-throttling", *arguments,
        ):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # Left to itself, the service chooses a port that another process may take meanwhile.
        service = ChromeService(
            chromium.driver, port=reserve_port(), env={**os.environ, **chromium.environment}
        )
        self.driver = Chrome(options=options, service=service)
        self.url = url
        self._pictures = pictures
        self.complaints: list[str] = []
        self.foreign: set[str] = set()

    def close(self) -> None:
        self.driver.quit()

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)
        # Buttons work once the page has its connection to the console.
        self.until(lambda: self.run("return !!(window.socket && window.socket.connected)"), path)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def find(self, name: str, inside: str = "") -> WebElement:
        """The visible element that pages call so."""
        selector = f'[data-test="{name}"] {inside}'.strip()

        def look() -> WebElement | None:
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            return next((one for one in found if one.is_displayed()), None)

        return self.until(look, selector)

    def click(self, name: str, inside: str = "") -> None:
        self.until(lambda: self._clicked(name, inside), f"click on {name}")

    def _clicked(self, name: str, inside: str) -> bool:
        found = self.find(name, inside)
        # Not under the header, where a click would hit that.
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        if not found.is_enabled():  # until the console has seen what was typed, for example
            return False
        found.click()
        return True

    def type(self, name: str, text: str) -> None:
        self.until(lambda: self._typed(name, text), f"typing into {name}")

    def _typed(self, name: str, text: str) -> bool:
        field = self.find(name)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.DELETE)
        field.send_keys(text)
        return field.get_property("value") == text

    def text(self, name: str) -> str:
        return str(self.until(lambda: self.find(name).text, f"text of {name}", empty=True))

    def wait_text(self, name: str, *wanted: str, patience_s: float = PATIENCE_S) -> str:
        """Wait until an element shows all of these."""

        def look() -> str:
            text = self.text(name)
            return text if all(one in text for one in wanted) else ""

        return str(self.until(look, f"{wanted} in {name}", patience_s=patience_s))

    def until(
        self,
        ask: Callable[[], T | None],
        what: str,
        *,
        empty: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> T:
        """What `ask` gives once it gives anything; pages may change under its eyes."""
        deadline = time.monotonic() + patience_s
        last: object = None
        while time.monotonic() < deadline:
            try:
                last = ask()
                if last or (empty and last is not None):
                    return last  # type: ignore[return-value]
            except (StaleElementReferenceException, WebDriverException) as error:
                last = error
            time.sleep(0.05)
        shown = self.run("return document.body.innerText")[:2000]
        raise AssertionError(f"{what} did not come: {last!r}\n{shown}")

    def picture(self, name: str) -> Path:
        path = self._pictures / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path

    def look_at_logs(self) -> None:
        """Gather what the browser complained of, and whom it asked beside the console."""
        for entry in self.driver.get_log("browser"):
            self.complaints.append(f"{entry['level']}: {entry['message']}")
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            address = message["params"]["request"]["url"]
            if not address.startswith((self.url, "data:", "blob:", "chrome:")):
                self.foreign.add(address)


def client(broker: pentalog.Broker) -> Cluster:
    return Cluster(broker.address("kafka"), ClientOptions(client_id="tests"))


def write(cluster: Cluster, topic: str, *records: Record, partition: int = 0) -> int:
    """Append records; the offset of the first."""
    built = batch.build(records, timestamp_ms=int(time.time() * 1000))
    return cluster.produce(Partition(topic, partition), bytes(built))


def fill(cluster: Cluster, topic: str, count: int, needle: bytes) -> None:
    """So many records of 100 bytes, all alike but for the last one, which has the needle."""
    plain = b"x" * VALUE_BYTES
    last = needle + plain[len(needle) :]
    at = Partition(topic, 0)
    whole = bytes(encoded([plain] * BATCH_RECORDS))
    for _ in range((count - 1) // BATCH_RECORDS):
        cluster.produce(at, whole)
    rest = (count - 1) % BATCH_RECORDS
    cluster.produce(at, bytes(encoded([plain] * rest + [last])))


def encoded(values: list[bytes]) -> bytearray:
    """One batch without keys."""
    ends = array.array("i", [0])
    for value in values:
        ends.append(ends[-1] + len(value))
    cells = Cells(None, ends.tobytes(), b"".join(values), 0)
    times = array.array("q", [int(time.time() * 1000)] * len(values)).tobytes()
    count = len(values)
    found = encode_rows(
        None, cells, None, times, bytes(4 * count), count, bytearray(4), 1 << 20,
        Producing(-1, -1, 0),
    )  # fmt: skip
    assert len(found.batches) == 1
    return found.data
