"""Planted faults that clients of one protocol find."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulation.planting import Planted, fault, patch

from pentalog.broker import aggregates, named_producers, subscription_rows
from pentalog.broker.aggregates import AggregateIndex, LocalAggregates
from pentalog.broker.derived_topics import Derivation
from pentalog.broker.local_subscription import LocalSubscription
from pentalog.broker.named_producers import LocalNamedProducers
from pentalog.broker.port import Committed
from pentalog.broker.reservations import Reservations
from pentalog.broker.subscriptions import LocalSubscriptions
from pentalog.broker.windows import Window
from pentalog.model.errors import TransactionState
from pentalog.model.later import Later
from pentalog.model.types import Ack, Horizon
from pentalog.protocols.blipmq import publishing as blipmq_publishing
from pentalog.protocols.cursus import lookups as cursus_lookups
from pentalog.protocols.cursus import records as cursus_records
from pentalog.protocols.cursus.staging import Staging
from pentalog.protocols.cursus.verbs import transactions as cursus_transactions
from pentalog.protocols.fluvio import produce as fluvio_produce
from pentalog.protocols.fluvio import records as fluvio_records
from pentalog.protocols.fluvio.streams import Stream
from pentalog.protocols.rustlog import records as rustlog_records
from pentalog.protocols.rustlog.line import Line
from pentalog.protocols.rustlog.records import Fetching

PLANTED: list[Planted] = []
_fault = partial(fault, PLANTED)


# RustLog and Fluvio


@_fault("RustLog's Produce is answered when the records are written")
def rustlog_answers_early(stack: ExitStack) -> None:
    patch(stack, rustlog_records, "Ack", SimpleNamespace(DURABLE=Ack.WRITTEN))


@_fault("RustLog's commits and new topics are answered before they are on the disk")
def rustlog_confirms_early(stack: ExitStack) -> None:
    def early(
        line: Line, dialect: Any, request: Any, later: Any, encode: Any, kept: Any = None
    ) -> None:
        if kept is None:
            line.send(encode(None))
        else:
            line.fill(kept, encode(None))

    patch(stack, Line, "answer_later", early)


@_fault("ends that RustLog shows are not durable")
def rustlog_ends_early(stack: ExitStack) -> None:
    def early(line: Line, dialect: Any, request: Any, partitions: Any, encode: Any) -> None:
        log = line.context.broker.log
        line.say(encode({at: log.marks(at).end for at in partitions}))

    patch(stack, Line, "answer_with_ends", early)


@_fault("RustLog's Fetch does not wait for what acks=1 acknowledged")
def rustlog_fetch_impatient(stack: ExitStack) -> None:
    def look_again(fetching: Fetching) -> None:
        fetching._settled = True
        fetching._read()

    patch(stack, Fetching, "_settle", look_again)


@_fault("a durable write of Fluvio is answered when it is in the file")
def fluvio_answers_early(stack: ExitStack) -> None:
    levels = SimpleNamespace(DURABLE=Ack.WRITTEN, WRITTEN=Ack.WRITTEN)
    patch(stack, fluvio_produce, "Ack", levels)


@_fault("Fluvio's readers of committed records see what is not durable")
def fluvio_reads_to_the_end(stack: ExitStack) -> None:
    def end(broker: Any, *, committed: bool) -> Horizon:
        return Horizon.END

    patch(stack, fluvio_records, "horizon_of", end)


@_fault("Fluvio's readers see records of open transactions")
def fluvio_undecided(stack: ExitStack) -> None:
    patch(stack, fluvio_records, "decided", lambda broker, at, opened, horizon: opened)


@_fault("Fluvio's streams pass over a record after each frame")
def fluvio_stream_skips(stack: ExitStack) -> None:
    acknowledge = Stream.acknowledge

    def skip(stream: Stream, offset: int) -> Any:
        error = acknowledge(stream, offset)
        stream._offset += 1
        return error

    patch(stack, Stream, "acknowledge", skip)


@_fault("a derived topic's place in its source is committed ahead of its records")
def derived_place_early(stack: ExitStack) -> None:
    def early(derivation: Derivation, reached: int, later: Any) -> None:
        def step() -> None:
            place = {derivation._source: Committed(reached)}
            offsets = derivation._broker.groups.offsets
            offsets.commit(derivation._group, place).then(partial(derivation._staged, reached))

        derivation._try(step)

    patch(stack, Derivation, "_written", early)


@_fault("a derived topic's place in its source is not committed with its records")
def derived_place_forgotten(stack: ExitStack) -> None:
    def forget(derivation: Derivation, reached: int, later: Any) -> None:
        derivation._try(lambda: derivation._staged(reached, later))

    patch(stack, Derivation, "_written", forget)


# BlipMQ


@_fault("quality 0 is delivered again after a crash")
def quality_0_again(stack: ExitStack) -> None:
    restore = subscription_rows.restore_window

    def believe(state: Any, at: Any, row: Any, end: int) -> Window:
        window = restore(state, at, row, end)
        window.doubtful_end = 0
        return window

    patch(stack, subscription_rows, "restore_window", believe)


@_fault("quality 0 is delivered before its reservation is on the disk")
def unreserved_quality_0(stack: ExitStack) -> None:
    write = Reservations.write

    def granted(
        owner: Reservations, subscription_id: int, windows: Any, *, ahead: bool = True
    ) -> None:
        write(owner, subscription_id, windows, ahead=ahead)
        for window in windows:
            window.reserved, window.reserving = window.reserved_end, None

    patch(stack, Reservations, "write", granted)


@_fault("acknowledged deliveries are not written to the state file")
def acknowledgements_not_written(stack: ExitStack) -> None:
    acknowledge = LocalSubscription.acknowledge

    def unchanged(subscription: LocalSubscription, tags: Any) -> bytes:
        unknown = acknowledge(subscription, tags)
        for window in subscription.windows:
            window.changed = False
        return unknown

    patch(stack, LocalSubscription, "acknowledge", unchanged)


@_fault("what was on lease is taken for acknowledged after a restart")
def leases_settled_by_restart(stack: ExitStack) -> None:
    def settle(window: Window) -> None:
        window.floor += len(window.states)
        window.states = bytearray()

    patch(stack, Window, "restore", settle)


@_fault("a PONG does not wait until messages of quality 1 are durable")
def pong_before_sync(stack: ExitStack) -> None:
    patch(stack, blipmq_publishing, "Ack", SimpleNamespace(DURABLE=Ack.WRITTEN))


@_fault("a subscription is confirmed before it is in the state file")
def subscription_confirmed_early(stack: ExitStack) -> None:
    opening = LocalSubscriptions.open

    def confirm(
        every: LocalSubscriptions, topic: str, *, leased: bool, owner: str, charged: str = ""
    ) -> Later[int]:
        opening(every, topic, leased=leased, owner=owner, charged=charged)
        return Later.now(every._next_id - 1)

    patch(stack, LocalSubscriptions, "open", confirm)


@_fault("a poll does not wait for records that are not durable yet")
def poll_does_not_wait(stack: ExitStack) -> None:
    patch(stack, LocalSubscription, "underway", lambda subscription: {})


# Cursus


@_fault("the version of an event is answered before the event is durable")
def event_before_sync(stack: ExitStack) -> None:
    patch(stack, aggregates, "Ack", SimpleNamespace(DURABLE=Ack.WRITTEN))


@_fault("the version of an event stream is told before its events are durable")
def version_told_early(stack: ExitStack) -> None:
    def told(owner: LocalAggregates, at: Any, end: int, later: Later[Any], value: Any) -> None:
        later.fill(value)

    patch(stack, LocalAggregates, "_fill_durable", told)


@_fault("a snapshot is confirmed before it is in the state file")
def snapshot_confirmed_early(stack: ExitStack) -> None:
    saving = AggregateIndex.save_snapshot

    def confirm(owner: AggregateIndex, topic: str, key: bytes, snapshot: Any) -> Later[None]:
        saving(owner, topic, key, snapshot)
        return Later.now(None)

    patch(stack, AggregateIndex, "save_snapshot", confirm)


@_fault("event streams outlive their topic")
def events_outlive_topic(stack: ExitStack) -> None:
    patch(stack, AggregateIndex, "topic_deleted", lambda owner, topic: None)


@_fault("a producer's name stands for another identity after a restart")
def names_forgotten(stack: ExitStack) -> None:
    identity, opening = named_producers._identity.__wrapped__, LocalNamedProducers.open
    lives = 0

    def open_another(owner: LocalNamedProducers) -> None:
        nonlocal lives
        lives += 1
        opening(owner)

    def of_this_life(owner: LocalNamedProducers, name: bytes, epoch: int) -> Any:
        return identity(b"%d %b" % (lives, name), epoch)

    patch(stack, LocalNamedProducers, "open", open_another)
    patch(stack, LocalNamedProducers, "who", of_this_life)


@_fault("acks=-1 of Cursus is answered when the records are written")
def cursus_acks_all_is_written(stack: ExitStack) -> None:
    patch(stack, cursus_records, "_ACKS", {b"0": Ack.NONE, b"1": Ack.WRITTEN, b"-1": Ack.WRITTEN})


@_fault("a message of a Cursus transaction is answered before it is durable")
def staged_before_sync(stack: ExitStack) -> None:
    patch(stack, cursus_transactions, "Ack", SimpleNamespace(DURABLE=Ack.WRITTEN))


@_fault("after a restart, messages of an open Cursus transaction are not looked up in the log")
def staged_forgotten(stack: ExitStack) -> None:
    patch(stack, cursus_lookups, "must_recover", lambda call, epoch: False)


@_fault("a repeated end of a Cursus transaction does not ask the engine after a restart")
def end_not_repeated(stack: ExitStack) -> None:
    ending = cursus_transactions._end

    def refuse(call: Any, view: Any, *, commit: bool) -> Later[Any]:
        if view.phase != "Empty":
            return ending(call, view, commit=commit)
        refused: Later[Any] = Later()
        refused.refuse(TransactionState("nothing is open"))
        return refused

    patch(stack, cursus_transactions, "_end", refuse)


@_fault("a repetition in a Cursus transaction is known by the partition that is chosen")
def staged_by_partition(stack: ExitStack) -> None:
    count = itertools.count(1 << 40)

    def key(staging: Staging) -> tuple[str, int, int]:
        asked = staging.asked if staging.asked >= 0 else next(count)
        return staging.topic, asked, staging.seq

    patch(stack, Staging, "key", property(key))
