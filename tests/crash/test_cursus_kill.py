"""kill -9 a broker while Cursus producers with acks 0, 1 and -1 share one partition.

Afterwards offsets have no gap, everything acknowledged is where it was said to be, idempotent
producers have each message once however often they sent it, and versions of aggregates go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from tests.support.cursus_world import Message, batch, messages_of
from tests.support.victims import Victim

CYCLES = int(os.environ.get("PENTALOG_CYCLES", "200" if "PENTALOG_TORTURE" in os.environ else "8"))
SEED = int(os.environ.get("PENTALOG_SEED", str(random.randrange(1 << 30))))
TOPIC = "killed"

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 10 * CYCLES)]


class Wire:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def close(self) -> None:
        self._socket.close()

    def ask(self, body: bytes) -> bytes:
        self._socket.sendall(struct.pack(">I", len(body)) + body)
        (size,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self._socket.recv(size - len(got))
            if not piece:
                raise EOFError
            got += piece
        return got


class Writer:
    """Numbers its messages, and sends a batch again until it is answered."""

    def __init__(self, victim: Victim, name: str, acks: str, *, idempotent: bool) -> None:
        self.name = name
        self.acks = acks
        self.idempotent = idempotent
        self.told: dict[int, int] = {}
        """Offset to number, of the last message of each acknowledged batch."""
        self.sent = 0
        self.flaws: list[str] = []
        self._victim = victim
        self._stop = threading.Event()
        self._dice = random.Random(f"{SEED}{name}")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        wire: Wire | None = None
        while not self._stop.is_set():
            count = self._dice.randrange(1, 20)
            body = self._batch(self.sent + 1, count)
            answered = False
            while not answered:
                try:
                    wire = wire or Wire(self._victim.port)
                    answer = json.loads(wire.ask(body))
                    answered = True
                except (OSError, EOFError):
                    if wire is not None:
                        wire.close()
                    wire = None
                    time.sleep(0.01)
            if answer["status"] != "OK":
                self.flaws.append(answer["error"])
                return
            self.told[answer["last_offset"]] = self.sent + count
            self.sent += count
            time.sleep(self._dice.uniform(0, 0.003))
        if wire is not None:
            wire.close()

    def _batch(self, first: int, count: int) -> bytes:
        messages = [
            Message(
                f"{self.name}:{number}".encode(), seq=number, producer=self.name.encode(), epoch=1
            )
            for number in range(first, first + count)
        ]
        return batch(messages, topic=TOPIC, acks=self.acks, idempotent=self.idempotent)


class Appender:
    """Adds events to one aggregate; a conflict tells that the last one had arrived."""

    def __init__(self, victim: Victim) -> None:
        self.version = 0
        self.flaws: list[str] = []
        self._victim = victim
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        wire: Wire | None = None
        unsure = False
        while not self._stop.is_set() or unsure:
            following = self.version + 1
            command = f"APPEND_STREAM topic=events key=a version={following} message={following}"
            try:
                wire = wire or Wire(self._victim.port)
                answer = wire.ask(command.encode()).decode()
            except (OSError, EOFError):
                if wire is not None:
                    wire.close()
                wire, unsure = None, True
                time.sleep(0.01)
                continue
            arrived = answer == f"ERROR: version_conflict current={following} expected={following}"
            if not answer.startswith(f"OK version={following} ") and not (arrived and unsure):
                self.flaws.append(answer)
                return
            self.version, unsure = following, False
        if wire is not None:
            wire.close()


def read_all(port: int, topic: str) -> list[Message]:
    wire = Wire(port)
    found: list[Message] = []
    while True:
        offset = found[-1].offset + 1 if found else 0
        command = f"CONSUME topic={topic} partition=0 offset={offset} member=m wait_ms=300"
        messages = messages_of(wire.ask(command.encode()))
        if not messages:
            break
        found += messages
    wire.close()
    return found


def test_kill_under_mixed_acks(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    victim = Victim(tmp_path, "cursus")
    victim.start()
    wire = Wire(victim.port)
    assert wire.ask(f"CREATE {TOPIC} 1".encode()).startswith(b"OK")
    created = wire.ask(b"CREATE topic=events partitions=1 event_sourcing=true")
    assert created.startswith(b"OK")
    wire.close()
    writers = [
        Writer(victim, "none", "0", idempotent=False),
        Writer(victim, "one", "1", idempotent=False),
        Writer(victim, "sure", "1", idempotent=True),
        Writer(victim, "surest", "-1", idempotent=True),
    ]
    appender = Appender(victim)
    victim.die_often(CYCLES, chance, lambda: min(writer.sent for writer in writers), more=5)
    for thread in (*writers, appender):
        thread.finish()
        assert not thread.flaws
    victim.kill()
    victim.start()
    with contextlib.closing(Wire(victim.port)) as last:
        version = last.ask(b"STREAM_VERSION topic=events key=a")
    found = read_all(victim.port, TOPIC)
    events = read_all(victim.port, "events")
    victim.kill()
    _check(writers, found)
    assert version == f"OK version={appender.version}".encode()
    assert [event.version for event in events] == list(range(1, appender.version + 1))


def _check(writers: list[Writer], found: list[Message]) -> None:
    assert [message.offset for message in found] == list(range(len(found)))
    payloads = {message.offset: message.payload.decode() for message in found}
    for writer in writers:
        if writer.acks != "0":
            lost = {
                offset: number
                for offset, number in writer.told.items()
                if payloads.get(offset) != f"{writer.name}:{number}"
            }
            assert not lost
        numbers = [
            int(payload.split(":")[1])
            for payload in payloads.values()
            if payload.startswith(f"{writer.name}:")
        ]
        if writer.idempotent:
            assert numbers == list(range(1, writer.sent + 1))
        else:
            assert set(numbers) == set(range(1, writer.sent + 1))
