"""Topics: CREATE, DELETE, LIST, DESCRIBE, METADATA, LIST_OFFSETS, FIND_COORDINATOR."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from pentalog.broker.port import Topic, TopicSpec
from pentalog.broker.security import Kind
from pentalog.model.errors import BrokerError, InvalidPartitions, TopicExists, TopicNotFound
from pentalog.model.later import Later, all_of
from pentalog.model.types import Partition
from pentalog.protocols.cursus import ownership
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused, quoted, shown
from pentalog.protocols.cursus.options import (
    MESSAGE_BYTES_MAX,
    PARTITIONS_DEFAULT,
    Options,
    Wish,
    is_name,
    options_of,
    policy_words,
    wish_of,
)
from pentalog.protocols.cursus.policies import POLICY, change_policy, policy_of
from pentalog.protocols.cursus.verbs.listings import reply_listing
from pentalog.session import Address

_STEP: Final = 200
"""Topics or partitions that a long request looks at in one step."""
_PARTITION: Final = """\
    {
      "id": %d,
      "leader": "",
      "replicas": null,
      "isr": null,
      "leo": %d,
      "hwm": %d
    }"""
_JOINT: Final = ",\n"


def create(call: Call) -> None:
    wish = wish_of(call.command)
    topics = call.broker.topics
    try:
        topics.get(wish.topic)
    except TopicNotFound:
        _make(call, wish)
    else:
        _found(call, wish)


def _settle(call: Call, wish: Wish, *, made: bool = False) -> None:
    topics = call.broker.topics
    call.door.forget()

    def kept(settled: Later[None]) -> None:
        try:
            settled.check()
        except BrokerError:
            _unmake(call, wish)

    def settled(_: None) -> None:
        call.door.forget()
        topic = topics.get(wish.topic)
        call.reply(f"OK topic={topic.name} partitions={topic.partitions} {_policy(call, topic)}")

    rules = call.broker.rules.settle()
    changes = topics.settle()
    if made:
        changes.then(kept)
    call.after(changes, lambda _: call.after(rules, settled))


def _make(call: Call, wish: Wish) -> None:
    settings = {name: value for name, value in wish.settings.items() if value is not None}
    settings["max.message.bytes"] = str(MESSAGE_BYTES_MAX)
    if wish.event_sourcing:
        # Versions count from the first event: it must not expire unless that was asked for.
        settings.setdefault("retention.ms", "-1")
    partitions = PARTITIONS_DEFAULT if wish.partitions is None else wish.partitions
    spec = TopicSpec(name=wish.topic, partitions=partitions, settings=settings)
    call.session.context.usage.check_change()
    _prepare(call, spec, partial(_prepared, call, wish, spec))


def _prepare(call: Call, spec: TopicSpec, run: Callable[[Later[None]], None]) -> None:
    """Build partitions over several turns; requests that follow wait for the topic."""
    try:
        prepared = call.broker.topics.prepare(spec)
    except InvalidPartitions as refusal:
        raise _too_many(refusal) from None
    if prepared.ready:
        run(prepared)
        return
    call.keep_place()
    release = call.session.hold()

    def built(there: Later[None]) -> None:
        release()
        call.attempt(partial(run, there))

    prepared.then(built)


def _too_many(refusal: InvalidPartitions) -> Refused:
    return Refused(f"invalid_partitions reason={quoted(str(refusal))}")


def _prepared(call: Call, wish: Wish, spec: TopicSpec, prepared: Later[None]) -> None:
    try:
        prepared.check()
    except TopicExists:
        # Somebody else has made it meanwhile, as every producer does at its start.
        call.after(call.broker.knowledge.topic(wish.topic), lambda _: _found(call, wish))
        return
    except InvalidPartitions as refusal:
        raise _too_many(refusal) from None
    _made(call, wish, spec)


def _found(call: Call, wish: Wish) -> None:
    topic = found(call, wish.topic)
    wanted = wish.partitions
    _check_change(call, topic, wish)
    if wanted is None or wanted <= topic.partitions or not call.broker.knowledge.current:
        _changed(call, wish)
        return
    call.session.context.usage.check_change()
    spec = TopicSpec(name=topic.name, partitions=wanted)

    def built(prepared: Later[None]) -> None:
        prepared.check()
        _changed(call, wish)

    _prepare(call, spec, built)


def _changed(call: Call, wish: Wish) -> None:
    topic = found(call, wish.topic)
    _check_change(call, topic, wish)
    _change(call, topic, wish)
    _settle(call, wish)


def _made(call: Call, wish: Wish, spec: TopicSpec) -> None:
    try:
        made = call.broker.topics.create(spec)
    except InvalidPartitions as refusal:
        raise _too_many(refusal) from None
    call.session.context.usage.changed(made.partitions)
    kept = dict(wish.kept)
    kept |= {"idempotent": "true"} if wish.idempotent else {}
    if wish.event_sourcing:
        kept |= {"event_sourcing": "true", "stream_partitions": str(made.partitions)}
    try:
        _keep(call, wish.topic, kept)
    except BrokerError:
        _unmake(call, wish)
        raise
    call.session.context.access.record("create topic", wish.topic)
    _settle(call, wish, made=bool(kept))


def _unmake(call: Call, wish: Wish) -> None:
    """Without its options it would be taken for another topic than was asked for."""
    if not call.broker.knowledge.current:
        with contextlib.suppress(TopicNotFound):
            call.broker.topics.delete(wish.topic)


def _check_change(call: Call, topic: Topic, wish: Wish) -> None:
    """Refuse a CREATE of a topic that cannot become what is asked for."""
    wanted = wish.partitions
    if wanted is not None and wanted < topic.partitions:
        reason = (
            f"cannot decrease partition count for topic '{topic.name}': "
            f"{topic.partitions} -> {wanted}"
        )
        raise Refused(f"create_topic_failed topic={topic.name} reason={quoted(reason)}")
    compacts = "compact" in (wish.settings.get("cleanup.policy") or "")
    options = _options(call, topic.name)
    if compacts and options.event_sourcing:
        raise Refused(
            "invalid_topic_policy field=cleanup_policy "
            'reason="compaction is not supported for event-sourcing topics"'
        )


def _change(call: Call, topic: Topic, wish: Wish) -> None:
    """Only what the request names changes: every producer sends a plain one at its start."""
    wanted = wish.partitions
    if wanted is not None and wanted > topic.partitions:
        call.session.context.usage.check_change()
        call.broker.topics.grow(topic.name, wanted)
        call.session.context.usage.changed(wanted - topic.partitions)
    if wish.settings:
        call.broker.topics.configure(topic.name, wish.settings)
    _keep(call, topic.name, wish.kept)
    if wish.settings or wish.kept or (wanted is not None and wanted > topic.partitions):
        call.session.context.access.record("change topic", topic.name)


def _keep(call: Call, topic: str, kept: Mapping[str, str]) -> None:
    """Remember options; where rules are asked, those about access become rules."""
    policy: dict[str, str] = {}
    if call.session.context.access.guarded:
        policy = {name: value for name, value in kept.items() if name in POLICY}
    if policy:
        change_policy(call.broker.rules, topic, policy)
        call.session.context.access.record("change rules", f"topic {topic}")
    others = {name: value for name, value in kept.items() if name not in policy}
    call.broker.sourcing.options.set(topic, others)


def _options(call: Call, topic: str) -> Options:
    kept = dict(call.broker.sourcing.options.get(topic))
    if call.session.context.access.guarded:
        kept |= policy_of(call.broker.rules, topic)
    return options_of(kept)


def delete(call: Call) -> None:
    name = call.command.get("topic")
    if not name:
        raise Refused('missing_topic expected="DELETE topic=<name>"')
    topic = found(call, name)
    call.session.context.usage.check_change()
    call.broker.topics.delete(topic.name)
    call.session.context.usage.changed(topic.partitions)
    call.session.context.access.record("delete topic", topic.name)
    call.door.forget()
    done = f"OK topic={topic.name} deleted=true"
    call.after(call.broker.topics.settle(), lambda _: call.reply(done))


def list_topics(call: Call) -> None:
    name = call.command.get("topic")
    if name:
        topic = found(call, name)
        call.reply(f"OK count=1 topics={topic.name} partitions={topic.partitions}")
        return
    call.run(_list(call))


def _list(call: Call) -> Iterator[None]:
    access = call.session.context.access
    names: list[str] = []
    every = call.broker.topics.all()
    for start in range(0, len(every), _STEP):
        names += [
            topic.name
            for topic in every[start : start + _STEP]
            if _listed(topic) and access.sees(Kind.TOPIC, topic.name)
        ]
        yield
    reply_listing(call, f"OK count={len(names)} topics={','.join(names)}")


def _listed(topic: Topic) -> bool:
    """Only names that can be written here, and none of brokers' own topics."""
    return not topic.name.startswith("__") and is_name(topic.name)


