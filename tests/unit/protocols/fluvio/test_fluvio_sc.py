"""The controller's port: objects created, deleted, listed, changed and watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fluvio_world import (
    Client,
    FluvioBroker,
    create_topic,
    read_records,
    request,
    topic_spec,
    wrapped,
)
from wat_modules import module

from pentalog.broker.port import TopicSpec
from pentalog.protocols.fluvio.codec import Reader, Writer
from pentalog.protocols.fluvio.sc import VERSION_MAX
from pentalog.protocols.fluvio.watches import WATCHES_MAX

CREATE, DELETE, LIST, WATCH, UPDATE = 1001, 1002, 1003, 1004, 1006
SYSTEM = "consumer-offset"


def status(reader: Reader, fields: Callable[[Reader], object] | None = None) -> tuple[str, int]:
    """(name, error code) of an answer; `fields` reads what stands behind the code."""
    name, code = reader.text(), reader.i16()
    if fields is not None:
        fields(reader)
    text = reader.option(reader.text)
    assert (text is None) == (code == 0)
    reader.finish()
    return name, code


def delete(label: str, name: str) -> bytes:
    return wrapped(label, bytes(Writer(19).text(name).boolean(False).out))


def listing(label: str, *filters: str, system: bool = False, summary: bool = False) -> bytes:
    inner = Writer(19)
    inner.many(filters, inner.text)
    return wrapped(label, bytes(inner.boolean(summary).boolean(system).out))


def unwrap(reader: Reader, label: str) -> Reader:
    assert reader.text() == label
    inner = reader.bytes_()
    reader.finish()
    return Reader(memoryview(inner), 0, len(inner), reader.version)


def read_topic(reader: Reader) -> tuple[str, int, bool]:
    """(name, partitions, system) of a topic's metadata."""
    name = reader.text()
    assert reader.u8() == 1
    partitions, replication = reader.u32(), reader.u32()
    assert replication == 1
    reader.boolean()
    if reader.boolean():
        reader.u8(), reader.u32()
    if reader.boolean():
        reader.option(reader.u32), reader.option(reader.u64)
    reader.u8(), reader.u8()
    system = reader.boolean()
    assert reader.u8() == 4
    assert reader.u16() == partitions
    for index in range(partitions):
        assert (reader.u32(), reader.u32(), reader.i32()) == (index, 1, 5001)
    assert reader.u16() == 0
    reader.text()
    return name, partitions, system


def read_partition(reader: Reader) -> tuple[str, int]:
    """(name, end) of a partition's metadata."""
    name = reader.text()
    assert (reader.i32(), reader.u32(), reader.i32()) == (5001, 1, 5001)
    reader.skip(5)
    assert reader.u8() == 0
    assert (reader.u8(), reader.i32()) == (1, 5001)
    reader.i64()
    end = reader.i64()
    reader.u32(), reader.u32(), reader.i64(), reader.boolean(), reader.i64()
    return name, end


READERS = {"Topic": read_topic, "Partition": read_partition}


def listed(client: Client, label: str, *filters: str, system: bool = False) -> list[str]:
    reader = unwrap(client.ask(LIST, listing(label, *filters, system=system)), label)
    found = reader.many(lambda: READERS[label](reader)[0])
    reader.finish()
    return found


def test_topics_come_and_go(broker: FluvioBroker) -> None:
    sc = broker.sc()
    assert status(sc.ask(CREATE, create_topic("demo", topic_spec(3)))) == ("demo", 0)
    assert status(sc.ask(CREATE, create_topic("other"))) == ("other", 0)
    assert listed(sc, "Topic") == ["demo", "other"]
    assert listed(sc, "Topic", "dem") == ["demo"]
    assert listed(sc, "Topic", system=True) == [SYSTEM]
    assert listed(sc, "Partition", "demo") == ["demo-0", "demo-1", "demo-2"]
    assert status(sc.ask(DELETE, delete("Topic", "demo"))) == ("demo", 0)
    assert listed(sc, "Topic") == ["other"]
    assert status(sc.ask(DELETE, delete("Topic", "demo"))) == ("demo", 2001)


def test_settings_are_kept_and_shown(broker: FluvioBroker) -> None:
    size = 1 << 20
    tail = Writer(19).u8(1).u8(0).u32(3600).u8(1).u8(1).u32(size).u8(1).u64(size).u8(5).u8(0)
    broker.sc().ask(CREATE, create_topic("kept", topic_spec(tail=bytes(tail.u8(0).out))))
    assert broker.topics.get("kept").overrides == {
        "retention.ms": "3600000",
        "segment.bytes": "1048576",
        "retention.bytes": "1048576",
        "compression.type": "zstd",
    }
    reader = unwrap(broker.sc().ask(LIST, listing("Topic", "kept")), "Topic")
    assert reader.u32() == 1
    reader.text()
    start = reader.at + 10
    assert bytes(reader.data[start : start + len(tail.out)]) == bytes(tail.out)


def test_more_copies_than_there_are_brokers_are_answered_honestly(broker: FluvioBroker) -> None:
    sc = broker.sc()
    assert status(sc.ask(CREATE, create_topic("copied", topic_spec(2, replication=3))))[1] == 0
    assert listed(sc, "Topic") == ["copied"]  # read_topic checks that one copy is told


