"""Transactions, on the broker's own: what other doors see of them is what they see of their own."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from pentalog.broker.port import Admitted, TransactionView
from pentalog.broker.sourcing import Share
from pentalog.kernels import CursusFrame, Facts
from pentalog.model.batch import TRANSACTIONAL
from pentalog.model.errors import BrokerError, TransactionState, TransactionUnknown
from pentalog.model.later import Later, all_of
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Appended, Identity, Partition
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import MessageKey, OpenTransaction, Route
from pentalog.protocols.cursus.errors import Refused, quoted, shown
from pentalog.protocols.cursus.messages import encoded, transaction_of
from pentalog.protocols.cursus.publishing import (
    Sequencing,
    admission_of,
    check_sizes,
    check_writable,
    chosen_route,
    record_batches,
)
from pentalog.protocols.cursus.staging import Staging, producer_of, ready, staging_of
from pentalog.protocols.cursus.storing import LARGE_BYTES
from pentalog.protocols.cursus.verbs import groups

_TIMEOUT_MS: Final = 60_000
_SEQUENCES: Final = 1 << 31
_GATEWAYS: Final = "pentalog-"
_STATES: Final = {
    "Ongoing": "open",
    "PrepareCommit": "committing",
    "PrepareAbort": "aborting",
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
}
_FAILURES: Final = {
    "BEGIN_TXN": "transaction_begin_failed",
    "TXN_PUBLISH": "transaction_publish_failed",
    "SEND_OFFSETS_TO_TXN": "transaction_offsets_failed",
    "END_TXN": "producer_fenced",
}


def initialize(call: Call) -> None:
    name = _name(call)
    if name.startswith(_GATEWAYS) and not call.broker.knowledge.current:
        reason = quoted(f"names that begin with {_GATEWAYS} are the gateways' own")
        raise Refused(f"invalid_transactional_id reason={reason}")
    most = call.session.context.config.transaction_timeout_ms_max
    later = call.broker.transactions.identify(
        name, timeout_ms=min(_TIMEOUT_MS, most), owner=call.session.context.access.owner
    )

    def identified(who: Identity) -> None:
        call.transaction(name, who.epoch)
        call.reply(
            f"OK transactional_id={shown(name)} producerId={producer_of(name)} epoch={who.epoch}"
        )

    call.after(later, identified)


def begin(call: Call) -> None:
    name = _name(call)
    view, open_one = _owned(call, name)
    if open_one.begun or open_one.ended or view.phase != "Empty":
        raise Refused(
            f"producer_reinitialization_required transactional_id={shown(name)} "
            f"epoch={view.who.epoch}"
        )
    open_one.begun = open_one.followed = True
    open_one.user = weakref.ref(call.session)
    call.reply(
        f"OK transactional_id={shown(name)} state=open producerId={producer_of(name)} "
        f"epoch={view.who.epoch}"
    )


def publish(call: Call) -> None:
    """TXN_PUBLISH: answered when the message is durable, also if it is a repetition.

    What another process wrote has been looked up before (`staging.recover`).
    """
    staging = staging_of(call)
    _, open_one = _open(call, staging.name)
    if staging.key not in open_one.staged and len(staging.payload) > LARGE_BYTES:
        _make(call, staging)
    else:
        _publish(call, staging)


def _make(call: Call, staging: Staging) -> None:
    """Encode a large message in one turn, make its batch in the next, write it in a third."""
    view, _ = _open(call, staging.name)
    record = staging.record(view)

    def build() -> None:
        again, _ = _open(call, staging.name)
        built = _built(call, staging, again, record)
        call.later(lambda: _publish(call, staging, built))

    call.later(build)


def _publish(call: Call, staging: Staging, built: _Built | None = None) -> None:
    view, open_one = _open(call, staging.name)
    appended = open_one.staged.get(staging.key)
    if appended is None:
        if built is None or built.sequence != _sequence(call, view, built.route):
            built = _built(call, staging, view, staging.record(view))
        admission = None
        if built.opened is None:
            admission = admission_of(call, built.route, built.batches, built.facts)
        if admission is not None:
            call.hold_until(admission, partial(_publish_admitted, call, staging, built))
            return
        appended = _stage(call, staging, view, open_one, built)
    else:
        # Refuse it if the topic is gone or may not be written any more.
        check_writable(call, call.door.route(encoded(staging.topic), appended.at.index))
    told = f"topic={staging.topic} partition={appended.at.index}"

    def answer(_: Appended) -> None:
        call.reply(
            f"OK transactional_id={shown(staging.name)} staged_messages={open_one.messages} {told}"
        )

    settled = call.broker.log.settle(appended, Ack.DURABLE)
    settled.then(partial(_forget_failed, open_one, staging.key, appended))
    call.after(settled, answer)


class _Built(NamedTuple):
    """A message as it is to be written."""

    route: Route
    sequence: int
    batches: bytearray | memoryview
    facts: Facts
    opened: LogSettings | None = None
    """The settings it was admitted under, if it had to be."""


def _publish_admitted(call: Call, staging: Staging, built: _Built, admitted: Admitted) -> None:
    batches, facts, settings = admitted
    _publish(call, staging, built._replace(batches=batches, facts=facts, opened=settings))


def _built(
    call: Call,
    staging: Staging,
    view: TransactionView,
    record: tuple[bytes | bytearray, CursusFrame],
) -> _Built:
    route = chosen_route(call, staging.topic, staging.asked, staging.record_key)
    check_writable(call, route)
    data, read = record
    check_sizes(route, read, Ack.DURABLE)
    sequence = _sequence(call, view, route)
    start, end = read.messages_start, len(data)
    batches, facts = record_batches(
        call, route, data, start, end, 1, Sequencing(view.who, sequence), TRANSACTIONAL
    )
    return _Built(route, sequence, batches, facts)


def _sequence(call: Call, view: TransactionView, route: Route) -> int:
    written = call.broker.sourcing.producers.written(route.at, view.who)
    return (written[-1].sequence_last + 1) % _SEQUENCES if written else 0


def _stage(
    call: Call,
    staging: Staging,
    view: TransactionView,
    open_one: OpenTransaction,
    built: _Built,
) -> Appended:
    at = built.route.at
    call.broker.transactions.admit(view.name, view.who, at, enlists=True)
    appended = call.broker.log.append(
        at, memoryview(built.batches), built.facts, parted=True, opened=built.opened
    )
    open_one.note(staging.key, appended)
    open_one.counts[at] = open_one.counts.get(at, 0) + 1
    return appended


def _forget_failed(
    open_one: OpenTransaction, message: MessageKey, appended: Appended, settled: Later[Appended]
) -> None:
    """Whether a message that was refused is in the log is looked up when it is repeated."""
    try:
        settled.check()
    except BrokerError:
        if open_one.staged.get(message) is appended:
            del open_one.staged[message]
            open_one.counts[appended.at] = open_one.counts.get(appended.at, 1) - 1
        open_one.forget()


def send_offsets(call: Call) -> None:
    name = _name(call)
    view, open_one = _open(call, name)
    if not call.command.loose and not call.command.get("offsets"):
        raise Refused('invalid_txn_offsets reason="missing offset pairs"')
    topic, group, share = groups.member_share(call)
    call.run(_send_offsets(call, view, open_one, topic, group, share))


def _send_offsets(
    call: Call,
    view: TransactionView,
    open_one: OpenTransaction,
    topic: str,
    group: str,
    share: Share,
) -> Iterator[None]:
    wanted: dict[Partition, int] = {}
    yield from groups.pairs(call, topic, group, wanted)
    yield from groups.check_offsets(call, group, share, wanted)
    binding = (topic, group, share.member_id, share.generation)
    if open_one.binding not in (None, binding):
        raise Refused(
            'invalid_txn_offsets reason="all offsets of a transaction are of one topic, group, '
            'member and generation"'
        )
    settled: list[Later[None]] = []
    for some in groups.parted(wanted):
        later = call.broker.transactions.stage(view.name, view.who, group, some, enlists=True)
        settled.append(later)
        yield

    def staged(_: None) -> None:
        open_one.binding = binding
        open_one.offsets += len(wanted)
        call.reply(f"OK transactional_id={shown(view.name)} staged_offsets={open_one.offsets}")

    call.after(all_of(settled), staged)


def end(call: Call) -> None:
    name = _name(call)
    result = call.command.get("result", "commit").lower()
    if result not in ("commit", "abort"):
        raise Refused(f"invalid_transaction_result value={shown(result)}")
    view, open_one = _owned(call, name)
    commit = result == "commit"
    state = open_one.ended or _STATES.get(view.phase, "")
    if state in ("committed", "aborted"):
        _repeat(call, name, open_one, state, commit=commit)
        return
    if view.phase == "PrepareCommit" and not commit:
        raise Refused(f"transaction_not_abortable transactional_id={shown(name)} state=committing")
    later = _end(call, view, commit=commit)

    def ended(_: None) -> None:
        try:
            later.check()
        except TransactionState:
            if view.phase != "Empty":
                raise
            if not open_one.begun:
                raise _not_found(name) from None
            # Nothing was written: there is nothing for the broker to end.
        _finish(call, name, open_one, commit=commit)

    call.after(ready(later), ended)


def _end(call: Call, view: TransactionView, *, commit: bool) -> Later[Identity]:
    """End a transaction; the engine decides also where no write is known here.

    After a crash its marker may be in the log while the state does not know of it.
    """
    try:
        return call.broker.transactions.end(view.name, view.who, commit=commit, bump=False)
    except TransactionState as refusal:
        refused: Later[Identity] = Later()
        refused.refuse(refusal)
        return refused


def status(call: Call) -> None:
    name = _name(call)
    try:
        view = call.broker.transactions.view(name)
    except TransactionUnknown:
        raise _not_found(name) from None
    known = call.door.transactions.get(name)
    # Asking about a transaction of others does not make it one that this client is charged for.
    open_one = known if known and known.epoch == view.who.epoch else OpenTransaction(view.who.epoch)
    state = open_one.ended or _STATES.get(view.phase)
    if state is None:
        state = "open" if open_one.begun else "initialized"
    call.reply(
        f"OK transactional_id={shown(name)} state={state} messages={open_one.messages} "
        f"offsets={open_one.offsets}"
    )


def _finish(call: Call, name: str, open_one: OpenTransaction, *, commit: bool) -> None:
    open_one.ended = "committed" if commit else "aborted"
    open_one.staged.clear()
    open_one.known.clear()
    _tell(call, name, open_one)


def _tell(call: Call, name: str, open_one: OpenTransaction) -> None:
    counts = f" messages={open_one.messages} offsets={open_one.offsets}"
    more = counts if open_one.ended == "committed" else ""
    call.reply(f"OK transactional_id={shown(name)} state={open_one.ended}{more}")


def _repeat(call: Call, name: str, open_one: OpenTransaction, state: str, *, commit: bool) -> None:
    """It has ended: the same answer to the same wish, a refusal to the other."""
    if (state == "committed") is commit:
        open_one.ended = state
        _tell(call, name, open_one)
        return
    code = "transaction_already_committed" if state == "committed" else "transaction_aborted"
    raise Refused(f"{code} transactional_id={shown(name)}")


def _name(call: Call) -> str:
    name = transaction_of(call.command)
    if not name:
        raise Refused(f"missing_transactional_id command={call.command.verb}")
    return name


def _owned(call: Call, name: str) -> tuple[TransactionView, OpenTransaction]:
    """The transaction of this name, for its owner only."""
    command = call.command
    producer = command.get("producerId") or command.get("producer_id")
    if not producer:
        raise Refused(f"missing_producer_id command={command.verb}")
    epoch = 0
    if "epoch" in command.parameters:
        epoch = command.number("epoch", f"invalid_epoch command={command.verb}")
    failure = _FAILURES[command.verb]
    try:
        view = call.broker.transactions.view(name)
    except TransactionUnknown:
        if command.verb == "END_TXN":
            raise _not_found(name) from None
        reason = f"transaction {name} is not initialized; call INIT_PRODUCER_ID first"
        raise Refused(f"{failure} reason={quoted(reason)}") from None
    if producer != producer_of(name):
        reason = f"transaction {name} belongs to another producer"
        raise Refused(f"{failure} reason={quoted(reason)}")
    if epoch != view.who.epoch:
        reason = (
            f"producer fenced transactional_id={name} current_epoch={view.who.epoch} "
            f"requested_epoch={epoch}"
        )
        raise Refused(f"{failure} reason={quoted(reason)}")
    return view, call.transaction(name, view.who.epoch)


def _open(call: Call, name: str) -> tuple[TransactionView, OpenTransaction]:
    view, open_one = _owned(call, name)
    if open_one.ended or not (open_one.begun or view.phase == "Ongoing"):
        reason = f"transaction {name} is not open; call BEGIN_TXN first"
        raise Refused(f"{_FAILURES[call.command.verb]} reason={quoted(reason)}")
    return view, open_one


def _not_found(name: str) -> Refused:
    return Refused(f"transaction_not_found reason={quoted(f'transaction {name} not found')}")
