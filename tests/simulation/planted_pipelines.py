"""Planted faults that clients with several requests under way find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulation.planting import Planted, fault, patch

from pentalog.broker.sites import Sites
from pentalog.log import store
from pentalog.log.partition import PartitionLog
from pentalog.model.later import Later
from pentalog.protocols.blipmq.session import BlipmqSession
from pentalog.protocols.cursus.gaps import Gaps
from pentalog.protocols.fluvio.produce import Taking
from pentalog.protocols.kafka import produce_runs
from pentalog.protocols.kafka.api import k00_produce
from pentalog.protocols.rustlog import messages
from pentalog.protocols.rustlog.messages import Invalid, NotJson
from pentalog.protocols.rustlog.session import RustLogSession

PLANTED: list[Planted] = []
_fault = partial(fault, PLANTED)


@_fault("a malformed RustLog request is answered before earlier ones that are on a lane")
def rustlog_refuses_early(stack: ExitStack) -> None:
    serve, refuse = RustLogSession._serve_json, RustLogSession._refuse_frame

    def at_once(session: RustLogSession, payload: memoryview) -> bool:
        try:
            messages.decode(payload)
        except (Invalid, NotJson):
            with _hasty(session):
                return serve(session, payload)
        return serve(session, payload)

    def refuse_at_once(session: RustLogSession, size: int) -> None:
        with _hasty(session):
            refuse(session, size)

    patch(stack, RustLogSession, "_serve_json", at_once)
    patch(stack, RustLogSession, "_refuse_frame", refuse_at_once)


@contextmanager
def _hasty(session: Any) -> Iterator[None]:
    """Let a session take everything for appended."""
    writing = session._writing

    def flush() -> bool:
        writing.flush()
        return True

    session._writing = SimpleNamespace(flush=flush)
    yield
    session._writing = writing


@_fault("Fluvio serves later requests before one whose batches are on a lane")
def fluvio_overtakes(stack: ExitStack) -> None:
    append = Taking._append

    def unheld(taking: Taking, entry: Any, translated: Any) -> None:
        append(taking, entry, translated)

    patch(stack, Taking, "_append", unheld)


@_fault("a closed store accepts batches that were on a lane")
def closed_store_writes(stack: ExitStack) -> None:
    patch(stack, store, "_stop", PartitionLog.close)


@_fault("Kafka's batches on a lane go to the topic that has their topic's name now")
def kafka_keeps_partition(stack: ExitStack) -> None:
    target = produce_runs._target
    wait = produce_runs._Serving.wait

    def by_name(serving: Any, admission: Any) -> None:
        at = target(serving._runs[0], serving._door, serving._access)
        wait(serving, _Forgetful(admission, at))

    def remembered(run: Any, door: Any, access: Any) -> Any:
        return _REMEMBERED.pop() if _REMEMBERED else target(run, door, access)

    patch(stack, produce_runs._Serving, "wait", by_name)
    patch(stack, produce_runs, "_target", remembered)


_REMEMBERED: list[Any] = []


class _Forgetful:
    """An admission that remembers where its batches were to go."""

    def __init__(self, admission: Later[Any], at: Any) -> None:
        self._admission = admission
        self._at = at

    def then(self, run: Callable[[Any], None]) -> None:
        def go_on(later: Later[Any]) -> None:
            _REMEMBERED.append(self._at)
            try:
                run(later)
            finally:
                _REMEMBERED.clear()

        self._admission.then(go_on)


@_fault("a clean stop does not wait for batches without acks that are on a lane")
def stop_forgets_acks_0(stack: ExitStack) -> None:
    for module in (k00_produce, produce_runs):
        patch(stack, module, "hold_line", lambda line, *, answers: line.hold())


@_fault("Cursus refuses a gap although the batch before it is on a lane")
def cursus_gap_early(stack: ExitStack) -> None:
    patch(stack, Gaps, "is_under_way", lambda gaps, who: False)


@_fault("Cursus refuses a gap although the batch before it is being decompressed")
def cursus_gap_compressed(stack: ExitStack) -> None:
    patch(stack, Gaps, "begin_opening", lambda gaps, owner: None)
    patch(stack, Gaps, "end_opening", lambda gaps, owner: None)


@_fault("a frame of an unknown type drops a large BlipMQ message before it")
def blipmq_drops_large(stack: ExitStack) -> None:
    receive = BlipmqSession.receive

    def hasty(session: BlipmqSession, data: memoryview) -> int:
        split, _ = session._split(data, 0)
        used = receive(session, data)
        if split.refused and not session._ended and used == split.used:
            session._violation(split.refused)
            return len(data)
        return used

    patch(stack, BlipmqSession, "receive", hasty)


@_fault("a topic is created again before the deletion of the last one is on the disk")
def created_before_deleted(stack: ExitStack) -> None:
    patch(stack, Sites, "deleting", lambda sites, name: None)