def text_of(reader: Reader) -> None:
    assert reader.text()


@pytest.mark.parametrize(
    ("name", "spec", "code"),
    [
        ("Upper", topic_spec(), 2006),
        ("-dash", topic_spec(), 2006),
        ("dash-", topic_spec(), 2006),
        ("under_score", topic_spec(), 2006),
        ("x" * 64, topic_spec(), 2006),
        ("", topic_spec(), 2006),
        ("old", topic_spec(), 2002),
        (SYSTEM, topic_spec(), 2002),
        ("none", topic_spec(0), 2000),
        ("none", topic_spec(1, replication=0), 2000),
        ("brief", topic_spec(tail=b"\1\0\0\0\0\1\0\4\0\0"), 2004),
        ("small", topic_spec(tail=b"\0\1\1\0\0\0\1\0\4\0\0"), 2004),
        ("many", topic_spec(1_000_000), 2000),
    ],
)
def test_topics_that_are_refused(broker: FluvioBroker, name: str, spec: bytes, code: int) -> None:
    sc = broker.sc()
    sc.ask(CREATE, create_topic("old"))
    assert status(sc.ask(CREATE, create_topic(name, spec))) == (name, code)
    assert listed(sc, "Topic") == ["old"]


def test_what_cannot_be_honoured_is_refused_in_words(broker: FluvioBroker) -> None:
    sc = broker.sc()
    deduplicated = Writer(19).raw(b"\0\0\4\1").u64(10).u8(0).text("dedup").u16(0).u8(0).out
    system, mirror = b"\0\0\4\0\1", b"\2\0\0\0"
    for spec in (topic_spec(tail=bytes(deduplicated)), topic_spec(tail=system), mirror):
        assert status(sc.ask(CREATE, create_topic("wished", spec)), text_of) == ("wished", 2)
    assert listed(sc, "Topic") == []


def test_a_dry_run_makes_nothing(broker: FluvioBroker) -> None:
    sc = broker.sc()
    assert status(sc.ask(CREATE, create_topic("dry", dry_run=True))) == ("dry", 0)
    assert listed(sc, "Topic") == []


def test_the_system_topic_stays(broker: FluvioBroker) -> None:
    sc = broker.sc()

    def names(reader: Reader) -> None:
        assert (reader.text(), reader.text()) == ("topic", SYSTEM)

    assert status(sc.ask(DELETE, delete("Topic", SYSTEM)), names) == (SYSTEM, 12001)
    more = wrapped("Topic", bytes(Writer(19).text(SYSTEM).u8(0).u32(1).out))
    assert status(sc.ask(UPDATE, more), names) == (SYSTEM, 12002)


def test_topics_grow(broker: FluvioBroker) -> None:
    sc = broker.sc()
    sc.ask(CREATE, create_topic("wide"))
    more = wrapped("Topic", bytes(Writer(19).text("wide").u8(0).u32(2).out))
    assert status(sc.ask(UPDATE, more)) == ("wide", 0)
    assert broker.topics.get("wide").partitions == 3


@pytest.mark.parametrize("label", ["SpuGroup", "TableFormat", "Mirror", "CustomSpu", "SmartModule"])
def test_of_some_objects_there_are_none(broker: FluvioBroker, label: str) -> None:
    reader = unwrap(broker.sc().ask(LIST, listing(label)), label)
    assert reader.u32() == 0
    reader.finish()


def test_the_spu_is_where_the_client_reaches_it(broker: FluvioBroker) -> None:
    reader = unwrap(broker.sc().ask(LIST, listing("SPU")), "SPU")
    assert (reader.u32(), reader.text(), reader.i32()) == (1, "custom-spu-5001", 5001)
    assert (reader.u8(), reader.u16(), reader.u32()) == (1, 19310, 1)
    assert reader.option(reader.text) == "localhost"


def watching(sc: Client, label: str) -> int:
    return sc.request(WATCH, wrapped(label, bytes(Writer(19).i64(0).boolean(False).out)))


def read_update(reader: Reader, label: str) -> tuple[int, list[tuple[int, str]], list[str]]:
    """(epoch, [(kind, name)], all)."""
    inner = unwrap(reader, label)
    epoch = inner.i64()
    changes = inner.many(lambda: (inner.u8(), READERS[label](inner)[0]))
    everything = inner.many(lambda: READERS[label](inner)[0])
    inner.finish()
    return epoch, changes, everything


def test_watches_see_everything_then_every_change(broker: FluvioBroker) -> None:
    sc, other = broker.sc(), broker.sc()
    topics, partitions = watching(sc, "Topic"), watching(sc, "Partition")
    first = dict(sc.pushed())
    assert read_update(first[topics], "Topic") == (1, [], [SYSTEM])
    assert read_update(first[partitions], "Partition") == (1, [], [f"{SYSTEM}-0"])
    other.ask(CREATE, create_topic("demo", topic_spec(2)))
    (one, frame_one), (two, frame_two) = sc.pushed()
    assert (one, two) == (partitions, topics)
    assert read_update(frame_one, "Partition") == (2, [(0, "demo-0"), (0, "demo-1")], [])
    assert read_update(frame_two, "Topic") == (3, [(0, "demo")], [])
    broker.topics.delete("demo")
    (_, frame_one), (_, frame_two) = sc.pushed()
    assert read_update(frame_one, "Partition") == (4, [(1, "demo-0"), (1, "demo-1")], [])
    assert read_update(frame_two, "Topic") == (5, [(1, "demo")], [])