def describe(call: Call) -> None:
    name = call.command.get("topic")
    if not name:
        raise Refused('missing_topic expected="DESCRIBE topic=<name>"')
    topic = found(call, name)
    call.run(_ends(call, topic, range(topic.partitions), partial(_describe, call, topic)))


def _ends(
    call: Call, topic: Topic, indexes: range, run: Callable[[], Iterator[None]]
) -> Iterator[None]:
    """Wait for the ends of partitions to be durable, then serve the steps of `run`."""
    settled: list[Later[Any]] = []
    for start in range(0, len(indexes), _STEP):
        some = [Partition(topic.name, index) for index in indexes[start : start + _STEP]]
        settled.append(call.broker.log.ends(some))
        yield
    call.after(all_of(settled), lambda _: call.run(run()))


def _describe(call: Call, topic: Topic) -> Iterator[None]:
    partitions: list[str] = []
    for index in range(topic.partitions):
        marks = call.broker.log.marks(Partition(topic.name, index))
        partitions.append(_PARTITION % (index, marks.end, marks.durable))
        if index % _STEP == _STEP - 1:
            yield
    words = policy_words(topic, _options(call, topic.name))
    policy: dict[str, Any] = {
        word: words[word] for word in ("cleanup_policy", "partitioner", "auth_policy")
    }
    for word in ("retention_hours", "retention_bytes"):
        if words[word] != "0":
            policy[word] = int(words[word])
    for word in ("read_acl", "write_acl"):
        if words[word]:
            policy[word] = words[word].split(",")
    told = json.dumps(policy, indent=2).replace("\n", "\n  ")
    call.reply(
        f'{{\n  "status": "OK",\n  "topic": {json.dumps(topic.name)},\n  "partitions": [\n'
        f'{_JOINT.join(partitions)}\n  ],\n  "policy": {told}\n}}'
    )


