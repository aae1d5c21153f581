"""Transactions: who may write in one, what takes part in it, when it ends.

Partitions remember which producers have open transactions, and offsets which producers have staged
some.  What a producer has added without writing to it is kept in the state: after a restart a batch
of an ended transaction that arrives late must not begin another one (KIP-890).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from pentalog.broker import patterns
from pentalog.broker.endings import Endings
from pentalog.broker.log import LocalLog
from pentalog.broker.patterns import NAME_CHARACTERS_MAX
from pentalog.broker.port import Committed, Offsets, Producers, TransactionView, WriterView
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.state import State
from pentalog.broker.transaction import (
    COLUMNS,
    DELETE,
    ENLIST,
    EPOCH_LAST,
    EPOCH_MAX,
    PREPARED,
    Participants,
    Phase,
    Transaction,
)
from pentalog.broker.transaction_views import Writers, view_of
from pentalog.config import Config
from pentalog.log.store import Store
from pentalog.model.errors import (
    BrokerError,
    InvalidTransactionTimeout,
    OffsetsFull,
    ProducerFenced,
    TransactionState,
    TransactionUnknown,
)
from pentalog.model.later import Later
from pentalog.model.types import Appended, Identity, Offset, Partition
from pentalog.runtime import Runtime, Slices, Timer

_log: Final = logging.getLogger(__name__)

SWEEP_MS: Final = 1_000
ADDED_MS: Final = 20
"""Delay before added participants are written; most transactions end sooner and need no row."""
EXPIRY_SWEEP_MS: Final = 600_000
PARTICIPANTS_BYTES_MAX: Final = 128 << 20
"""Of partitions and groups that take part in open transactions."""
_LOOKED_AT_ONCE: Final = 64
WAITING_MAX: Final = 100
"""Requests that may wait for one transaction's end."""


class _Opening(NamedTuple):
    """A producer that wants an identity."""

    name: str
    timeout_ms: int
    known: Identity | None
    later: Later[Identity]
    owner: str = ""


