"""The controller's port (SC): objects are created, deleted, listed, changed and watched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Final

from pentalog.broker.port import TopicSpec
from pentalog.broker.security import Kind
from pentalog.broker.transformation import SmartModule
from pentalog.model.errors import BrokerError, Overloaded, SmartModuleInvalid
from pentalog.model.later import Later
from pentalog.protocols.fluvio import errors, frames, objects, rights
from pentalog.protocols.fluvio.codec import Reader, Undecodable, Writer, is_told
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.forwarding import Errand, is_forwarded, is_trusted, owned
from pentalog.protocols.fluvio.session import CHANGE_WORK, Answer, Api, Call, FluvioSession
from pentalog.protocols.fluvio.watches import WATCHES_MAX, Watch
from pentalog.session import Context, Replies

VERSION_MIN: Final = 11
"""Older ones wrap objects in another way, which no client in use sends."""
VERSION_MAX: Final = 19
_LIST_VERSION_MIN: Final = 15
_FILTERS_MAX: Final = 100
"""Of one List: every name is compared with every filter."""
_TOPICS_PER_STEP: Final = 32
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RETENTION_S_MIN: Final = 10
_SEGMENT_BYTES_MIN: Final = 1024
_KAFKA_SEGMENT_BYTES_MIN: Final = 1 << 20
"""A cluster keeps none that are smaller."""
_PARTITION_BYTES_MIN: Final = 2048
_SPU_NOT_FOUND: Final = WireError(1003)
_MISSING: Final[Mapping[str, WireError]] = {
    objects.CUSTOM_SPU: _SPU_NOT_FOUND,
    objects.SPU: _SPU_NOT_FOUND,
    objects.SPU_GROUP: errors.other("there are no SPU groups: every broker is one SPU"),
    objects.TABLE_FORMAT: WireError(7001),
    objects.MIRROR: WireError(11001),
}
"""What deleting something answers of which there is never any."""


class Refused(Exception):
    """A refusal in Fluvio's own words."""

    def __init__(self, error: WireError, text: str) -> None:
        super().__init__(text)
        self.error = error


def _unwrap(reader: Reader) -> tuple[str, Reader]:
    """The label of the object a request is about, and what is said of it."""
    label = reader.text()
    if label not in objects.LABELS:
        raise Undecodable(f"objects of type {label[:40]!r} are not known")
    size = reader.u32()
    start = reader.skip(size)
    reader.finish()
    return label, Reader(reader.data, start, start + size, reader.version)


def _status(call: Call, name: str, error: WireError = errors.FINE, text: str = "") -> Writer:
    body = call.writer().text(name)
    error.write(body)
    return body.option_text(text or None)


def _carry_out(call: Call, name: str, act: Callable[[], Later[None] | None]) -> None:
    """Do something to an object; answered when it is on the disk."""
    try:
        settled = act()
    except Refused as refusal:
        call.answer(_status(call, name, refusal.error, str(refusal)))
        return
    except BrokerError as refusal:
        call.answer(_refusal_status(call, name, refusal))
        return
    if settled is None or settled.ready:
        _answer_settled(call, None, name, settled)
        return
    answer = call.place()
    settled.then(lambda later: _answer_settled(call, answer, name, later))


def _answer_settled(
    call: Call, answer: Answer | None, name: str, settled: Later[None] | None
) -> None:
    body = _status(call, name)
    if settled is not None:
        try:
            _ = settled.value
        except BrokerError as refusal:
            body = _refusal_status(call, name, refusal)
    if answer is None:
        call.answer(body)
    else:
        answer.fill(body)


def _refusal_status(call: Call, name: str, refusal: BrokerError) -> Writer:
    if isinstance(refusal, SmartModuleInvalid):
        error = errors.module_invalid(str(refusal), name)
    elif isinstance(refusal, Overloaded) and is_forwarded(call) and not owned(call.context.broker):
        error = WireError(errors.NOT_LEADER)
    else:
        error = errors.error_of(refusal)
    return _status(call, name, error, str(refusal))