def test_the_push_comes_before_the_answer(broker: FluvioBroker) -> None:
    sc = broker.sc()
    topics, partitions = watching(sc, "Topic"), watching(sc, "Partition")
    sc.pushed()
    created = sc.request(CREATE, create_topic("demo"))
    assert [number for number, _ in sc.pushed()] == [partitions, topics, created]


def test_topics_made_at_other_doors_are_pushed(broker: FluvioBroker) -> None:
    sc = broker.sc()
    watching(sc, "Topic")
    sc.pushed()
    broker.topics.create(TopicSpec(name="Made_elsewhere", partitions=1))
    ((_, frame),) = sc.pushed()
    assert read_update(frame, "Topic")[1] == [(0, "Made_elsewhere")]


def test_a_slow_watcher_gets_what_came_together(broker: FluvioBroker) -> None:
    sc = broker.sc()
    watching(sc, "Topic")
    sc.pushed()
    sc.line.full = True
    for name in ("a", "b", "c"):
        broker.topics.create(TopicSpec(name=name, partitions=1))
    broker.topics.delete("b")
    assert sc.pushed() == []
    sc.line.make_room()
    ((_, frame),) = sc.pushed()
    assert read_update(frame, "Topic")[1] == [(0, "a"), (0, "c")]


def test_a_closed_connection_is_told_nothing(broker: FluvioBroker) -> None:
    sc = broker.sc()
    watching(sc, "Topic")
    sc.pushed()
    sc.session.close()
    broker.topics.create(TopicSpec(name="a", partitions=1))
    assert sc.pushed() == []


def test_watches_are_not_unlimited(broker: FluvioBroker) -> None:
    sc = broker.sc()
    for _ in range(WATCHES_MAX):
        watching(sc, "Topic")
    sc.run()
    assert not sc.line.hung_up
    watching(sc, "Topic")
    sc.run()
    assert sc.line.hung_up


def create_module(name: str, wasm: bytes) -> bytes:
    inner = Writer(19).text(name).boolean(False).u8(0).u8(0).u8(0).u8(0).bytes_(wasm).out
    return wrapped("SmartModule", bytes(inner))


def test_smart_modules_come_and_go_and_survive_a_restart(tmp_path: Path) -> None:
    broker = FluvioBroker(tmp_path / "data")
    sc = broker.sc()
    watch = watching(sc, "SmartModule")
    sc.pushed()
    wasm = module("filter")
    assert status(sc.ask(CREATE, create_module("keep-a", wasm))) == ("keep-a", 0)
    broker.close()
    broker = FluvioBroker(tmp_path / "data")
    sc = broker.sc()
    reader = unwrap(sc.ask(LIST, listing("SmartModule")), "SmartModule")
    assert (reader.u32(), reader.text(), reader.u8(), reader.u8()) == (1, "keep-a", 0, 0)
    assert (reader.u8(), reader.bytes_()) == (0, wasm)
    reader = unwrap(sc.ask(LIST, listing("SmartModule", summary=True)), "SmartModule")
    assert (reader.u32(), reader.text(), reader.u8(), reader.u8()) == (1, "keep-a", 0, 1)
    assert (reader.u32(), reader.u8(), reader.bytes_()) == (len(wasm), 0, b"")
    assert status(sc.ask(DELETE, delete("SmartModule", "keep-a"))) == ("keep-a", 0)
    assert status(sc.ask(DELETE, delete("SmartModule", "keep-a")), text_of) == ("keep-a", 6001)
    assert watch
    broker.close()


def test_a_module_that_is_none_is_refused(broker: FluvioBroker) -> None:
    def fields(reader: Reader) -> None:
        assert reader.text()
        assert reader.option(reader.text) == "bad"

    answer = broker.sc().ask(CREATE, create_module("bad", b"\0asm nonsense"))
    assert status(answer, fields) == ("bad", 6002)


def test_versions_are_told(broker: FluvioBroker) -> None:
    names = Writer(2).text("0.15.2").text("linux").text("x86_64").out
    reader = broker.sc().ask(18, bytes(names), version=2)
    assert reader.i16() == 0
    told = reader.many(lambda: (reader.i16(), reader.i16(), reader.i16()))
    assert {key for key, _, _ in told} == {CREATE, DELETE, LIST, WATCH, UPDATE}
    assert all(most == VERSION_MAX for _, _, most in told)
    assert reader.text() == "0.18.1"


def test_an_unknown_object_ends_the_connection(broker: FluvioBroker) -> None:
    sc = broker.sc()
    sc.feed(request(LIST, listing("Connector"), 19, 1))
    assert sc.line.hung_up
    assert read_records(b"") == []
