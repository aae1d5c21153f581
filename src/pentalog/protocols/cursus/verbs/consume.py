"""CONSUME: one page of records, at once or when there is one."""

from __future__ import annotations

from functools import partial
from typing import Final

from pentalog.broker.port import Opened
from pentalog.protocols.cursus import records, rights
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused
from pentalog.protocols.cursus.reading import Reading, check_range, reading_of

_WAIT_MS_MAX: Final = 60_000


def consume(call: Call) -> None:
    command = call.command
    needed = ("topic", "partition") if command.document else ("topic", "partition", "member")
    if any(not command.get(name) for name in needed):
        raise Refused("invalid_consume_syntax")
    wait_ms = 0
    if "wait_ms" in command.parameters:
        wait_ms = min(command.number("wait_ms", "invalid_wait_ms command=CONSUME"), _WAIT_MS_MAX)
    # Before anything is waited for: pages are read in the order of their requests.
    call.session.reads.enter(call)
    reading = reading_of(call)
    call.shed()
    call.after(reading, partial(_give, call, wait_ms))


def _give(call: Call, wait_ms: int, reading: Reading) -> None:
    log = call.broker.log
    rights.check_read(call, reading.at.topic)
    marks = log.marks(reading.at)
    check_range(reading, marks)
    if reading.offset < marks.at(reading.horizon):
        open_page = partial(_open, call, wait_ms, reading)
        call.session.reads.take_turn(call, reading.bytes_max, open_page)
        return
    waits = call.session.waits
    waiting = log.wait(
        {reading.at: reading.offset},
        bytes_min=1,
        horizon=reading.horizon,
        timeout_ms=0 if call.session.ended else wait_ms,
    )

    def waited(found: bool) -> None:
        waits.discard(waiting)
        if found:
            call.in_slices(partial(_give, call, 0, reading))
        else:
            call.send(records.empty(reading.head))

    if not waiting.ready:
        call.session.reads.give_way(call)
        waits.add(waiting)
    call.after(waiting, waited)


def _open(call: Call, wait_ms: int, reading: Reading) -> None:
    later = call.broker.log.open(
        reading.at, reading.offset, bytes_max=reading.bytes_max, horizon=reading.horizon
    )
    call.after(later, partial(_opened, call, wait_ms, reading))


def _opened(call: Call, wait_ms: int, reading: Reading, opened: Opened) -> None:
    page = reading.page(opened, call.door.note_skipped)
    if page.records:
        call.session.context.metrics.sent_records += page.records
        call.send(page.frame)
        return
    following = reading.behind(page, opened)
    if following.offset > reading.offset:
        # All of it belonged to transactions that were aborted, marked their ends, or cannot be
        # shown.  In a later turn: there may be much of it.
        call.step_later(partial(_give, call, wait_ms, following))
    else:
        call.send(records.empty(reading.head))
