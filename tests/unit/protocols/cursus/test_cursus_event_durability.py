"""What clients are told of event streams whose newest events are not durable yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cursus_world import CursusBroker, frame

from pentalog.broker.log import COMMIT_WAIT_MS_MAX
from pentalog.log.flusher import JOURNAL_LANE, SYNC_LANE
from pentalog.model.types import Partition


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("STREAM_VERSION topic=es key=a", b"OK version=1"),
        ("READ_STREAM topic=es key=a", b'"count":1'),
        ("SAVE_SNAPSHOT topic=es key=a version=1 message=x", b"OK version=1"),
        ("APPEND_STREAM topic=es key=a version=1 message=y", b"version_conflict current=1"),
    ],
)
def test_a_version_is_told_when_its_event_is_durable(
    tmp_path: Path, question: str, answer: bytes
) -> None:
    """A power cut could take it back otherwise, and give its number to another event."""
    broker = CursusBroker(tmp_path)
    writer, other = broker.connect(), broker.connect()
    writer.text("CREATE topic=es partitions=1 event_sourcing=true")
    broker.runtime.held_lanes |= {JOURNAL_LANE, SYNC_LANE}
    writer.feed(frame(b"APPEND_STREAM topic=es key=a version=1 message=x"))
    other.feed(frame(question.encode()))
    broker.step()
    assert other.frames() == []
    broker.runtime.held_lanes.clear()
    broker.step()
    assert writer.frames()[0].startswith(b"OK version=1")
    assert answer in other.frames()[0]
    broker.close()


def test_a_version_that_cannot_be_synced_is_not_told(tmp_path: Path) -> None:
    broker = CursusBroker(tmp_path)
    writer, other = broker.connect(), broker.connect()
    writer.text("CREATE topic=es partitions=1 event_sourcing=true")
    broker.runtime.held_lanes |= {JOURNAL_LANE, SYNC_LANE}
    writer.feed(frame(b"APPEND_STREAM topic=es key=a version=1 message=x"))
    other.feed(frame(b"STREAM_VERSION topic=es key=a"))
    broker.advance(COMMIT_WAIT_MS_MAX)
    assert other.frames()[0].startswith(b"ERROR: broker_error")
    broker.runtime.held_lanes.clear()
    broker.step()
    broker.close()


def test_a_version_of_a_topic_deleted_meanwhile_is_not_told(tmp_path: Path) -> None:
    broker = CursusBroker(tmp_path)
    writer, other = broker.connect(), broker.connect()
    writer.text("CREATE topic=es partitions=1 event_sourcing=true")
    broker.runtime.held_lanes |= {JOURNAL_LANE, SYNC_LANE}
    writer.feed(frame(b"APPEND_STREAM topic=es key=a version=1 message=x"))
    other.feed(frame(b"STREAM_VERSION topic=es key=a"))
    broker.step()
    broker.store.delete(Partition("es", 0))
    broker.runtime.held_lanes.clear()
    broker.step()
    (answer,) = other.frames()
    assert answer.startswith(b"ERROR: partition_not_found")
    broker.close()
