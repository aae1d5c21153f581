"""Batches and offsets that become visible together: one transactional producer.

Batches come encoded, with this producer's id, epoch and sequences in them (`stamp` writes those);
offsets go to a group without members.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pentalog.clients.kafka import messages
from pentalog.clients.kafka.cluster import Cluster, by_topic
from pentalog.clients.kafka.connection import Connection, checked
from pentalog.clients.kafka.offsets import GROUP, GroupOffset, topics_committed
from pentalog.kernels import batch_header, crc32c
from pentalog.model.batch import TRANSACTIONAL
from pentalog.model.types import Offset, Partition

_INIT_PRODUCER_ID: Final = 22
_ADD_PARTITIONS_TO_TXN: Final = 24
_ADD_OFFSETS_TO_TXN: Final = 25
_END_TXN: Final = 26
_TXN_OFFSET_COMMIT: Final = 28
_TRANSACTION: Final = 1
_I16: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")
_SEQUENCE_MAX: Final = 0x7FFFFFFF


class ProducerId(NamedTuple):
    producer_id: int
    epoch: int


def init_producer(
    cluster: Cluster, name: str, *, timeout_ms: int = 60_000, was: ProducerId | None = None
) -> ProducerId:
    """Take a transactional id over: its former holder is fenced, its open transaction aborted."""
    doing = f"taking transactional id {name!r}"
    before = was if was is not None else ProducerId(-1, -1)
    fields = {
        "transactional_id": name,
        "transaction_timeout": messages.ms(timeout_ms),
        "producer_id": before.producer_id,
        "producer_epoch": before.epoch,
    }

    def once() -> ProducerId:
        answer = cluster.coordinator(name, _TRANSACTION).ask(_INIT_PRODUCER_ID, fields)
        checked(doing, answer.error_code)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    return cluster.retried(doing, once)


class TransactionalProducer:
    """One transactional id; its transactions come one after the other."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        producer: ProducerId | None = None,
        *,
        timeout_ms: int = 60_000,
    ) -> None:
        """Without `producer` the id is taken over from whoever held it."""
        self.name = name
        self.cluster = cluster
        if producer is None:
            producer = init_producer(cluster, name, timeout_ms=timeout_ms)
        self.producer = producer
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()

    def add_partitions(self, partitions: Collection[Partition]) -> None:
        """Say which partitions the transaction is going to write to."""
        fresh = [at for at in partitions if at not in self._added]
        if not fresh:
            return
        doing = f"adding partitions to transaction {self.name!r}"
        fields = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.producer.producer_id,
            "v3_and_below_producer_epoch": self.producer.epoch,
            "v3_and_below_topics": [
                {"name": topic, "partitions": tuple(at.index for at in places)}
                for topic, places in by_topic(fresh).items()
            ],
        }

        def once() -> None:
            answer = self._coordinator().ask(_ADD_PARTITIONS_TO_TXN, fields)
            for topic in answer.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    place = f"{topic.name}-{part.partition_index}"
                    checked(f"{doing} ({place})", part.partition_error_code)

        self.cluster.retried(doing, once)
        self._added.update(fresh)

    def produce(self, at: Partition, batches: bytearray) -> Offset:
        """Append batches inside the transaction, stamped in place; the first record's offset."""
        self.add_partitions([at])
        sequence = self._sequences.get(at, 0)
        stamp(batches, self.producer, sequence)
        first: Offset | None = None
        position = 0
        while position < len(batches):
            header = batch_header(batches, position)
            one = bytes(batches[position : position + header.size])
            offset = self.cluster.produce(at, one, transactional_id=self.name)
            first = offset if first is None else first
            sequence = (sequence + header.last_offset_delta + 1) & _SEQUENCE_MAX
            self._sequences[at] = sequence
            position += header.size
        assert first is not None, "there is a batch to write"
        return first

    def commit_offsets(self, group: str, offsets: Mapping[Partition, GroupOffset]) -> None:
        """Let a group's offsets become what is given when the transaction is committed."""
        doing = f"adding offsets of group {group!r} to transaction {self.name!r}"
        identity = {
            "transactional_id": self.name,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.epoch,
            "group_id": group,
        }
        topics = topics_committed(offsets)
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}

        def add() -> None:
            checked(doing, self._coordinator().ask(_ADD_OFFSETS_TO_TXN, identity).error_code)

        def commit() -> None:
            connection = self.cluster.coordinator(group, GROUP)
            answer = connection.ask(_TXN_OFFSET_COMMIT, identity | member | {"topics": topics})
            for topic in answer.topics:
                for part in topic.partitions:
                    place = f"{topic.name}-{part.partition_index}"
                    checked(f"{doing} ({place})", part.error_code)

        self.cluster.retried(doing, add)
        self.cluster.retried(doing, commit)

    def commit(self) -> None:
        self._end(committed=True)

    def abort(self) -> None:
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        doing = f"{'committing' if committed else 'aborting'} transaction {self.name!r}"
        fields = {
            "transactional_id": self.name,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.epoch,
            "committed": committed,
        }

        def once() -> None:
            checked(doing, self._coordinator().ask(_END_TXN, fields).error_code)

        self.cluster.retried(doing, once)
        self._added.clear()

    def _coordinator(self) -> Connection:
        return self.cluster.coordinator(self.name, _TRANSACTION)


def stamp(batches: bytearray, producer: ProducerId, sequence: int) -> int:
    """Write a producer's id, epoch and sequences into batches; the sequence behind them."""
    position = 0
    view = memoryview(batches)
    while position < len(view):
        header = batch_header(view, position)
        _I16.pack_into(view, position + 21, header.attributes | TRANSACTIONAL)
        _PRODUCER.pack_into(view, position + 43, *producer, sequence)
        crc = crc32c(view[position + 21 : position + header.size])
        _CRC.pack_into(view, position + 17, crc)
        sequence = (sequence + header.last_offset_delta + 1) & _SEQUENCE_MAX
        position += header.size
    return sequence
