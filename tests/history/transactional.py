"""One life of a transactional producer, as a process of its own so that it can really die.

It says what it is about to do before it does it, and what it was told as soon as it was told: one
JSON list per line on standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, Message, Producer

PATIENCE_S = 40.0
# Impatient, so that a run sees many tries in few seconds.
SETTINGS: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 2,
    "message.timeout.ms": int(PATIENCE_S * 1000),
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 3000,
    "log_level": 0,
}


class Life:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._topic: str = arguments.topic
        self._partitions: int = arguments.partitions
        self._name: str = arguments.name
        self._written: int = arguments.first
        self._is_last: bool = arguments.last
        self._choice = random.Random(arguments.seed)
        self._producer = Producer(
            {
                "bootstrap.servers": arguments.address,
                "transactional.id": self._name,
                "transaction.timeout.ms": 60_000,
                **SETTINGS,
            }
        )

    def run(self) -> None:
        insisting(lambda: self._producer.init_transactions(5))
        say("ready")
        while not self._is_last:
            self._transaction()

    def _transaction(self) -> None:
        planned = [
            (self._choice.randrange(self._partitions), f"{self._name}-{self._written + i}")
            for i in range(self._choice.randint(1, 12))
        ]
        self._written += len(planned)
        self._producer.begin_transaction()
        say("begin", planned)
        try:
            for partition, value in planned:
                self._producer.produce(
                    self._topic, value=value, partition=partition, on_delivery=answered
                )
                if self._choice.random() < 0.1:
                    self._producer.flush(0.05)
            if self._choice.random() < 0.75:
                say("committing")
                insisting(lambda: self._producer.commit_transaction(5))
                say("committed")
            else:
                self._abort()
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            self._abort()

    def _abort(self) -> None:
        flush_or_die(self._producer)
        insisting(lambda: self._producer.abort_transaction(5))
        say("aborted")


def answered(error: Any, message: Message) -> None:
    value = message.value()
    if error is None and value is not None:
        say("written", value.decode(), message.offset())


def flush_or_die(producer: Producer) -> None:
    """Nothing may be under way at an abort.

    This client gives the sequence numbers of records that it drops there to the next ones, even if
    the broker has the dropped ones already; then any broker takes the next ones for repetitions.
    """
    if producer.flush(10):
        say("died")
        os._exit(0)


def insisting(call: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
    """Call again while the client says that this is the thing to do."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise


def say(*words: object) -> None:
    # One write, unbuffered: what has been said is in the pipe even if we die now.
    os.write(1, json.dumps(words).encode() + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("address", "topic", "name"):
        parser.add_argument(name)
    for name in ("partitions", "seed", "first"):
        parser.add_argument(name, type=int)
    parser.add_argument("--last", action="store_true", help="only end what others left open")
    try:
        Life(parser.parse_args()).run()
    except KafkaException as failed:
        say("failed", failed.args[0].name(), str(failed.args[0]))
    sys.stdout.flush()
    # No cleaning up: a life that has failed is abandoned like one that was killed.
    os._exit(0)


if __name__ == "__main__":
    main()
