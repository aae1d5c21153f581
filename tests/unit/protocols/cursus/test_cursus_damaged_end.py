"""STREAM over a partition whose last records are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cursus_world import CursusBroker, Message, batch, frame, messages_of


@pytest.mark.timeout(300)
def test_a_stream_passes_over_a_damaged_end(tmp_path: Path) -> None:
    """It must not read the same place in every turn of the loop."""
    broker = CursusBroker(tmp_path)
    client = broker.connect()
    client.text("CREATE topic=orders partitions=1")
    client.publish(batch([Message(b"sound")], acks="-1"))
    client.publish(batch([Message(b"damaged")], acks="-1"))
    broker.close()
    (segment,) = (tmp_path / "orders-0").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"damaged", b"DAMAGED"))
    broker = CursusBroker(tmp_path)
    client, other = broker.connect(), broker.connect()
    client.feed(frame(b"STREAM topic=orders partition=0 group=g offset=0"))
    broker.step()
    assert [m.payload for f in client.frames() for m in messages_of(f)] == [b"sound"]
    other.publish(batch([Message(b"next")], acks="-1"))
    broker.step()
    assert [m.payload for f in client.frames() for m in messages_of(f)] == [b"next"]
    broker.close()
