"""Writes to the state topic, one batch after the other, by whoever owns it and nobody before him.

Every owner takes a newer epoch of one producer id, and the partition's leader refuses what comes
under an older one, however late it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pentalog.clients.kafka import messages
from pentalog.cluster import produce
from pentalog.cluster.fleet import ASKING, NODE_PATIENCE_MS, WRITING, Fleet
from pentalog.cluster.refusals import Lost, Refused, Trouble, check
from pentalog.cluster.steps import Steps
from pentalog.cluster.topics import NO_LEADER, ClusterTopics
from pentalog.model import batch, compression
from pentalog.model.errors import Overloaded
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Identity, Offset, Partition, Record
from pentalog.runtime import Runtime

TRANSACTIONAL_ID: Final = "pentalog-state"

_FIND_COORDINATOR: Final = 10
_INIT_PRODUCER_ID: Final = 22
_TRANSACTION_KEY: Final = 1
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_ACKS_ALL: Final = -1
_COMPRESSED_FROM_BYTES: Final = 64 << 10
_PAUSE_FIRST_MS: Final = 20
_PAUSE_MS_MAX: Final = 1_000
_WRITTEN: Final = (ErrorCode.none, ErrorCode.duplicate_sequence_number)


def identify(fleet: Fleet) -> Steps[Identity]:
    """A producer id and an epoch of it that is newer than any before."""
    doing = f"asking for an epoch of {TRANSACTIONAL_ID!r}"
    found = yield fleet.ask_any(
        _FIND_COORDINATOR, {"key": TRANSACTIONAL_ID, "key_type": _TRANSACTION_KEY}
    )
    check(doing, found.error_code, getattr(found, "error_message", None))
    link = fleet.required(fleet.node(found.node_id, ASKING), doing)
    answer: Any = yield link.ask(
        _INIT_PRODUCER_ID,
        {
            "transactional_id": TRANSACTIONAL_ID,
            "transaction_timeout": messages.ms(_TRANSACTION_TIMEOUT_MS),
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )
    check(doing, answer.error_code)
    return Identity(answer.producer_id, answer.producer_epoch)


class FencedWriter:
    """One producer in one epoch; the next batch is written when the one before is settled."""

    def __init__(
        self, fleet: Fleet, topics: ClusterTopics, runtime: Runtime, at: Partition, who: Identity
    ) -> None:
        self.who = who
        self._fleet = fleet
        self._topics = topics
        self._runtime = runtime
        self._at = at
        self._sequence = 0

    def write(self, records: Sequence[Record], may: Callable[[], bool]) -> Steps[Offset]:
        """Tried for as long as it `may` be; the offset behind what was written.

        Raises `Refused` if the cluster does not take it, `Overloaded` when it may no longer.
        """
        size = sum(len(record.value or b"") for record in records)
        data = batch.build(
            records,
            timestamp_ms=self._runtime.now_ms(),
            codec=compression.ZSTD if size >= _COMPRESSED_FROM_BYTES else compression.NONE,
            producer_id=self.who.producer_id,
            producer_epoch=self.who.epoch,
            base_sequence=self._sequence,
        )
        pause_ms = _PAUSE_FIRST_MS
        while may():
            try:
                base_offset = yield from self._send(data)
            except Trouble as trouble:
                if not trouble.retriable:
                    raise
            else:
                self._sequence = (self._sequence + len(records)) & produce.SEQUENCE_MAX
                return base_offset + len(records)
            yield self._fleet.sleep(pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
        raise Overloaded("this gateway owns the state no more: try again, another one will")

    def _send(self, data: bytearray) -> Steps[Offset]:
        doing = f"writing to {self._at}"
        try:
            leader = self._topics.leader(self._at)
            node = None if leader == NO_LEADER else self._fleet.node(leader, WRITING)
            link = self._fleet.required(node, doing)
            body = produce.request_body(
                [(self._at, data)], acks=_ACKS_ALL, timeout_ms=NODE_PATIENCE_MS
            )
            answer = yield link.exchange(produce.KEY, produce.VERSION, body)
            found, throttle_ms = produce.read_answer(answer)
            link.mute(throttle_ms)
            if len(found) != 1:
                raise Lost(f"{doing}: the answer is about {len(found)} partitions")
            if found[0].code not in _WRITTEN:
                raise Refused(doing, found[0].code)
        except Trouble:
            yield from self._topics.refresh(self._at.topic)
            raise
        return found[0].base_offset
