"""A broker in a directory of its own, or in front of a cluster, and a connection to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cursus_world import Client, CursusBroker

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from cursus_gateway import CursusGateway

_INSIDE = "looks inside of the local engine"
_AT_ONCE = "counts what is answered in one turn, where a cluster has to be asked"
LOCAL_ONLY = {
    "test_a_topic_may_have_an_equals_sign": "Kafka has no such names",
    "test_nothing_is_served_while_the_answers_are_not_read": _AT_ONCE,
    "test_too_large_a_frame_ends_the_connection": _AT_ONCE,
    "test_only_so_many_are_kept": _AT_ONCE,
    "test_pages_are_made_only_while_there_is_room": _AT_ONCE,
    "test_acks_0_is_not_answered_where_nobody_reads": _AT_ONCE,
    "test_what_is_on_its_way_to_the_disk_is_waited_for": _INSIDE,
    "test_sequence_numbers_beyond_31_bits": _INSIDE,
    "test_batches_carry_the_number_of_this_door": _INSIDE,
    "test_records_that_vanish_under_a_reader": _INSIDE,
    "test_topics_are_listed_described_and_deleted": _INSIDE,
    "test_the_captured_conversation": "ends of transactions take offsets too",
    "test_of_two_at_once_one_wins": _INSIDE,
    "test_offsets_are_everybodys": _INSIDE,
    "test_a_transaction_of_kafka_is_isolated_here": _INSIDE,
    "test_offsets_become_real_with_the_transaction": _INSIDE,
    "test_an_abort_hides_for_ever": "Kafka shows aborted records to readers of uncommitted ones",
    "test_the_default_group_spans_topics": "a cluster's group has one epoch for all its topics",
    "test_records_too_large_to_give_back_are_refused": "the cluster says it in its own words",
}
"""Tests that are not run in front of a cluster, and why."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        local = metafunc.function.__name__ in LOCAL_ONLY
        engines = ["local"] if local else ["local", "cluster"]
        metafunc.parametrize("broker", engines, indirect=True)


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CursusBroker]:
    if request.param == "cluster":
        gateway = CursusGateway(tmp_path)
        yield gateway  # type: ignore[misc]  # speaks as one
        gateway.close()
        return
    opened = CursusBroker(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def client(broker: CursusBroker) -> Client:
    return broker.connect()
