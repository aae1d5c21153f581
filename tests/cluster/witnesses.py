"""Those who read, acknowledge, commit and write in transactions while a test troubles them.

Each keeps a record of what it was promised, and says itself whether all of it was kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaException, Producer
from cursus_subject import Wire as CursusWire
from fluvio_wire import Wire as FluvioWire
from fluvio_world import read_streamed, stream_fetch, update_offsets
from loads import TROUBLE, NotAcknowledged
from members import Member

from pentalog.clients.blipmq import BlipmqClient, BlipmqError
from pentalog.clients.rustlog import RustLogClient
from pentalog.protocols.fluvio.codec import Writer

_TURN_S: Final = 0.05
_TIMEOUT_S: Final = 60
"""Longer than a gateway tries: what it was asked for must not happen after somebody gave up."""
_TOGETHER: Final = 3
"""Records of one transaction."""
_STREAM, _TAKEN, _COMMIT, _COMMITTED = 1003, 1005, 1006, 1008


class Witness(Member):
    """Through one gateway after another: whoever is lost is asked again elsewhere."""

    def __init__(self, topic: str, addresses: Sequence[str]) -> None:
        self.topic = topic
        self.troubles = 0
        self._addresses = addresses
        super().__init__()

    @property
    def address(self) -> str:
        return self._addresses[self.troubles % len(self._addresses)]

    def work(self) -> None:
        while not self._stop.is_set():
            try:
                self.attend()
            except TROUBLE:
                self.troubles += 1
                time.sleep(_TURN_S)

    def attend(self) -> None:
        """Do the work on one connection until told to stop."""
        raise NotImplementedError

    def pause(self) -> bool:
        """Leave the others some of the machine; False: it is time to stop."""
        return not self._stop.wait(_TURN_S)


class Subscriber(Witness):
    """Polls a BlipMQ subscription, and acknowledges what it is given."""

    def __init__(self, subscription: int, topic: str, addresses: Sequence[str]) -> None:
        self.delivered: set[int] = set()
        self.again = 0
        self.refused: list[str] = []
        self._subscription = subscription
        super().__init__(topic, addresses)

    def attend(self) -> None:
        with BlipmqClient(self.address, timeout_s=_TIMEOUT_S) as client:
            while self.pause():
                try:
                    found = client.poll(self._subscription, 1000)
                    numbers = {int(delivery.message) for delivery in found}
                    self.again += len(numbers & self.delivered)
                    self.delivered |= numbers
                    if found:
                        client.acknowledge(self._subscription, *(one.tag for one in found))
                except BlipmqError as refusal:
                    self.refused.append(str(refusal))
                    raise


class Reader(Witness):
    """Reads one partition in order, commits how far it came, and goes on from there."""

    def __init__(self, group: str, topic: str, addresses: Sequence[str]) -> None:
        self.group = group
        self.committed = 0
        """The last that was acknowledged."""
        self.values: list[int] = []
        super().__init__(topic, addresses)

    def resumed(self, committed: int | None) -> int:
        """Where to go on, as a gateway says; nothing that was acknowledged is forgotten."""
        offset = committed or 0
        assert offset in (self.committed, len(self.values)), (self.committed, committed)
        del self.values[offset:]
        return offset


class RustLogReader(Reader):
    def attend(self) -> None:
        with RustLogClient(self.address, timeout_s=_TIMEOUT_S) as client:
            offset = self.resumed(client.committed(self.group, self.topic, 0))
            while self.pause():
                found = list(client.fetch(self.topic, 0, offset).records)
                assert [one.offset for one in found] == list(range(offset, offset + len(found)))
                if not found:
                    continue
                self.values += [int(one.value) for one in found]
                offset = len(self.values)
                assert client.commit(self.group, self.topic, 0, offset)
                self.committed = offset


class FluvioReader(Reader):
    """A consumer whose offsets Fluvio manages: it tells the last one, groups the next."""

    def attend(self) -> None:
        wire = FluvioWire(int(self.address.rpartition(":")[2]), 24, _TIMEOUT_S)
        try:
            offset = self.resumed(self._told(wire))
            asked = stream_fetch(self.topic, offset, isolation=1, consumer_id=self.group)
            stream = wire.send(_STREAM, asked)
            while self.pause():
                number, reader = wire.receive()
                if number != stream:
                    continue
                frame = read_streamed(reader)
                if frame.error:
                    raise NotAcknowledged(frame.error)
                self.values += [int(value) for _, _, value in frame.records]
                behind = frame.records[-1][0] + 1
                assert behind == len(self.values)
                self._commit(wire, frame.stream_id, behind)
                wire.send(_TAKEN, update_offsets((behind, frame.stream_id)), version=0)
        finally:
            wire.close()

    def _told(self, wire: FluvioWire) -> int | None:
        place = Writer(24).u8(1).u8(1).text(self.topic).u32(0).option_text(self.group)
        answer = wire.ask(_COMMITTED, bytes(place.out))
        if answer.i16():
            raise NotAcknowledged(answer)

        def entry() -> int:
            answer.text(), answer.text(), answer.u32()
            last = answer.i64()
            answer.u64()
            return last + 1

        return next(iter(answer.many(entry)), None)

    def _commit(self, wire: FluvioWire, stream_id: int, behind: int) -> None:
        answer = wire.ask(_COMMIT, bytes(Writer(24).i64(behind - 1).u32(stream_id).out))
        if (answer.i64(), answer.i16()) != (behind - 1, 0):
            raise NotAcknowledged(answer)
        self.committed = behind


class Writing(Member):
    """Numbers in transactions of a few, every third of which is aborted."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.wanted: list[int] = []
        self.unsure: set[int] = set()
        """First numbers of transactions of which nobody has said how they ended."""
        self.next = 0
        super().__init__()

    def taken(self) -> tuple[list[int], bool]:
        """The numbers of the next transaction, and whether it is to be committed."""
        first, self.next = self.next, self.next + _TOGETHER
        return list(range(first, self.next)), first // _TOGETHER % 3 != 2

    def check(self, found: list[int]) -> None:
        """Everything that was committed is there once and in order, and nothing else."""
        maybe = {first + place for first in self.unsure for place in range(_TOGETHER)}
        assert [each for each in found if each not in maybe] == self.wanted
        unsure = [each for each in found if each in maybe]
        assert len(unsure) == len(set(unsure))
        for first in self.unsure:
            part = [each for each in unsure if first <= each < first + _TOGETHER]
            assert len(part) in (0, _TOGETHER), "half of a transaction"