def _carry_out_at_owner(call: Call, start: int, name: str, act: Callable[[], Later[None]]) -> None:
    """Do it here if this gateway owns what is kept; else let the one that does."""
    forwarded = is_forwarded(call)
    if forwarded and not is_trusted(call):
        text = "this gateway knows another owner than the one that asks: try again"
        call.answer(_status(call, name, WireError(errors.NOT_LEADER), text))
        return
    try:
        if forwarded:
            call.know(lambda known: [known.owner()])
        else:
            rights.check(call, rights.SC, objects.SMART_MODULE, name)
    except BrokerError as refusal:
        call.answer(_refusal_status(call, name, refusal))
        return
    if forwarded or call.context.broker.knowledge.current:
        _carry_out(call, name, act)
        return

    def status(refusal: BrokerError | None) -> Writer:
        return _status(call, name) if refusal is None else _refusal_status(call, name, refusal)

    body = bytes(call.reader.data[start : call.reader.end])
    Errand(call, body, act, status).start()


def create(call: Call) -> None:
    start = call.reader.at
    label, reader = _unwrap(call.reader)
    name, dry_run = reader.text(), reader.boolean()
    reader.option(reader.u32)
    if label == objects.TOPIC:
        wish = objects.read_topic(reader)
        reader.finish()
        _carry_out(call, name, lambda: _create_topic(call, name, wish, dry_run=dry_run))
    elif label == objects.SMART_MODULE:
        module = objects.read_module(reader)
        reader.finish()
        make = partial(_create_module, call, name, module, dry_run=dry_run)
        _carry_out_at_owner(call, start, name, make)
    else:
        _carry_out(call, name, lambda: _make_nothing(call, label, name))


def _make_nothing(call: Call, label: str, name: str) -> Later[None]:
    rights.check(call, rights.SC, label, name)
    text = f"{label} objects cannot be made here; topics and SmartModules can"
    raise Refused(errors.other(text), text)


def _create_module(
    call: Call, name: str, wish: objects.ModuleWish, *, dry_run: bool
) -> Later[None]:
    modules = call.context.broker.smart_modules
    made = modules.create(
        SmartModule(name, wish.wasm, wish.package),
        owner=call.context.access.owner,
        dry_run=dry_run,
    )
    if not dry_run:
        call.context.access.record("create SmartModule", name)
    return made


def _create_topic(
    call: Call, name: str, wish: objects.TopicWish, *, dry_run: bool
) -> Later[None] | None:
    rights.check(call, rights.SC, objects.TOPIC, name)
    _check_topic(name, wish)
    settings: dict[str, str] = {}
    if wish.retention_s is not None:
        settings["retention.ms"] = str(wish.retention_s * 1000)
    if wish.segment_bytes is not None:
        least = 0 if call.context.broker.knowledge.current else _KAFKA_SEGMENT_BYTES_MIN
        settings["segment.bytes"] = str(max(least, min(wish.segment_bytes, (1 << 31) - 1)))
    if wish.partition_bytes_max is not None:
        settings["retention.bytes"] = str(min(wish.partition_bytes_max, (1 << 63) - 1))
    if wish.compression != "producer":
        settings["compression.type"] = wish.compression
    topics = call.context.broker.topics
    spec = TopicSpec(name=name, partitions=wish.partitions, settings=settings)
    call.context.usage.check_change()
    call.know(lambda known: [known.topics()])
    if dry_run or call.context.broker.knowledge.current:
        topics.create(spec, dry_run=True)
    if dry_run:
        return None

    def make() -> Later[None]:
        call.session.work += CHANGE_WORK
        topics.create(spec)
        call.context.usage.changed(wish.partitions)
        call.context.access.record("create topic", name)
        return topics.settle()

    return _when_prepared(call, spec, make)


def _when_prepared(call: Call, spec: TopicSpec, make: Callable[[], Later[None]]) -> Later[None]:
    """Do it once the directories of a topic are there; nothing else is served meanwhile."""
    if not call.context.broker.knowledge.current:
        call.know(lambda _: [call.context.broker.topics.prepare(spec)])
        return make()
    prepared = call.context.broker.topics.prepare(spec)
    if prepared.ready:
        prepared.check()
        return make()
    made: Later[None] = Later()
    release = call.session.replies.hold()

    def settled(later: Later[None]) -> None:
        try:
            made.fill(later.value)
        except BrokerError as refusal:
            made.refuse(refusal)

    def arrived(later: Later[None]) -> None:
        release()
        try:
            later.check()
            settling = make()
        except BrokerError as refusal:
            made.refuse(refusal)
        else:
            settling.then(settled)

    prepared.then(arrived)
    return made


