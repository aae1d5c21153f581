"""A Java process with Kafka's own clients in it, driven from here line by line."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

import apache_kafka

SOURCES = Path(__file__).with_name("driver")
_COMPILED = Path(__file__).resolve().parents[2] / "build" / "java-driver"
TIMEOUT_S = 180.0
# Short-lived and small: start-up time counts, peak speed does not.
_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx256m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


class JavaError(Exception):
    """An exception of the Java client; `kind` is its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def compile_driver() -> Path:
    """The compiled driver; sources that were compiled here before are not compiled again."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise apache_kafka.JarsMissing("no javac found; install a Java 17 development kit")
    sources = sorted(SOURCES.glob("*.java"))
    jars = apache_kafka.jars()
    known = hashlib.sha256(f"{Path(compiler).resolve()} {jars}".encode())
    for source in sources:
        known.update(source.read_bytes())
    classes = _COMPILED / known.hexdigest()[:16]
    _COMPILED.mkdir(parents=True, exist_ok=True)
    with (_COMPILED / "lock").open("w") as lock:
        # Tests run in parallel; whoever comes first compiles, the others wait here.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists():
            draft = classes.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)
            _compile(compiler, jars, sources, draft)
            draft.rename(classes)
    return classes


def _compile(compiler: str, jars: Path, sources: Sequence[Path], folder: Path) -> None:
    command = [compiler, "-Xlint:all,-processing", "-Werror", "-cp", f"{jars}/*", "-d", folder]
    done = subprocess.run(
        [*command, *sources],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Jvm:
    """One Java process; any number of named clients live in it, each in a thread of its own."""

    def __init__(self, classes: Path, log: Path) -> None:
        java = shutil.which("java")
        assert java is not None
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [java, *_OPTIONS, "-cp", f"{classes}:{apache_kafka.jars()}/*", "driver.Driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ,
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Jvm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process without warning: all its clients die with it."""
        if self._log.closed:
            return
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # What is still buffered for a dead process cannot be flushed.
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def submit(self, client: str, what: str, given: Mapping[str, object]) -> Future[Any]:
        number = next(self._numbers)
        answer: Future[Any] = Future()
        line = json.dumps({"id": number, "client": client, "what": what, "given": given})
        assert self._process.stdin is not None
        with self._lock:
            self._waiting[number] = answer
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = json.loads(raw)
            with self._lock:
                answer = self._waiting.pop(line["id"])
            if "error" in line:
                answer.set_exception(JavaError(line["error"], line["text"]))
            else:
                answer.set_result(line["result"])
        with self._lock:
            for answer in self._waiting.values():
                answer.set_exception(JavaError("Gone", f"the process ended; see {self._log.name}"))
            self._waiting.clear()


class Client:
    """One client in a Java process."""

    def __init__(self, jvm: Jvm, name: str) -> None:
        self._jvm = jvm
        self.name = name

    def submit(self, what: str, **given: object) -> Future[Any]:
        """Ask without waiting; a space in the name of an argument is written as `_`."""
        named = {name.replace("_", " "): value for name, value in given.items()}
        return self._jvm.submit(self.name, what, named)

    def __call__(self, what: str, **given: object) -> Any:
        return self.submit(what, **given).result(TIMEOUT_S)


class Clients:
    """Opens clients of one broker in one Java process, and closes them at the end."""

    _numbers = itertools.count(1)

    def __init__(self, jvm: Jvm, address: str) -> None:
        self._jvm = jvm
        self._address = address
        self._open: list[Client] = []

    def open(self, kind: str, settings: Mapping[str, object]) -> Client:
        client = Client(self._jvm, f"{kind}-{next(Clients._numbers)}")
        all_settings = {
            "bootstrap.servers": self._address,
            "client.id": client.name,
            "reconnect.backoff.max.ms": 200,
            **settings,
        }
        client(f"open {kind}", settings=all_settings)
        self._open.append(client)
        return client

    def producer(self, **settings: object) -> Client:
        return self.open("producer", _dotted(settings))

    def consumer(self, **settings: object) -> Client:
        fast = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        if settings.get("group_protocol") != "consumer":
            fast |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
        return self.open("consumer", fast | _dotted(settings))

    def admin(self) -> Client:
        return self.open("admin", {"default.api.timeout.ms": 20_000, "request.timeout.ms": 15_000})

    def close(self, *clients: Client, **how: object) -> None:
        for client in clients:
            self._open.remove(client)
            client("close", **how)

    def close_all(self) -> None:
        closing = [client.submit("close") for client in self._open]
        self._open.clear()
        for one in closing:
            one.exception(TIMEOUT_S)


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def until(ask: Callable[[], Any], good: Callable[[Any], bool], timeout_s: float = 30.0) -> Any:
    """Ask again and again until the answer is good; gives the last answer either way.

    The caller asserts on what comes back, so that a failure shows what there was instead.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if good(answer) or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


def taken(consumer: Client, count: int, timeout_s: float = 30.0) -> list[Sequence[Any]]:
    """What a consumer has received, once that is `count` records or time is up."""
    found: list[Sequence[Any]] = []

    def more() -> list[Sequence[Any]]:
        found.extend(consumer("take"))
        return found

    return list(until(more, lambda have: len(have) >= count, timeout_s))