def metadata(call: Call) -> None:
    topic = found(call, call.command.need("topic"))
    sourced = _options(call, topic.name).event_sourcing
    texts: dict[Address, str] = {}
    leaders = ",".join(
        texts.get(place) or texts.setdefault(place, str(place))
        for place in ownership.leaders(call, topic.partitions, sourced=sourced)
    )
    epochs = ",".join(["0"] * topic.partitions)
    call.reply(
        f"OK topic={topic.name} partitions={topic.partitions} leaders={leaders} "
        f"epochs={epochs} {_policy(call, topic)}"
    )


def list_offsets(call: Call) -> None:
    command = call.command
    topic = found(call, command.need("topic"))
    indexes = range(topic.partitions)
    if "partition" in command.parameters:
        index = command.number("partition", "invalid_partition command=LIST_OFFSETS")
        if index >= topic.partitions:
            raise Refused(f"partition_not_found partition={index}")
        indexes = range(index, index + 1)
    call.run(_ends(call, topic, indexes, partial(_list_offsets, call, topic, indexes)))


def _list_offsets(call: Call, topic: Topic, indexes: range) -> Iterator[None]:
    entries = []
    for index in indexes:
        if index % _STEP == _STEP - 1:
            yield
        marks = call.broker.log.marks(Partition(topic.name, index))
        entries.append(
            f"P{index}:earliest={marks.start}:latest={marks.stable}"
            f":leo={marks.end}:hwm={marks.durable}"
        )
    call.reply(f"OK topic={topic.name} partitions={len(entries)} offsets={','.join(entries)}")


def find_coordinator(call: Call) -> None:
    command = call.command
    named = [command.get(name) for name in ("transactional_id", "txn", "transaction")]
    if not command.get("group") and not any(named):
        raise Refused("missing_coordinator_key command=FIND_COORDINATOR")
    kind = "group" if command.get("group") else "transaction"
    address = ownership.coordinator(call, command.get("group") or next(filter(None, named)))
    call.reply(
        f"OK coordinator_id=standalone coordinator_type={kind} "
        f"host={address.host} port={address.port}"
    )


def found(call: Call, name: str) -> Topic:
    """The topic, or the refusal clients look for."""
    try:
        return call.broker.topics.get(name)
    except TopicNotFound:
        raise Refused(f"topic_not_found topic={shown(name)}") from None


def _policy(call: Call, topic: Topic) -> str:
    words = policy_words(topic, _options(call, topic.name))
    return " ".join(f"{name}={value}" for name, value in words.items())
