"""kcat: a C program on an older librdkafka, as packaged by Debian."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from kafka_clients.event import TIMEOUT_S, Event, Read

# Neither occurs in test data; newline would end a record.
_BETWEEN_RECORDS = b"\x1e"
_BEFORE_VALUE = b"\x1f"
_ENVELOPE = re.compile(rb"\x1e(-?\d+) (-?\d+) (-?\d+) (-?\d+) ")


class Kcat:
    name = "kcat"

    def missing(self) -> str:
        return _missing()

    def expressible(self, event: Event) -> Event | None:
        """No timestamps; an empty key or value is null (-Z), headers cannot hold commas."""
        return Event(event.key or None, event.value or None, event.headers, None)

    def create_topic(
        self, address: str, topic: str, *, partitions: int, settings: Mapping[str, str]
    ) -> None:
        """It has no such command: asking for the topic's metadata makes the broker create it."""
        assert partitions == 1, "kcat gets the broker's default"
        assert not settings, "kcat cannot set any"
        _run(address, ["-L", "-t", topic, "-X", "allow.auto.create.topics=true"])

    def write(
        self, address: str, topic: str, events: Sequence[Event], *, codec: str, partition: int
    ) -> None:
        # Headers are an option of the process, so neighbours that share them go together.
        for headers, run in itertools.groupby(events, key=lambda event: event.headers):
            options = ["-P", "-t", topic, "-p", str(partition), "-Z"]
            options += ["-K", _BEFORE_VALUE.decode(), "-D", _BETWEEN_RECORDS.decode()]
            options += [
                "-X",
                "acks=all",
                "-X",
                "max.in.flight=1",
                "-X",
                f"compression.codec={codec}",
            ]
            for name, value in headers:
                options += ["-H", name if value is None else f"{name}={value.decode()}"]
            text = _BETWEEN_RECORDS.join(
                (event.key or b"") + _BEFORE_VALUE + (event.value or b"") for event in run
            )
            _run(address, options, text)

    def read(self, address: str, topic: str, *, partition: int, count: int) -> list[Read]:
        form = "\\x1e%o %T %K %S %k%s%h"
        options = ["-C", "-t", topic, "-p", str(partition), "-o", "beginning"]
        options += ["-c", str(count), "-e", "-q", "-f", form, "-X", "check.crcs=true"]
        return _parse(_run(address, options))

    def earliest(self, address: str, topic: str, partition: int) -> int:
        return self.at_time(address, topic, partition, -2)

    def latest(self, address: str, topic: str, partition: int) -> int:
        return self.at_time(address, topic, partition, -1)

    def at_time(self, address: str, topic: str, partition: int, timestamp_ms: int) -> int:
        text = _run(address, ["-Q", "-t", f"{topic}:{partition}:{timestamp_ms}"]).decode()
        found = re.search(rf"\[{partition}\] offset (-?\d+)", text)
        assert found is not None, text
        return int(found[1])


@functools.cache
def _missing() -> str:
    if shutil.which("kcat") is not None:
        return ""
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        subprocess.run(
            ["apt-get", "install", "-y", "kcat"],
            capture_output=True,
            timeout=300,
            check=False,
            env=os.environ,
        )
    if shutil.which("kcat") is not None:
        return ""
    return "kcat is not installed; `apt-get install kcat` provides it"


def _run(address: str, options: Sequence[str], text: bytes = b"") -> bytes:
    done = subprocess.run(
        ["kcat", "-b", address, *options],
        input=text,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _parse(text: bytes) -> list[Read]:
    """Undo the format string: lengths first, so that keys and values may hold anything."""
    found: list[Read] = []
    position = 0
    while position < len(text):
        envelope = _ENVELOPE.match(text, position)
        assert envelope is not None, text[position : position + 80]
        offset, timestamp_ms, key_size, value_size = map(int, envelope.groups())
        key, position = _piece(text, envelope.end(), key_size)
        value, position = _piece(text, position, value_size)
        end = text.find(_BETWEEN_RECORDS, position)
        end = len(text) if end < 0 else end
        found.append(Read(offset, Event(key, value, _headers(text[position:end]), timestamp_ms)))
        position = end
    return found


def _piece(text: bytes, position: int, size: int) -> tuple[bytes | None, int]:
    if size < 0:
        return None, position
    return text[position : position + size], position + size


def _headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    pairs = (pair.partition(b"=") for pair in text.split(b",")) if text else ()
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