class LocalTransactions:
    """Implements `port.Transactions`."""

    def __init__(
        self,
        store: Store,
        log: LocalLog,
        state: State,
        producers: Producers,
        offsets: Offsets,
        runtime: Runtime,
        config: Config,
        slices: Slices | None = None,
    ) -> None:
        self._endings = Endings(store, log, state, offsets, runtime, self._rename, self._dismiss)
        self._slices = slices or Slices(runtime)
        self._store = store
        self._state = state
        self._producers = producers
        self._offsets = offsets
        self._runtime = runtime
        self._timeout_ms_max = config.transaction_timeout_ms_max
        self._expiration_ms = config.transactional_id_expiration_ms
        self._by_name: dict[str, Transaction] = {}
        self._names = PrincipalLimits(
            "transactional ids",
            config.transactional_ids_max,
            share_percent=config.principal_share_percent,
            setting="transactional_ids_max",
        )
        self._participants = PrincipalLimits(
            "bytes of participants of transactions",
            PARTICIPANTS_BYTES_MAX,
            share_percent=config.principal_share_percent,
            refusal=OffsetsFull,
        )
        self._by_producer: dict[int, Transaction] = {}
        self._ongoing: dict[str, Transaction] = {}
        self._adding: dict[str, Transaction] = {}
        """Transactions with unwritten participants; some may have ended since."""
        self._added_timer: Timer | None = None
        self._sweep_timer: Timer | None = None
        self._expiry_timer: Timer | None = None
        self._closed = False

    # A life: from opening to closing the broker

    def open(self) -> None:
        """Read the state and bring every partition into agreement with it."""
        for row in self._state.rows(f"SELECT {COLUMNS} FROM transactions"):
            entry = Transaction.of_row(row)
            self._by_name[entry.name] = entry
            self._names.add(entry.owner)
            self._by_producer[entry.producer_id] = entry
        for entry in list(self._by_name.values()):
            if entry.phase in PREPARED:
                self._endings.redo(entry)
        self._take_up()
        self._expiry_timer = self._runtime.after(EXPIRY_SWEEP_MS, self._expire)

    def close(self) -> None:
        """Change nothing any more."""
        self._closed = True
        self._endings.close()
        for timer in (self._added_timer, self._sweep_timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        self._write_added()

    def _take_up(self) -> None:
        """Go on with transactions found open, and abort those nobody could ever end."""
        outrun: dict[str, int] = {}
        for partition in self._store.all():
            for producer_id, producer in list(partition.producers.all().items()):
                entry = self._by_producer.get(producer_id)
                if entry is not None and producer.batches and producer.epoch > entry.epoch:
                    outrun[entry.name] = max(producer.epoch, outrun.get(entry.name, 0))
                if producer.transaction_start < 0:
                    continue
                if entry is not None and partition.at in entry.unmarked:
                    continue  # its end is decided: a marker that the disk refused is tried again
                if entry is None or producer.epoch != entry.epoch or entry.phase in PREPARED:
                    epoch = max(producer.epoch, -1 if entry is None else entry.epoch)
                    _log.warning("%s: aborted what producer %d left", partition.at, producer_id)
                    self._endings.write_marker(
                        partition.at, Identity(producer_id, epoch), commit=False
                    )
                else:
                    self._take_part(entry, Participants(partitions=[partition.at]))
        for producer_id in list(self._offsets.staged()):
            entry = self._by_producer.get(producer_id)
            if entry is None or entry.phase in PREPARED:
                self._offsets.finish(producer_id, commit=False, at_once=True)
            else:
                self._begin(entry)
        for name, text in self._state.rows("SELECT name, participants FROM enlisted"):
            entry = self._by_name[name]
            entry.enlisted += 1
            if entry.phase not in PREPARED:
                self._take_part(entry, Participants.of_text(text))
        self._fence_outrun(outrun)

    def _fence_outrun(self, epochs: Mapping[str, int]) -> None:
        """Raise epochs that batches in the log have outrun, other than markers.

        Without syncs a power cut may take the newest epoch from the state and leave its batches.
        Were it given again, new batches would pass for repetitions of those.
        """
        for name, epoch in epochs.items():
            self._by_name[name].epoch = min(epoch + 1, EPOCH_MAX)

    # Identities

    def identify(
        self, name: str, *, timeout_ms: int, known: Identity | None = None, owner: str = ""
    ) -> Later[Identity]:
        if len(name) > NAME_CHARACTERS_MAX:
            raise TransactionUnknown(
                f"a transactional id of {len(name)} characters; at most {NAME_CHARACTERS_MAX} are "
                "accepted"
            )
        if not 0 < timeout_ms <= self._timeout_ms_max:
            raise InvalidTransactionTimeout(
                f"transaction timeout {timeout_ms} ms of {name!r}; "
                f"accepted are 1..{self._timeout_ms_max} (transaction_timeout_ms_max)"
            )
        later: Later[Identity] = Later()
        self._open(_Opening(name, timeout_ms, known, later, owner))
        return later

    def _open(self, wish: _Opening) -> None:
        try:
            self._state.check()
            self._try_open(wish)
        except BrokerError as refusal:
            wish.later.refuse(refusal)

    def _try_open(self, wish: _Opening) -> None:
        entry = self._by_name.get(wish.name)
        if entry is None:
            self._names.check(wish.owner)
            self._producers.identify().then(partial(self._create, wish))
        elif entry.busy:
            self._open_after(entry, wish)
        elif not _may_open(entry, wish.known):
            raise entry.fenced(wish.known)
        elif entry.phase is Phase.ONGOING:
            self._fence(entry)
            fenced = None if wish.known is None else entry.identity
            self._open_after(entry, wish._replace(known=fenced))
        elif entry.epoch >= EPOCH_LAST and (wish.known is None or wish.known == entry.identity):
            entry.undecided = True
            self._producers.identify().then(partial(self._rotate, entry, wish))
        else:
            self._grant(entry, wish)

    def _open_after(self, entry: Transaction, wish: _Opening) -> None:
        def ended(identity: Identity | None) -> None:
            if identity is None:
                wish.later.refuse(entry.ending())
            else:
                self._open(wish)

        self._wait(entry, ended)

    def _create(self, wish: _Opening, identified: Later[Identity]) -> None:
        try:
            producer_id = identified.value.producer_id
        except BrokerError as refusal:
            wish.later.refuse(refusal)
            return
        if wish.name in self._by_name:
            self._open(wish)  # somebody was faster
            return
        entry = Transaction(wish.name, producer_id, wish.timeout_ms)
        entry.owner = wish.owner
        self._names.add(entry.owner)
        self._by_name[wish.name] = entry
        self._by_producer[producer_id] = entry
        self._grant(entry, wish._replace(known=None))

    def _rotate(self, entry: Transaction, wish: _Opening, identified: Later[Identity]) -> None:
        entry.undecided = False
        try:
            producer_id = identified.value.producer_id
        except BrokerError as refusal:
            wish.later.refuse(refusal)
            self._endings.release(entry, None)
            return
        last_epoch = entry.epoch
        self._rename(entry, producer_id)
        entry.epoch = -1
        self._grant(entry, wish._replace(known=None))
        entry.last_epoch = -1 if wish.known is None else last_epoch

    def _rename(self, entry: Transaction, producer_id: int) -> None:
        del self._by_producer[entry.producer_id]
        entry.previous_id, entry.producer_id = entry.producer_id, producer_id
        self._by_producer[producer_id] = entry

    def _grant(self, entry: Transaction, wish: _Opening) -> None:
        known = wish.known
        if known is None:
            entry.last_epoch, entry.epoch = -1, entry.epoch + 1
        elif known == entry.identity:
            entry.last_epoch, entry.epoch = entry.epoch, entry.epoch + 1
        # Otherwise the answer to this very wish was lost: the same epoch again.
        entry.timeout_ms = wish.timeout_ms
        entry.phase = Phase.EMPTY
        entry.uncertain = False
        entry.extents = {}
        entry.undecided = True
        self._endings.write(entry)
        self._state.settle().then(partial(self._granted, entry, wish))

    def _granted(self, entry: Transaction, wish: _Opening, settled: Later[None]) -> None:
        entry.undecided = False
        identity = entry.identity
        try:
            _ = settled.value
        except BrokerError as refusal:
            wish.later.refuse(refusal)
        else:
            wish.later.fill(identity)
        self._endings.release(entry, identity)

    # Taking part

    def enlist(self, name: str, who: Identity, at: Collection[Partition]) -> None:
        self._enlist(self._owned(name, who), Participants(partitions=at))

    def enlist_group(self, name: str, who: Identity, group: str) -> None:
        self._enlist(self._owned(name, who), Participants(groups=[group]))

    def _enlist(self, entry: Transaction, asked: Participants) -> None:
        new = asked
        if entry.phase is Phase.ONGOING:
            new = Participants(
                [at for at in asked.partitions if at not in entry.partitions],
                [group for group in asked.groups if group not in entry.groups],
            )
        if not any(new):
            return
        # Losing the row in a crash only makes the producer abort, so the answer does not wait.
        self._state.check()
        self._participants.check(entry.owner, new.size())
        self._take_part(entry, new)
        entry.added.append(new)
        self._adding[entry.name] = entry
        if self._added_timer is None:
            self._added_timer = self._runtime.after(ADDED_MS, self._write_added)

    def _write_added(self) -> None:
        self._added_timer = None
        for entry in self._adding.values():
            for added in entry.added:
                self._state.write(ENLIST, entry.name, entry.enlisted, added.text())
                entry.enlisted += 1
            entry.added = []
        self._adding.clear()

    def _take_part(self, entry: Transaction, found: Participants) -> None:
        self._begin(entry)
        size = found.size()
        self._participants.add(entry.owner, size)
        entry.charged += size
        entry.partitions.update(dict.fromkeys(found.partitions))
        entry.groups.update(found.groups)

    def _let_in(self, entry: Transaction, new: Participants) -> None:
        """Let take part what was written to without having been added."""
        self._participants.check(entry.owner, new.size())
        self._take_part(entry, new)

    def _dismiss(self, entry: Transaction) -> None:
        """Take all participants out of a transaction."""
        self._participants.release(entry.owner, entry.charged)
        entry.charged = 0
        entry.partitions, entry.groups = {}, set()

    def enlisted(self, name: str, who: Identity, at: Partition) -> bool:
        entry = self._owned(name, who)
        return entry.phase is Phase.ONGOING and at in entry.partitions

    def admit(self, name: str, who: Identity, at: Partition, *, enlists: bool) -> None:
        entry = self._owned(name, who)
        if entry.phase is Phase.ONGOING and at in entry.partitions:
            return
        if not enlists:
            raise TransactionState(
                f"{at} is not part of the transaction of {entry.name!r}: add it first"
            )
        self._let_in(entry, Participants(partitions=[at]))

    def stage(
        self,
        name: str,
        who: Identity,
        group: str,
        offsets: Mapping[Partition, Committed],
        *,
        enlists: bool,
    ) -> Later[None]:
        entry = self._owned(name, who)
        if not (enlists or (entry.phase is Phase.ONGOING and group in entry.groups)):
            raise TransactionState(
                f"group {group!r} is not part of the transaction of {name!r}: add its offsets first"
            )
        if entry.phase is not Phase.ONGOING or group not in entry.groups:
            self._let_in(entry, Participants(groups=[group]))
        return self._offsets.stage(who.producer_id, group, offsets, owner=entry.owner)

    def _owned(self, name: str, who: Identity) -> Transaction:
        entry = self._named(name)
        entry.check_owner(who)
        return entry

    def _named(self, name: str) -> Transaction:
        entry = self._by_name.get(name)
        if entry is None:
            raise TransactionUnknown(f"transactional id {name!r} is unknown: initialize it first")
        return entry

    def _begin(self, entry: Transaction) -> None:
        if entry.phase is not Phase.ONGOING:
            self._dismiss(entry)
            entry.phase = Phase.ONGOING
            entry.started_ms = self._runtime.now_ms()
            entry.started_s = self._runtime.monotonic()
            self._ongoing[entry.name] = entry
            self._arm()

    # Ending

    def end(self, name: str, who: Identity, *, commit: bool, bump: bool) -> Later[Identity]:
        entry = self._named(name)
        rotated = entry.bumps and entry.epoch == 0 and who.epoch == EPOCH_LAST
        rotated = rotated and who.producer_id == entry.previous_id
        if who.producer_id != entry.producer_id and not rotated:
            raise entry.stranger(who)
        repeated = rotated or (entry.bumps and who.epoch == entry.epoch - 1)
        if entry.phase in PREPARED:
            if not (repeated if entry.bumps else who.epoch == entry.epoch):
                raise entry.fenced(who)
            if commit != entry.commits:
                raise entry.impossible(commit)
            return self._after_end(entry)
        if entry.undecided:
            raise entry.ending()
        completed = entry.phase in (Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT)
        same = not entry.bumps and not bump and who.epoch == entry.epoch
        if completed and (repeated or same):
            if commit == entry.commits:
                return Later.now(entry.identity)
            if repeated or not entry.uncertain:
                raise entry.impossible(commit)
        if who.epoch != entry.epoch:
            raise entry.fenced(who)
        nothing_to_end = (bump and not commit) or entry.uncertain
        if entry.phase is not Phase.ONGOING and not nothing_to_end:
            raise entry.impossible(commit)
        return self._end(entry, commit=commit, bump=bump)

    def _end(self, entry: Transaction, *, commit: bool, bump: bool) -> Later[Identity]:
        self._state.check()
        if entry.phase is not Phase.ONGOING:
            self._dismiss(entry)
        if not bump or entry.epoch < EPOCH_LAST:
            self._prepare(entry, commit=commit, epoch=entry.epoch + int(bump), bumps=bump)
            return self._after_end(entry)
        entry.undecided = True
        later = self._after_end(entry)

        def identified(found: Later[Identity]) -> None:
            entry.undecided = False
            try:
                entry.next_id = found.value.producer_id
                self._prepare(entry, commit=commit, epoch=entry.epoch + 1, bumps=True)
            except BrokerError:
                entry.next_id = -1
                self._endings.release(entry, None)

        self._producers.identify().then(identified)
        return later

    def _after_end(self, entry: Transaction) -> Later[Identity]:
        later: Later[Identity] = Later()

        def ended(identity: Identity | None) -> None:
            if identity is None:
                later.refuse(entry.ending())
            else:
                later.fill(identity)

        if entry.busy:
            self._wait(entry, ended)
        else:
            later.fill(entry.identity)
        return later

    def _fence(self, entry: Transaction) -> None:
        """Abort, and let nobody who knows the present epoch go on."""
        self._prepare(entry, commit=False, epoch=entry.epoch + 1, bumps=False)

    def _prepare(self, entry: Transaction, *, commit: bool, epoch: int, bumps: bool) -> None:
        self._endings.prepare(entry, commit=commit, epoch=epoch, bumps=bumps)
        self._ongoing.pop(entry.name, None)

    # Past the rules, and for those who look

    def mark(self, who: Identity, at: Partition, *, commit: bool) -> Later[None]:
        producer = self._store.get(at).producers.get(who.producer_id)
        if producer is not None and who.epoch < producer.epoch:
            raise ProducerFenced(
                f"marker of producer {who.producer_id} with epoch {who.epoch} for {at}; "
                f"accepted from {producer.epoch} on"
            )
        later: Later[None] = Later()

        def settled(marker: Later[Appended]) -> None:
            try:
                _ = marker.value
            except BrokerError as refusal:
                later.refuse(refusal)
            else:
                later.fill(None)

        self._endings.write_marker(at, who, commit=commit).then(settled)
        return later

    def all(self, pattern: str | None = None) -> Iterator[TransactionView | None]:
        wanted = patterns.pattern(pattern) if pattern else None
        return self._views(wanted)

    def _views(self, wanted: patterns.Pattern | None) -> Iterator[TransactionView | None]:
        for name in tuple(self._by_name):
            entry = self._by_name.get(name)
            known = entry is not None and (wanted is None or wanted.matches(name))
            yield view_of(entry) if entry is not None and known else None

    def view(self, name: str) -> TransactionView:
        return view_of(self._named(name))

    def writers(self, at: Partition) -> Sequence[WriterView]:
        return Writers(self._store.get(at).producers.all())

    def unended(self, at: Partition) -> Offset | None:
        return self._store.get(at).producers.open_transaction_start

    # Waiting, writing, sweeping

    def _wait(self, entry: Transaction, run: Callable[[Identity | None], None]) -> None:
        if len(entry.waiting) >= WAITING_MAX:
            raise entry.ending()
        entry.waiting.append(run)

    def _arm(self) -> None:
        if self._sweep_timer is None and not self._closed:
            self._sweep_timer = self._runtime.after(SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        self._slices.run(self._time_out_some(), self._swept)

    def _time_out_some(self) -> Iterator[None]:
        """Abort what is overdue, one at a time: clients may have begun thousands at once."""
        now_s = self._runtime.monotonic()
        for number, name in enumerate(tuple(self._ongoing)):
            entry = self._ongoing.get(name)
            overdue = entry is not None and (now_s - entry.started_s) * 1000 >= entry.timeout_ms
            if entry is not None and overdue and not entry.busy and not self._closed:
                self._time_out(entry)
                yield
            elif not number % _LOOKED_AT_ONCE:
                yield

    def _swept(self, error: Exception | None) -> None:
        self._sweep_timer = None
        if self._ongoing:
            self._arm()
        if error is not None:
            raise error

    def _time_out(self, entry: Transaction) -> None:
        try:
            self._fence(entry)
        except BrokerError as refusal:
            _log.warning("cannot abort transaction %r yet: %s", entry.name, refusal)
            return
        _log.info("aborted transaction %r after %d ms", entry.name, entry.timeout_ms)

    def _expire(self) -> None:
        """Forget names nobody has used for long."""
        before_ms = self._runtime.now_ms() - self._expiration_ms
        for entry in list(self._by_name.values()):
            idle = not entry.busy and entry.phase is not Phase.ONGOING
            if idle and entry.updated_ms < before_ms:
                del self._by_name[entry.name], self._by_producer[entry.producer_id]
                self._names.release(entry.owner)
                self._state.write(DELETE, entry.name)
        self._expiry_timer = self._runtime.after(EXPIRY_SWEEP_MS, self._expire)


def _may_open(entry: Transaction, known: Identity | None) -> bool:
    if known is None or entry.epoch < 0 or known == entry.identity:
        return True
    own = known.producer_id == entry.producer_id
    rotated = known.producer_id == entry.previous_id and known.epoch >= EPOCH_LAST
    return (own or rotated) and entry.last_epoch >= 0 and known.epoch == entry.last_epoch