def _check_topic(name: str, wish: objects.TopicWish) -> None:
    """What a Fluvio controller refuses, and what this broker cannot honour."""
    if not _NAME.fullmatch(name):
        raise Refused(
            WireError(errors.TOPIC_INVALID_NAME),
            f"topic name {name[:80]!r}; accepted are 1 to 63 of a-z, 0-9 and dashes inside",
        )
    if name == objects.OFFSETS_TOPIC:
        raise Refused(WireError(errors.TOPIC_EXISTS), f"topic {name} exists already")
    if wish.mirrored:
        text = "mirrored topics are not kept here; give a number of partitions"
        raise Refused(errors.other(text), text)
    if wish.system:
        text = "system topics cannot be made by clients; leave `system` out"
        raise Refused(errors.other(text), text)
    if wish.deduplicated:
        text = "deduplication is not done here; derive a topic with a SmartModule instead"
        raise Refused(errors.other(text), text)
    if wish.partitions < 1 or wish.replication < 1:
        raise Refused(
            WireError(errors.TOPIC_ERROR), "0 partitions or copies; accepted is 1 or more of each"
        )
    segment = _SEGMENT_BYTES_MIN if wish.segment_bytes is None else wish.segment_bytes
    least = max(segment, _PARTITION_BYTES_MIN)
    flawed = (
        (wish.retention_s is not None and wish.retention_s < _RETENTION_S_MIN)
        or segment < _SEGMENT_BYTES_MIN
        or (wish.partition_bytes_max is not None and wish.partition_bytes_max < least)
    )
    if flawed:
        raise Refused(
            WireError(errors.TOPIC_INVALID_CONFIG),
            f"accepted are a retention from {_RETENTION_S_MIN} s, segments from "
            f"{_SEGMENT_BYTES_MIN} bytes, partitions from {_PARTITION_BYTES_MIN} bytes and no "
            "smaller than a segment",
        )


def delete(call: Call) -> None:
    start = call.reader.at
    label, reader = _unwrap(call.reader)
    if label == objects.CUSTOM_SPU:
        kind = reader.text()
        name = str(reader.i32()) if kind == "Id" else reader.text()
    else:
        name = reader.text()
    if reader.version >= 13:
        reader.boolean()
    reader.finish()
    if label == objects.SMART_MODULE:
        _carry_out_at_owner(call, start, name, partial(_delete_module, call, name))
    else:
        _carry_out(call, name, partial(_delete, call, label, name))


def _delete_module(call: Call, name: str) -> Later[None]:
    modules = call.context.broker.smart_modules
    modules.delete(name)
    call.context.access.record("delete SmartModule", name)
    return modules.settle()


def _delete(call: Call, label: str, name: str) -> Later[None]:
    rights.check(call, rights.SC, label, name)
    broker = call.context.broker
    if label == objects.TOPIC:
        if name == objects.OFFSETS_TOPIC:
            raise Refused(
                errors.texts(errors.SYSTEM_DELETION, "topic", name), f"{name} is a system topic"
            )
        call.context.usage.check_change()
        call.know(lambda known: [known.topics()])
        partitions = broker.topics.get(name).partitions
        call.session.work += CHANGE_WORK
        broker.topics.delete(name)
        call.context.usage.changed(partitions)
        call.context.access.record("delete topic", name)
        return broker.topics.settle()
    if label == objects.PARTITION:
        text = "partitions cannot be deleted; delete their topic"
        raise Refused(errors.other(text), text)
    raise Refused(_MISSING[label], f"there is no {label} {name!r}")


def list_objects(call: Call) -> None:
    label, reader = _unwrap(call.reader)
    filters = reader.many(reader.text)
    if len(filters) > _FILTERS_MAX:
        raise Undecodable(f"{len(filters)} filters; accepted are {_FILTERS_MAX}")
    summary = reader.boolean()
    system = reader.boolean()
    reader.finish()
    if label in (objects.TOPIC, objects.PARTITION):
        call.know(lambda known: [known.topics(settings=True)])
    if label not in (objects.TOPIC, objects.PARTITION) or call.context.broker.knowledge.current:
        call.slice(_listing(call, label, filters, summary=summary, system=system))
        return
    found = {
        name: entry
        for name, entry in call.session.door.seen(label).items()
        if not system and _matches(filters, name) and call.context.access.sees(Kind.TOPIC, name)
    }
    if label == objects.PARTITION:
        call.know(lambda known: [known.sizes(found), *(known.partitions(name) for name in found)])
    call.slice(_write_list(call, label, found, filters, summary=summary, system=system))


