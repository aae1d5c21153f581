"""The broker a test starts for itself, because it needs its process, its files or its address.

With PENTALOG_TEST_BOOTSTRAP set the tests are being checked against another broker; then Apache
Kafka stands in.
"""

from __future__ import annotations

import os
from pathlib import Path

import apache_kafka
import brokers

STANDS_IN = bool(os.environ.get("PENTALOG_TEST_BOOTSTRAP"))


def start(directory: Path, *, advertised: str | None = None) -> brokers.Broker:
    """Start the broker under test with its files below `directory`."""
    if STANDS_IN:
        settings = {"advertised.listeners": f"PLAINTEXT://{advertised}"} if advertised else {}
        return apache_kafka.start(directory, settings=settings)
    flags = ("--advertise", f"kafka={advertised}") if advertised else ()
    return brokers.start_pentalog(directory, arguments=flags)


def partition_directory(broker: brokers.Broker, topic: str, partition: int) -> Path:
    """Where the broker keeps the segments of one partition."""
    (found,) = broker.data.rglob(f"{topic}-{partition}")
    return found
