"""Producers that write down what they tried and what they were told."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from tests.history.checker import Attempt, Fate, Written
from tests.history.transactional import PATIENCE_S, SETTINGS

_ROOT = Path(__file__).resolve().parents[2]
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_LIFE_VALUES = 1_000_000
"""Values each life may use up, so that no two lives write the same one."""


class Writer(threading.Thread):
    """What both kinds of producers have: attempts and complaints."""

    def __init__(self, address: str, topic: str, partitions: int, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.attempts: list[Attempt] = []
        self.complaints: list[str] = []
        self.address = address
        self.topic = topic
        self.partitions = partitions
        self.choice = random.Random(seed)
        self.stopping = threading.Event()

    def finish(self) -> None:
        self.stopping.set()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.complaints.append(f"broken: {self.name} ended with {error!r}")

    def work(self) -> None:
        raise NotImplementedError


class PlainWriter(Writer):
    """An idempotent producer without transactions, in a thread of this process."""

    def work(self) -> None:
        attempt = Attempt(self.name, transactional=False)
        self.attempts.append(attempt)
        errors: set[str] = set()
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                **SETTINGS,
                "error_cb": lambda error: errors.add(error.name()),
            }
        )
        while not self.stopping.is_set():
            for _ in range(self.choice.randint(1, 20)):
                self._write(producer, attempt)
            producer.poll(self.choice.uniform(0, 0.04))
            while len(producer) > 500 and not self.stopping.is_set():
                producer.poll(0.05)
        producer.flush(PATIENCE_S)
        unanswered = sum(record.fate is not Fate.ACKNOWLEDGED for record in attempt.records)
        if unanswered:
            self.complaints.append(
                f"refused: {unanswered} idempotent writes of {self.name}: {sorted(errors)}"
            )

    def _write(self, producer: Producer, attempt: Attempt) -> None:
        partition = self.choice.randrange(self.partitions)
        record = Written(partition, f"{self.name}-{len(attempt.records)}")
        attempt.records.append(record)

        def answered(error: Any, message: Message) -> None:
            if error is None:
                record.offset = message.offset()
                record.fate = Fate.ACKNOWLEDGED

        producer.produce(self.topic, value=record.value, partition=partition, on_delivery=answered)


class TransactionalWriter(Writer):
    """Lives of one transactional id: each is killed, or left behind half asleep, for the next."""

    def work(self) -> None:
        lives = 0
        asleep: _Life | None = None
        while not self.stopping.is_set():
            life = self._begun(lives)
            lives += 1
            if asleep is not None:
                # It wakes up after the next life has begun, and must find itself fenced.
                asleep.wake()
                asleep.end(after_s=2.0)
                asleep = None
            self.stopping.wait(self.choice.uniform(0.3, 3.0))
            if self.choice.random() < 0.3 and not self.stopping.is_set():
                life.sleep()
                asleep = life
            else:
                life.end()
        self._begun(lives, is_last=True).end()
        if asleep is not None:
            asleep.wake()
            asleep.end()

    def _begun(self, number: int, *, is_last: bool = False) -> _Life:
        life = _Life(self, number, ("--last",) if is_last else ())
        if not life.ready.wait(2 * PATIENCE_S):
            self.complaints.append(f"stuck: {self.name} could not begin its life {number}")
        return life


class _Life:
    """One process, and the thread that listens to it."""

    def __init__(self, writer: TransactionalWriter, number: int, options: tuple[str, ...]) -> None:
        self.ready = threading.Event()
        self._writer = writer
        self._has_slept = False
        self._records: dict[str, Written] = {}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.history.transactional"),
                *(writer.address, writer.topic, writer.name, str(writer.partitions)),
                *(str(writer.choice.randrange(1 << 30)), str(number * _LIFE_VALUES)),
                *options,
            ],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def sleep(self) -> None:
        self._has_slept = True
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self, *, after_s: float = 0.0) -> None:
        """Kill it, perhaps after giving it time to end by itself."""
        deadline = time.monotonic() + after_s
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()
        self._listener.join(PATIENCE_S)

    def _listen(self) -> None:
        attempt: Attempt | None = None
        committing = False
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                word, *rest = json.loads(line)
                match word:
                    case "ready":
                        self.ready.set()
                    case "begin":
                        attempt, committing = self._begin(rest[0]), False
                    case "written":
                        record = self._records[rest[0]]
                        record.offset, record.fate = rest[1], Fate.ACKNOWLEDGED
                    case "committing":
                        committing = True
                    case "committed" | "aborted":
                        assert attempt is not None
                        attempt.fate = Fate.ACKNOWLEDGED if word == "committed" else Fate.FAILED
                        attempt = None
                    case "failed":
                        self._failed(*rest)
        if attempt is not None and not committing:
            # Nobody asked for a commit, so there must never be one.
            attempt.fate = Fate.FAILED

    def _begin(self, planned: list[tuple[int, str]]) -> Attempt:
        records = [Written(partition, value) for partition, value in planned]
        self._records |= {record.value: record for record in records}
        attempt = Attempt(self._writer.name, transactional=True, records=records)
        self._writer.attempts.append(attempt)
        return attempt

    def _failed(self, name: str, text: str) -> None:
        if name in _FENCED and self._has_slept:
            return
        kind = "fenced, though nobody took its id" if name in _FENCED else "refused"
        self._writer.complaints.append(f"{kind}: {self._writer.name}: {text}")
