"""Transactions, on the broker's own: what other doors see of them is what they see of their own."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Final

from pentalog.broker.port import Committed, TransactionView
from pentalog.model.batch import TRANSACTIONAL
from pentalog.model.errors import BrokerError, TransactionUnknown
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Identity, Partition
from pentalog.protocols.cursus import records
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import OpenTransaction
from pentalog.protocols.cursus.errors import Refused, quoted, shown
from pentalog.protocols.cursus.messages import encoded, transaction_of
from pentalog.protocols.cursus.publishing import (
    Sequencing,
    append,
    check_sizes,
    check_writable,
    chosen_route,
)
from pentalog.protocols.cursus.verbs import groups

_TIMEOUT_MS: Final = 60_000
_SEEN_MAX: Final = 100
"""The last messages of a transaction, whose repetition is noticed: clients send one at a time."""
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
    later = call.broker.transactions.identify(name, timeout_ms=min(_TIMEOUT_MS, most))

    def identified(who: Identity) -> None:
        call.door.transaction(name, who.epoch)
        call.reply(
            f"OK transactional_id={shown(name)} producerId={_producer(name)} epoch={who.epoch}"
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
    open_one.begun = True
    call.reply(
        f"OK transactional_id={shown(name)} state=open producerId={_producer(name)} "
        f"epoch={view.who.epoch}"
    )


def publish(call: Call) -> None:
    command = call.command
    name = _name(call)
    topic, message = command.need("topic"), command.need("message")
    if not command.get("seqNum"):
        raise Refused('invalid_seq_num command=TXN_PUBLISH reason="missing seqNum"')
    reason = 'invalid_seq_num command=TXN_PUBLISH reason="must be 1 or more"'
    seq = command.number("seqNum", reason, least=1, most=(1 << 64) - 1)
    index = -1
    if "partition" in command.parameters:
        reason = "invalid_partition command=TXN_PUBLISH"
        index = command.number("partition", reason, least=-1, most=(1 << 31) - 1)
    view, open_one = _open(call, name)
    key = encoded(command.get("key"))
    route = chosen_route(call, topic, index, key)
    check_writable(call, route)
    data, read = records.single(
        producer=encoded(_producer(name)),
        seq=seq,
        epoch=view.who.epoch,
        key=key,
        payload=encoded(message),
    )
    check_sizes(route, read, Ack.DURABLE)
    if (route.at, seq) not in open_one.seen:
        call.broker.transactions.admit(view.name, view.who, route.at, enlists=True)
        written = call.broker.sourcing.producers.written(route.at, view.who)
        sequence = (written[-1].sequence_last + 1) % _SEQUENCES if written else 0
        appended = append(call, route, data, read, Sequencing(view.who, sequence), TRANSACTIONAL)
        open_one.messages += 1
        open_one.seen[route.at, seq] = None
        if len(open_one.seen) > _SEEN_MAX:
            del open_one.seen[next(iter(open_one.seen))]
        if not call.broker.knowledge.current:
            # Others keep it: what they have not taken must not seem to be in the transaction.
            settled = call.broker.log.settle(appended, Ack.DURABLE)
            settled.then(partial(_unsee, open_one, (route.at, seq)))
            told = f"topic={topic} partition={route.at.index}"
            call.after(settled, lambda _: _staged(call, name, open_one, told))
            return
    _staged(call, name, open_one, f"topic={topic} partition={route.at.index}")


def _staged(call: Call, name: str, open_one: OpenTransaction, where: str) -> None:
    call.reply(f"OK transactional_id={shown(name)} staged_messages={open_one.messages} {where}")


def _unsee(
    open_one: OpenTransaction, message: tuple[Partition, int], settled: Later[Appended]
) -> None:
    try:
        settled.check()
    except BrokerError:
        open_one.messages -= 1
        open_one.seen.pop(message, None)


def send_offsets(call: Call) -> None:
    name = _name(call)
    view, open_one = _open(call, name)
    if not call.command.loose and not call.command.get("offsets"):
        raise Refused('invalid_txn_offsets reason="missing offset pairs"')
    topic, group, share = groups.member_share(call)
    wanted = groups.pairs(call, topic, group)
    groups.check_offsets(call, group, share, wanted)
    binding = (topic, group, share.member_id, share.generation)
    if open_one.binding not in (None, binding):
        raise Refused(
            'invalid_txn_offsets reason="all offsets of a transaction are of one topic, group, '
            'member and generation"'
        )
    offsets = {at: Committed(offset) for at, offset in wanted.items()}
    later = call.broker.transactions.stage(name, view.who, group, offsets, enlists=True)

    def staged(_: None) -> None:
        open_one.binding = binding
        open_one.offsets += len(wanted)
        call.reply(f"OK transactional_id={shown(name)} staged_offsets={open_one.offsets}")

    call.after(later, staged)


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
    if view.phase == "Empty":
        if not open_one.begun:
            raise _not_found(name)
        # Nothing was written: there is nothing for the broker to end.
        _finish(call, name, open_one, commit=commit)
        return
    later = call.broker.transactions.end(name, view.who, commit=commit, bump=False)
    call.after(later, lambda _: _finish(call, name, open_one, commit=commit))


def status(call: Call) -> None:
    name = _name(call)
    try:
        view = call.broker.transactions.view(name)
    except TransactionUnknown:
        raise _not_found(name) from None
    open_one = call.door.transaction(name, view.who.epoch)
    state = open_one.ended or _STATES.get(view.phase)
    if state is None:
        state = "open" if open_one.begun else "initialized"
    call.reply(
        f"OK transactional_id={shown(name)} state={state} messages={open_one.messages} "
        f"offsets={open_one.offsets}"
    )


def _finish(call: Call, name: str, open_one: OpenTransaction, *, commit: bool) -> None:
    open_one.ended = "committed" if commit else "aborted"
    open_one.seen.clear()
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


def _producer(name: str) -> str:
    """What clients call the producer; the broker's own identity is a number."""
    return f"txn-{hashlib.sha256(encoded(name)).digest()[:8].hex()}"


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
    if producer != _producer(name):
        reason = f"transaction {name} belongs to another producer"
        raise Refused(f"{failure} reason={quoted(reason)}")
    if epoch != view.who.epoch:
        reason = (
            f"producer fenced transactional_id={name} current_epoch={view.who.epoch} "
            f"requested_epoch={epoch}"
        )
        raise Refused(f"{failure} reason={quoted(reason)}")
    return view, call.door.transaction(name, view.who.epoch)


def _open(call: Call, name: str) -> tuple[TransactionView, OpenTransaction]:
    view, open_one = _owned(call, name)
    if open_one.ended or not (open_one.begun or view.phase == "Ongoing"):
        reason = f"transaction {name} is not open; call BEGIN_TXN first"
        raise Refused(f"{_FAILURES[call.command.verb]} reason={quoted(reason)}")
    return view, open_one


def _not_found(name: str) -> Refused:
    return Refused(f"transaction_not_found reason={quoted(f'transaction {name} not found')}")
