"""Consume, process, produce: copies a topic in transactions that also commit where it has read.

As a program it is one life of a copier; several of one group share the partitions.  The thread
here gives one copier its lives and takes them.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.history.transactional import SETTINGS, flush_or_die, insisting, say

GROUP = "copiers"
LIFE_PATIENCE_S = 6.0
"""Whoever sees no progress for so long gives way to its next life: this client waits for ever to
commit offsets, whatever its time limit, when a connection was lost at a bad moment."""
_ROOT = Path(__file__).resolve().parents[2]
_BATCH = 100
_CONSUMER: dict[str, Any] = {
    "group.id": GROUP,
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    # Eager: whoever gets a partition begins where the group has committed.
    "partition.assignment.strategy": "range",
    "session.timeout.ms": 1500,
    "heartbeat.interval.ms": 200,
    "fetch.wait.max.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 3000,
    "log_level": 0,
}


class Copier(threading.Thread):
    """Keeps one copier alive, except when it kills it."""

    def __init__(self, address: str, source: str, target: str, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.endings: list[str] = []
        """Why lives ended that nobody had killed."""
        self._arguments = [address, source, target, name]
        self._choice = random.Random(seed)
        self._peace = threading.Event()
        self._stopping = threading.Event()

    def leave_alone(self) -> None:
        """From now on nobody is killed, so that the copy can be finished."""
        self._peace.set()

    def finish(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.history.copier"),
                    *(*self._arguments, str(self._choice.randrange(1 << 30))),
                ],
                cwd=_ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ,
            )
            deadline = time.monotonic() + self._choice.uniform(1.0, 4.0)
            while process.poll() is None and not self._stopping.wait(0.05):
                if time.monotonic() > deadline and not self._peace.is_set():
                    break
            process.kill()
            said, _ = process.communicate()
            self.endings += said.decode().splitlines()


class Life:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._source: str = arguments.source
        self._target: str = arguments.target
        self._choice = random.Random(arguments.seed)
        where = {"bootstrap.servers": arguments.address}
        self._producer = Producer(
            {
                "transactional.id": arguments.name,
                "transaction.timeout.ms": 60_000,
                **where,
                **SETTINGS,
            }
        )
        self._consumer = Consumer({**where, **_CONSUMER})
        self._has_rebalanced = False

    def run(self) -> None:
        insisting(lambda: self._producer.init_transactions(5))
        self._consumer.subscribe(
            [self._source], on_assign=self._rebalanced, on_revoke=self._rebalanced
        )
        while True:
            batch = self._gathered()
            if batch:
                self._copy(batch)

    def _rebalanced(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_rebalanced = True

    def _gathered(self) -> list[Any]:
        """Some records, all read since the last rebalance."""
        batch: list[Any] = []
        self._has_rebalanced = False
        while len(batch) < _BATCH:
            message = self._consumer.poll(0.05)
            if self._has_rebalanced:
                # What was read before may be somebody else's now; it is read again if it is ours.
                batch.clear()
                self._has_rebalanced = False
            if message is None:
                break
            if message.error() is None:
                batch.append(message)
        return batch

    def _copy(self, batch: list[Any]) -> None:
        offsets = {one.partition(): one.offset() + 1 for one in batch}
        places = [TopicPartition(self._source, at, offset) for at, offset in offsets.items()]
        self._producer.begin_transaction()
        try:
            for one in batch:
                self._producer.produce(self._target, value=one.value(), partition=one.partition())
            member = self._consumer.consumer_group_metadata()
            self._insist(lambda: self._producer.send_offsets_to_transaction(places, member, 5))
            if self._choice.random() < 0.95:
                self._insist(lambda: self._producer.commit_transaction(5))
                return
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
        flush_or_die(self._producer)
        self._insist(lambda: self._producer.abort_transaction(5))
        self._start_over()

    def _insist(self, call: Callable[[], None]) -> None:
        watchdog = threading.Timer(LIFE_PATIENCE_S, os._exit, (0,))
        watchdog.daemon = True
        watchdog.start()
        try:
            insisting(call, LIFE_PATIENCE_S)
        finally:
            watchdog.cancel()

    def _start_over(self) -> None:
        """The next life begins where the group has committed; a seek may block for ever here."""
        self._consumer.close()
        say("ended", "aborted")
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("address", "source", "target", "name"):
        parser.add_argument(name)
    parser.add_argument("seed", type=int)
    try:
        Life(parser.parse_args()).run()
    except KafkaException as failed:
        # The next life goes on from what is committed, whatever it was.
        say("ended", str(failed.args[0]))
    os._exit(0)


if __name__ == "__main__":
    main()
