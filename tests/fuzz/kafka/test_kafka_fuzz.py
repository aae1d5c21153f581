"""A short run of the fuzzer; `run.py` beside this does long ones."""

from __future__ import annotations

import gc
import logging

import pytest
from kafka_fuzz import fuzz

from pentalog.broker.groups import LocalGroups
from pentalog.broker.port import Broker
from pentalog.broker.state import State
from pentalog.broker.topics import LocalTopics
from pentalog.log.store import Store
from pentalog.protocols.kafka.session import KafkaSession


@pytest.mark.parametrize("seed", [1, 2])
def test_any_bytes_are_answered_or_end_the_connection(seed: int) -> None:
    logging.disable(logging.WARNING)
    try:
        run = fuzz(1500, seed)
    finally:
        logging.disable(logging.NOTSET)
    # A run that only hangs up, or never does, has not tested much.
    assert run.answers > 300
    assert run.hang_ups > 30


def test_brokers_leave_nothing_behind() -> None:
    """What grows with the number of brokers in one process is a leak, however small."""
    kinds = (Broker, KafkaSession, Store, LocalGroups, LocalTopics, State)

    def alive() -> int:
        gc.collect()
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    logging.disable(logging.WARNING)
    try:
        fuzz(50, 3)
        before = alive()
        fuzz(200, 4)
    finally:
        logging.disable(logging.NOTSET)
    assert alive() <= before
