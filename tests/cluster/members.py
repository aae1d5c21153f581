"""Members of groups that come back after every trouble, and what each has been given."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from cursus_subject import Wire as CursusWire

_BEAT_S: Final = 0.5
_JOINED: Final = re.compile(r"OK generation=(\d+) member=(\S+) assignments=\[(.*)\].*")


class Member:
    """Works on a thread of its own until it is told to finish."""

    def __init__(self) -> None:
        self.partitions: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._mistakes: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert not self._mistakes, self._mistakes

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as mistake:
            self._mistakes.append(mistake)

    def work(self) -> None:
        raise NotImplementedError


class CursusMember(Member):
    """Through one gateway after another."""

    def __init__(self, name: str, group: str, topic: str, addresses: Sequence[str]) -> None:
        self._name = name
        self._place = f"topic={topic} group={group}"
        self._addresses = addresses
        super().__init__()

    def work(self) -> None:
        turn = 0
        while not self._stop.is_set():
            address = self._addresses[turn % len(self._addresses)]
            try:
                with CursusWire(address) as wire:
                    wire.socket.settimeout(20)
                    self._belong(wire)
            except (OSError, EOFError):
                turn += 1
            self.partitions = frozenset()
            time.sleep(_BEAT_S)

    def _belong(self, wire: CursusWire) -> None:
        beat = ""
        while not self._stop.is_set():
            if not beat or not wire.text(beat).startswith("OK"):
                found = _JOINED.fullmatch(
                    wire.text(f"JOIN_GROUP {self._place} member={self._name}")
                )
                if found is None:
                    return
                generation, self._name, indexes = found.groups()
                self.partitions = frozenset(map(int, indexes.split()))
                beat = f"HEARTBEAT {self._place} member={self._name} generation={generation}"
            time.sleep(_BEAT_S)


class KafkaMember(Member):
    """At the cluster itself."""

    def __init__(self, group: str, topic: str, servers: str) -> None:
        self._topic = topic
        self._settings = {"bootstrap.servers": servers, "group.id": group, "log_level": 0}
        super().__init__()

    def work(self) -> None:
        consumer = Consumer(self._settings | {"session.timeout.ms": 10_000})
        consumer.subscribe([self._topic], on_assign=self._given, on_revoke=self._taken)
        while not self._stop.is_set():
            consumer.poll(0.2)
        try:
            consumer.close()
        except KafkaException as late:
            raise AssertionError(f"not closed: {late}") from late

    def _given(self, _: Consumer, places: list[TopicPartition]) -> None:
        self.partitions = frozenset(place.partition for place in places)

    def _taken(self, _: Consumer, __: list[TopicPartition]) -> None:
        self.partitions = frozenset()


def wait_until_settled(members: Sequence[Member], partitions: int, *, deadline_s: float) -> None:
    """Until every partition is one member's, and every member has some."""
    deadline = time.monotonic() + deadline_s
    while True:
        shares = [member.partitions for member in members]
        given = sorted(index for share in shares for index in share)
        if all(shares) and given == list(range(partitions)):
            return
        assert time.monotonic() < deadline, f"not settled: {shares}"
        time.sleep(_BEAT_S)