class KafkaWriting(Writing):
    """At the cluster itself."""

    def __init__(self, topic: str, servers: str) -> None:
        settings = {"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0}
        self._producer = Producer(settings | {"transaction.timeout.ms": 30_000})
        super().__init__(topic)

    def work(self) -> None:
        self._patiently("init_transactions")
        while not self._stop.wait(_TURN_S):
            numbers, commit = self.taken()
            while not self._written(numbers, commit=commit):
                assert self._patiently("abort_transaction")
            if commit:
                self.wanted += numbers

    def _written(self, numbers: list[int], *, commit: bool) -> bool:
        """False: the transaction has to be aborted."""
        self._producer.begin_transaction()
        for number in numbers:
            self._producer.produce(self.topic, b"%d" % number, partition=0)
        return self._patiently("commit_transaction" if commit else "abort_transaction")

    def _patiently(self, verb: str) -> bool:
        while True:
            try:
                getattr(self._producer, verb)(30)
            except KafkaException as refused:
                error = refused.args[0]
                if error.txn_requires_abort():
                    return False
                if not error.retriable():
                    raise
            else:
                return True


class CursusWriting(Writing):
    """Through one gateway after another."""

    def __init__(self, topic: str, addresses: Sequence[str]) -> None:
        self.troubles = 0
        self._addresses = addresses
        super().__init__(topic)

    def work(self) -> None:
        while not self._stop.is_set():
            address = self._addresses[self.troubles % len(self._addresses)]
            try:
                with CursusWire(address) as wire:
                    wire.socket.settimeout(_TIMEOUT_S)
                    while not self._stop.wait(_TURN_S):
                        self._transaction(wire)
            except TROUBLE:
                self.troubles += 1

    def _transaction(self, wire: CursusWire) -> None:
        def ask(command: str) -> str:
            answer = wire.text(command)
            if not answer.startswith("OK"):
                raise NotAcknowledged(answer)
            return answer

        numbers, commit = self.taken()
        answer = ask(f"INIT_PRODUCER_ID transactional_id={self.topic}")
        found = re.search(r"producerId=(\S+) epoch=(\d+)", answer)
        assert found is not None, answer
        who = f"transactional_id={self.topic} producerId={found[1]} epoch={found[2]}"
        ask(f"BEGIN_TXN {who}")
        for place, number in enumerate(numbers, 1):
            where = f"topic={self.topic} partition=0 seqNum={place}"
            ask(f"TXN_PUBLISH {who} {where} message={number}")
        if commit:
            self.unsure.add(numbers[0])
        ask(f"END_TXN {who} result={'commit' if commit else 'abort'}")
        if commit:
            self.unsure.discard(numbers[0])
            self.wanted += numbers
