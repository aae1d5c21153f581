"""How the shares of a written batch become visible: all of them, once, whatever crashes.

Several transactions cannot commit as one.  So the list of shares is recorded first, in a
transaction of the query's own: from then on the batch counts as written, and whoever meets the
list, this driver or the next one, commits what is left of it.  Before that nothing was committed,
and a new attempt starts over.

Tasks look for the list to save themselves the work; whether there is one, the driver decides, after
it has taken over the query's id.  Tasks that looked before the list was shown are not an error.

The list is metadata of offsets in the group of the query:

| Field | Bytes |
|---|---|
| batch number | 8 |
| per share: task, producer id, epoch, rows, digest | 4, 8, 2, 8, 8 |

deflated, as base64, in as many pieces `N/OF:BATCH:TEXT` as one partition's metadata is too small.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.clients.kafka import Cluster
from pentalog.clients.kafka.errors import Refused, Unreachable
from pentalog.clients.kafka.offsets import GroupOffset, committed
from pentalog.clients.kafka.transactions import TransactionalProducer
from pentalog.model.types import Partition
from pentalog.tables import steps
from pentalog.tables.shares import (
    Batch,
    Outcome,
    Share,
    Target,
    WriteRefused,
    abort_share,
    changed_rows,
    commit_share,
    name_of,
    write_share,
)

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_CHARACTERS: Final = 3900
"""Kafka takes 4096 unless told otherwise."""
_PIECE: Final = re.compile(r"(\d{1,9})/(\d{1,9}):(-?\d{1,19}):([A-Za-z0-9+/=]*)")
_NUMBER: Final = struct.Struct(">q")
_SHARE: Final = struct.Struct(">iqhqQ")
_LIST_BYTES_MAX: Final = 4 << 20
"""Of an unpacked list: 140,000 tasks."""
_LIST_TIMEOUT_MS: Final = 60_000
_SHOWN_MS: Final = 1_000
"""How long tasks wait for a list that is about to be shown, to spare writing their rows twice."""


class Plan(NamedTuple):
    """The shares of the last batch that counts as written."""

    batch: int
    shares: tuple[Share, ...]
    homes: tuple[Partition, ...]
    """Where its pieces are, in their order."""

    def share(self, index: int) -> Share | None:
        return next((one for one in self.shares if one.task == index), None)


def read_plan(cluster: Cluster, writer: str, *, stable: bool = True) -> Plan | None:
    """The newest list of shares, None if this query has never written."""
    pieces: dict[int, dict[int, tuple[Partition, str]]] = {}
    counts: dict[int, int] = {}
    for at, one in committed(cluster, name_of(writer), stable=stable).items():
        found = _PIECE.fullmatch(one.metadata)
        if found is not None:
            number = int(found[3])
            pieces.setdefault(number, {})[int(found[1])] = at, found[4]
            counts[number] = int(found[2])
    if not pieces:
        return None
    newest = max(pieces)
    parts = [part for _, part in sorted(pieces[newest].items())]
    if len(parts) != counts[newest]:
        raise WriteRefused(
            f"the list of batch {newest} of {writer} is not whole: {len(parts)} of "
            f"{counts[newest]} pieces are there"
        )
    return _decoded("".join(text for _, text in parts), writer, tuple(at for at, _ in parts))


class Seen(NamedTuple):
    """What a task finds before it writes."""

    listed: bool
    """The batch counts as written."""
    lost: Share | None
    """The task's share, if it is listed and gone."""


def write_task(target: Target, batch: Batch, index: int, rows: Iterable[pa.RecordBatch]) -> Outcome:
    """Write the rows of one task, unless a former attempt has written them."""
    seen = look(target, batch, index)
    if seen.listed and seen.lost is None:
        return Outcome(None, listed=True)
    return write_share(target, batch, index, rows, seen.lost)


def look(target: Target, batch: Batch, index: int) -> Seen:
    """Whether a task has anything to do; commits its share if that is listed."""
    if not batch.replayable:
        return Seen(False, None)
    plan = _shown_plan(target, batch.writer)
    with Cluster(target.servers, target.client) as cluster:
        _check_order(plan, batch)
        if plan is None or plan.batch < batch.number:
            return Seen(False, None)
        share = plan.share(index)
        lost = share is not None and not commit_share(cluster, batch, share)
        return Seen(True, share if lost else None)


def _shown_plan(target: Target, writer: str) -> Plan | None:
    """The newest list, if Kafka shows it: for a moment after its commit it may not.

    It reports a list that is about to appear only where it replaces an older one.  A driver that
    died while it recorded one must not hold tasks up for longer than that moment.
    """
    hasty = replace(target.client, timeout_ms=min(target.client.timeout_ms, _SHOWN_MS))
    try:
        with Cluster(target.servers, hasty) as cluster:
            return read_plan(cluster, writer)
    except (Refused, Unreachable):
        with Cluster(target.servers, target.client) as cluster:
            return read_plan(cluster, writer, stable=False)


def settle(target: Target, batch: Batch, shares: Sequence[Share], *, listed: bool) -> None:
    """Make the batch visible; `listed` says that one of its tasks found it recorded.

    After any failure the batch is to be written and settled again.
    """
    with Cluster(target.servers, target.client) as cluster:
        everything = shares
        if batch.replayable:
            everything = _recorded(cluster, target, batch, shares, listed=listed)
        gone = []
        for share in everything:
            if not commit_share(cluster, batch, share):
                gone.append(share.task)
            steps.reached("write-share")
    if gone:
        after = (
            "the next attempt writes these again"
            if batch.replayable
            else f"{len(everything) - len(gone)} of {len(everything)} tasks' rows are written"
        )
        raise WriteRefused(
            f"batch {batch.number} of {batch.writer}: the transactions of tasks {gone} are gone, "
            f"by timeout or because another attempt took them over; {after}"
        )