def _listing(
    call: Call, label: str, filters: list[str], *, summary: bool, system: bool
) -> Iterator[None]:
    """Find what is listed, and answer with it."""
    door, access = call.session.door, call.context.access
    found: dict[str, object] = {}
    if label == objects.SPU:
        found.update(door.spus.seen_by(call.context))
    elif label in (objects.TOPIC, objects.PARTITION):
        for number, topic in enumerate(() if system else call.context.broker.topics.all()):
            if not number % _TOPICS_PER_STEP:
                yield
            if not access.guarded or access.sees(Kind.TOPIC, topic.name):
                found[topic.name] = topic
    else:
        found.update((yield from rights.visible(access, label, door.seen(label))))
    chosen: dict[str, object] = {}
    for name, each in found.items():
        if _matches(filters, name) and is_told(name):
            chosen[name] = each
        yield
    yield from _write_list(call, label, chosen, filters, summary=summary, system=system)


def _write_list(
    call: Call,
    label: str,
    found: Mapping[str, object],
    filters: list[str],
    *,
    summary: bool,
    system: bool,
) -> Iterator[None]:
    body = call.writer()
    shown = system and _matches(filters, objects.OFFSETS_TOPIC)
    yield from call.session.door.write_all(body, label, found, summary=summary, system=shown)
    head = call.writer().text(label).u32(body.size)
    call.session.send(*frames.answer_pieces(call.head.correlation_id, head, body))


def _matches(filters: list[str], name: str) -> bool:
    return not filters or any(text in name for text in filters)


def watch(call: Call) -> None:
    label, reader = _unwrap(call.reader)
    reader.i64()
    summary = reader.boolean()
    reader.finish()
    if label in (objects.TOPIC, objects.PARTITION):
        call.know(lambda known: [known.topics(settings=True)])
    session = call.session
    assert isinstance(session, ScSession)
    if len(session.watches) >= WATCHES_MAX:
        raise Undecodable(f"more than {WATCHES_MAX} watches on one connection")
    opened = Watch(call, label, summary=summary)
    session.watches.append(opened)
    call.slice(opened.opening())


def update(call: Call) -> None:
    label, reader = _unwrap(call.reader)
    name = reader.text()
    if label != objects.TOPIC:
        _carry_out(call, name, lambda: _change_nothing(call, label, name))
        return
    action = reader.u8()
    count = 0
    if action == 0:
        count = reader.u32()
        reader.finish()
    _carry_out(call, name, lambda: _grow(call, name, action, count))


def _change_nothing(call: Call, label: str, name: str) -> Later[None]:
    rights.check(call, rights.SC, label, name)
    text = f"{label} objects cannot be changed here; topics can get more partitions"
    raise Refused(errors.other(text), text)


def _grow(call: Call, name: str, action: int, count: int) -> Later[None]:
    rights.check(call, rights.SC, objects.TOPIC, name)
    topics = call.context.broker.topics
    if name == objects.OFFSETS_TOPIC:
        raise Refused(
            errors.texts(errors.SYSTEM_UPDATE, "topic", name), f"{name} is a system topic"
        )
    if action != 0:
        text = "mirrors are not kept here; accepted is adding partitions"
        raise Refused(errors.other(text), text)
    call.context.usage.check_change()
    call.know(lambda known: [known.topics()])
    partitions = topics.get(name).partitions + count
    topics.grow(name, partitions, dry_run=True)

    def make() -> Later[None]:
        call.session.work += CHANGE_WORK
        topics.grow(name, partitions)
        call.context.usage.changed(count)
        call.context.access.record("add partitions", name)
        return topics.settle()

    if not call.context.broker.knowledge.current:
        return make()
    return _when_prepared(call, TopicSpec(name=name, partitions=partitions), make)


class ScSession(FluvioSession):
    """One connection to the controller's port."""

    platform_version = "0.18.1"
    apis: ClassVar[Mapping[int, Api]] = {
        1001: Api("Create", VERSION_MIN, VERSION_MAX, create),
        1002: Api("Delete", VERSION_MIN, VERSION_MAX, delete),
        1003: Api("List", _LIST_VERSION_MIN, VERSION_MAX, list_objects),
        1004: Api("Watch", _LIST_VERSION_MIN, VERSION_MAX, watch),
        1006: Api("Update", VERSION_MIN, VERSION_MAX, update),
    }

    def __init__(self, context: Context, replies: Replies) -> None:
        super().__init__(context, replies)
        self.watches: list[Watch] = []

    def close(self) -> None:
        super().close()
        for opened in self.watches:
            self.door.forget(opened)
        self.watches.clear()