def give_up(target: Target, batch: Batch, shares: Sequence[Share]) -> None:
    """Abort the shares of a batch that failed, unless it counts as written already."""
    steps.reached("write-abort")
    with Cluster(target.servers, target.client) as cluster:
        plan = read_plan(cluster, batch.writer) if batch.replayable else None
        for share in shares:
            listed = plan.share(share.task) if plan and plan.batch >= batch.number else None
            if listed is None or listed.identity != share.identity:
                abort_share(cluster, batch, share)


def _recorded(
    cluster: Cluster, target: Target, batch: Batch, shares: Sequence[Share], *, listed: bool
) -> Sequence[Share]:
    """The shares to commit, recorded; those of the list, if the batch has one already."""
    # Taking the query's id over fences any other driver: from here on only this one can record.
    producer = TransactionalProducer(
        cluster, name_of(batch.writer), timeout_ms=min(target.timeout_ms, _LIST_TIMEOUT_MS)
    )
    plan = read_plan(cluster, batch.writer)
    _check_order(plan, batch)
    homes: tuple[Partition, ...] = ()
    if plan is not None and plan.batch == batch.number:
        shares, homes = _completed(cluster, batch, plan, shares), plan.homes
        if shares == plan.shares:
            return shares
    elif listed:
        raise WriteRefused(
            f"batch {batch.number} of {batch.writer} was recorded in group "
            f"{name_of(batch.writer)!r}, and the record is gone. Compare the topic with the "
            "query's input before you start the query again"
        )
    if not shares:
        return ()
    steps.reached("write-before-list")
    producer.commit_offsets(name_of(batch.writer), _encoded(batch, shares, homes))
    steps.reached("write-in-list")
    producer.commit()
    steps.reached("write-list")
    return shares


def _completed(
    cluster: Cluster, batch: Batch, plan: Plan, shares: Sequence[Share]
) -> tuple[Share, ...]:
    """The shares of a list, with those that tasks wrote again in place of lost ones.

    Tasks write a listed share again if it was lost, or if they looked before the list was shown:
    then taking over the share's id has aborted it.
    """
    again = {share.task: share for share in shares}
    completed = []
    for share in plan.shares:
        fresh = again.pop(share.task, None)
        if fresh is None or fresh.identity == share.identity:
            completed.append(share)
        elif commit_share(cluster, batch, share):
            # A listed share that outlived ours was written after it.
            raise WriteRefused(
                f"another driver wrote batch {batch.number} of {batch.writer} at the same time; "
                "stop one of them and start the other again"
            )
        elif (fresh.rows, fresh.digest) == (share.rows, share.digest):
            completed.append(fresh)
        else:
            raise changed_rows(batch, share.task)
    for unlisted in again.values():
        # The rows are divided otherwise this time; those of the list are the whole batch.
        abort_share(cluster, batch, unlisted)
    return tuple(completed)


def _check_order(plan: Plan | None, batch: Batch) -> None:
    if plan is not None and plan.batch > batch.number:
        raise WriteRefused(
            f"batch {batch.number} of {batch.writer} comes after batch {plan.batch} was written; "
            "its checkpoint was set back or made new. Give the query another name with "
            ".option('query', NAME), or bring the checkpoint back"
        )


def _encoded(
    batch: Batch, shares: Sequence[Share], replaced: Sequence[Partition] = ()
) -> Mapping[Partition, GroupOffset]:
    """The pieces of a list by partition, each in place of a piece of the list it replaces."""
    packed = _NUMBER.pack(batch.number) + b"".join(
        _SHARE.pack(one.task, one.producer_id, one.epoch, one.rows, one.digest) for one in shares
    )
    text = base64.b64encode(zlib.compress(packed, 9)).decode()
    parts = [text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS)]
    parts += [""] * (len(replaced) - len(parts))
    homes = [*replaced, *sorted({Partition(*one.home) for one in shares} - set(replaced))]
    if len(parts) > len(homes):
        raise WriteRefused(
            f"{len(shares)} tasks are too many for one batch to {len(homes)} partitions; use fewer "
            "with .coalesce(N) before writing"
        )
    return {
        homes[index]: GroupOffset(batch.number + 1, f"{index}/{len(parts)}:{batch.number}:{part}")
        for index, part in enumerate(parts)
    }


def _inflated(data: bytes) -> bytes:
    """Unpack a list; anyone who may commit offsets of the group may have written it."""
    inflating = zlib.decompressobj()
    packed = inflating.decompress(data, _LIST_BYTES_MAX)
    if inflating.unconsumed_tail or not inflating.eof:
        raise ValueError(f"it is cut off, or longer than {_LIST_BYTES_MAX} bytes")
    return packed


def _decoded(text: str, writer: str, homes: tuple[Partition, ...]) -> Plan:
    try:
        packed = _inflated(base64.b64decode(text, validate=True))
        (number,) = _NUMBER.unpack_from(packed)
        shares = tuple(
            Share(task, producer_id, epoch, rows, digest, homes[0])
            for task, producer_id, epoch, rows, digest in _SHARE.iter_unpack(packed[_NUMBER.size :])
        )
    except (zlib.error, binascii.Error, struct.error, ValueError) as error:
        raise WriteRefused(
            f"the list of shares in group {name_of(writer)} cannot be read: {error}"
        ) from error
    return Plan(number, shares, homes)
