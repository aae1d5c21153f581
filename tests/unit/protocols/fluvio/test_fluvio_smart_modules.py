"""SmartModules on streams, on writes and between topics; run for real, under limits."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import wasmtime
from fluvio_world import (
    Client,
    FluvioBroker,
    ad_hoc,
    chain,
    create_topic,
    predefined,
    produce,
    read_produced,
    read_streamed,
    stream_fetch,
    their_batch,
    update_offsets,
)
from test_fluvio_spu import ACK, PRODUCE, STREAM, stored
from tests.hostile import wasm_programs
from wat_modules import KINDS, module

from pentalog.broker.derived_topics import DerivedTopics
from pentalog.broker.module_lanes import INSTANCES_MAX
from pentalog.broker.port import Broker, TopicSpec
from pentalog.broker.transformation import Link, SmartModule
from pentalog.model import batch, compression
from pentalog.model.errors import InvalidConfig, Overloaded, SmartModuleInvalid
from pentalog.model.later import Later
from pentalog.model.types import Ack, Horizon, Partition, Record
from pentalog.protocols.fluvio.codec import Reader, Writer

RESULTS: dict[str, list[bytes]] = {
    "filter": [b"apple", b"avocado"],
    "map": [b"APPLE", b"BANANA", b"AVOCADO"],
    "filter_map": [b"APPLE", b"AVOCADO"],
    "array_map": [b"apple", b"apple", b"banana", b"banana", b"avocado", b"avocado"],
}


def values(client: Client, fields: Callable[[Reader], None] | None = None) -> list[bytes]:
    ((_, frame),) = client.pushed()
    return [value for _, _, value in read_streamed(frame, fields).records]


def filled(broker: FluvioBroker, *given: bytes) -> Client:
    spu = broker.spu()
    spu.ask(PRODUCE, produce("demo", their_batch(*given)))
    return spu


@pytest.mark.parametrize("kind", RESULTS)
def test_every_kind_on_a_stream(demo: FluvioBroker, kind: str) -> None:
    spu = filled(demo, b"apple", b"banana", b"avocado")
    spu.request(STREAM, stream_fetch("demo", modules=chain(ad_hoc(module(kind)))))
    assert values(spu) == RESULTS[kind]


@pytest.mark.parametrize("name", [None, "apples"])
def test_version_25_names_its_links(demo: FluvioBroker, name: str | None) -> None:
    spu = demo.spu(25)
    spu.ask(PRODUCE, produce("demo", their_batch(b"apple", b"banana", b"avocado")))
    named = ad_hoc(module("filter")) + bytes(Writer(25).option_text(name).out)
    spu.request(STREAM, stream_fetch("demo", modules=chain(named)))
    ((_, frame),) = spu.pushed()
    with_name = read_streamed(frame)
    plain = demo.spu(24)
    plain.request(STREAM, stream_fetch("demo", modules=chain(ad_hoc(module("filter")))))
    ((_, frame),) = plain.pushed()
    assert with_name.records == read_streamed(frame).records
    assert with_name.records


def test_an_aggregate_goes_on_with_what_it_has(demo: FluvioBroker) -> None:
    spu = filled(demo, b"1", b"2")
    link = ad_hoc(module("aggregate"), accumulator=b"\1")
    spu.request(STREAM, stream_fetch("demo", modules=chain(link)))
    ((_, frame),) = spu.pushed()
    first = read_streamed(frame)
    assert [value for _, _, value in first.records] == [b"2", b"4"]
    spu.ask(PRODUCE, produce("demo", their_batch(b"3")))
    spu.request(ACK, update_offsets((first.next_filter_offset, 1)), version=0)
    ((_, _), (_, frame)) = spu.pushed()
    assert [value for _, _, value in read_streamed(frame).records] == [b"7"]


def test_parameters_and_gzip(demo: FluvioBroker) -> None:
    spu = filled(demo, b"apple", b"banana")
    link = ad_hoc(gzip.compress(module("filter")), parameters={"key": "b"})
    spu.request(STREAM, stream_fetch("demo", modules=chain(link)))
    assert values(spu) == [b"banana"]


def test_a_chain_passes_on_what_is_left(demo: FluvioBroker) -> None:
    spu = filled(demo, b"apple", b"banana", b"avocado")
    links = chain(ad_hoc(module("filter")), ad_hoc(module("map")), ad_hoc(module("array_map")))
    spu.request(STREAM, stream_fetch("demo", modules=links))
    assert values(spu) == [b"APPLE", b"APPLE", b"AVOCADO", b"AVOCADO"]


def test_a_stored_module_is_named(demo: FluvioBroker) -> None:
    demo.smart_modules.create(SmartModule("keep", module("filter")))
    demo.runtime.run()
    spu = filled(demo, b"apple", b"banana")
    for name in ("keep", "acme/keep@0.1.0"):
        stream = spu.request(STREAM, stream_fetch("demo", modules=chain(predefined(name))))
        ((number, frame),) = spu.pushed()
        assert number == stream
        assert read_streamed(frame).records == [(0, None, b"apple")]


def test_a_module_nobody_stored(demo: FluvioBroker) -> None:
    spu = filled(demo, b"apple")

    def named(reader: Reader) -> None:
        assert reader.text() == "absent"

    spu.request(STREAM, stream_fetch("demo", modules=chain(predefined("absent"))))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame, named).error == 6001


def test_a_module_that_does_not_want_to_start(demo: FluvioBroker) -> None:
    spu = filled(demo, b"apple")

    def hinted(reader: Reader) -> None:
        assert "nope" in reader.text()

    link = ad_hoc(module("filter"), parameters={"key": "!"})
    spu.request(STREAM, stream_fetch("demo", modules=chain(link)))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame, hinted).error == 6005


class Fields:
    """What stands behind error 6004."""

    def __init__(self) -> None:
        self.hint = ""
        self.offset = self.kind = -1
        self.value = b""

    def __call__(self, reader: Reader) -> None:
        self.hint, self.offset, self.kind = reader.text(), reader.i64(), reader.u8()
        reader.option(reader.varbytes)
        self.value = reader.varbytes()


@pytest.mark.parametrize(
    ("bad", "hint"), [(b"!bad", "unreachable"), (b"~bad", "fuel"), (b"?bad", "nope")]
)
@pytest.mark.parametrize("kind", ["filter", "map"])
def test_a_record_a_module_fails_at(tmp_path: Path, kind: str, bad: bytes, hint: str) -> None:
    """What is before it arrives with the error, what is behind it with the next frame."""
    broker = FluvioBroker(tmp_path / "data", smart_module_fuel=1_000_000)
    broker.sc().ask(1001, create_topic("demo"))
    spu = filled(broker, b"a1", bad, b"a2")
    spu.request(STREAM, stream_fetch("demo", modules=chain(ad_hoc(module(kind)))))
    ((_, frame),) = spu.pushed()
    fields = Fields()
    first = read_streamed(frame, fields)
    assert (first.error, first.next_filter_offset) == (6004, 2)
    assert (fields.offset, fields.kind, fields.value) == (1, KINDS[kind], bad)
    assert hint in fields.hint
    assert [value.lower() for _, _, value in first.records] == [b"a1"]
    spu.request(ACK, update_offsets((2, 1)), version=0)
    ((_, _), (_, frame)) = spu.pushed()
    assert [value.lower() for _, _, value in read_streamed(frame).records] == [b"a2"]
    broker.close()


def test_a_record_that_a_later_module_fails_at_is_where_it_was(demo: FluvioBroker) -> None:
    """Others were filtered out before it; from an earlier place on, they would come again."""
    spu = filled(demo, b"banana", b"cherry", b"apple", b"avocado")
    trap = ad_hoc(wasm_programs.program(filtered="(unreachable)"))
    spu.request(STREAM, stream_fetch("demo", modules=chain(ad_hoc(module("filter")), trap)))
    ((_, frame),) = spu.pushed()
    fields = Fields()
    streamed = read_streamed(frame, fields)
    assert (streamed.error, streamed.next_filter_offset) == (6004, 3)
    assert (fields.offset, fields.value) == (2, b"apple")


def test_what_passes_nothing_is_stepped_over_in_silence(demo: FluvioBroker) -> None:
    spu = filled(demo, b"banana", b"cherry")
    spu.request(STREAM, stream_fetch("demo", modules=chain(ad_hoc(module("filter")))))
    assert spu.pushed() == []
    demo.spu().ask(PRODUCE, produce("demo", their_batch(b"apple")))
    assert values(spu) == [b"apple"]


def test_too_much_memory_is_refused(tmp_path: Path) -> None:
    broker = FluvioBroker(tmp_path / "data", smart_module_memory_bytes_max=1 << 20)
    later = broker.smart_modules.chain([Link(module("filter"))], version=24)
    broker.runtime.run()
    with pytest.raises(SmartModuleInvalid, match="memory"):
        _ = later.value
    broker.close()


def test_chains_are_not_unlimited(demo: FluvioBroker) -> None:
    links = [Link(b"not wasm")] * 10
    laters = [demo.smart_modules.chain(links, version=24) for _ in range(INSTANCES_MAX // 2 // 10)]
    with pytest.raises(Overloaded):
        demo.smart_modules.chain(links, version=24)
    demo.runtime.run()
    with pytest.raises(SmartModuleInvalid):
        _ = laters[0].value
    demo.smart_modules.chain(links, version=24)
    demo.runtime.run()


def test_streams_of_a_connection_take_turns(demo: FluvioBroker) -> None:
    spu = filled(demo, b"apple", b"banana")
    modules = chain(ad_hoc(module("map")))
    streams = [spu.request(STREAM, stream_fetch("demo", modules=modules)) for _ in range(5)]
    frames = spu.pushed()
    assert sorted(number for number, _ in frames) == streams
    for _, frame in frames:
        assert [value for _, _, value in read_streamed(frame).records] == [b"APPLE", b"BANANA"]


def test_a_stream_that_has_gone_does_not_keep_its_turn(demo: FluvioBroker) -> None:
    spu = filled(demo, b"apple")
    modules = chain(ad_hoc(module("map")))
    for _ in range(3):
        spu.request(STREAM, stream_fetch("demo", modules=modules))
    spu.session.streams[2].close()
    assert sorted(read_streamed(frame).stream_id for _, frame in spu.pushed()) == [1, 3]


_MEMORY = '(memory (export "memory") 1)'


def shaped(memory: str, imported: str = "", returned: str = "i32") -> bytes:
    """What is almost a SmartModule."""
    return bytes(
        wasmtime.wat2wasm(
            f"""(module {imported} {memory}
            (func (export "alloc") (param i32) (result i32) (i32.const 0))
            (func (export "filter") (param i32 i32 i32) (result {returned})
              ({returned}.const 0)))"""
        )
    )


@pytest.mark.parametrize(
    ("wasm", "text"),
    [
        (b"\0asm\1\0\0\0", "exports nothing"),
        (b"rubbish", "not a WebAssembly module"),
        (b"\x1f\x8brubbish", "decompressed"),
        (b"(module)", "text form"),
        (b"\0asm\x0d\0\1\0", "not a WebAssembly module"),
        (b"\0asm\1\0\0\0\x0a\x85\x80\x80\x08", "bytes of code"),
        (b"\0asm\1\0\0\0\x07\x03\xff\xff\x7f", "imports or exports"),
        (b"\0asm\1\0\0\0\x0a\x04\xff\xff\x7f\0", "functions"),
        (b"\0asm\1\0\0\0\x0a\x05\1\x80\x89\x7a\0", "too large to be compiled"),
        (b"\0asm\1\0\0\0" + b"\0\1\0" * 1_001, "sections"),
        (wasm_programs.declaring(21), "local variables"),
        (shaped('(func (export "memory"))'), "memory as a function"),
        (shaped(_MEMORY, returned="f64"), "filter as a function of i32 i32 i32 to f64"),
        (shaped(_MEMORY, '(import "wasi_unstable" "x" (global i32))'), "wasi_unstable.x, global"),
        (shaped(_MEMORY, '(import "a" "copy_records" (func))'), "copy_records as"),
    ],
)
def test_what_is_no_smart_module(demo: FluvioBroker, wasm: bytes, text: str) -> None:
    later = demo.smart_modules.create(SmartModule("bad", wasm))
    demo.runtime.run()
    with pytest.raises(SmartModuleInvalid, match=text):
        _ = later.value
    assert demo.smart_modules.all() == []


def test_modules_on_produce(demo: FluvioBroker) -> None:
    spu = demo.spu()
    links = chain(ad_hoc(module("filter_map")))
    sent = produce("demo", their_batch(b"apple", b"banana"), their_batch(b"avocado"), modules=links)
    assert read_produced(spu.ask(PRODUCE, sent)) == [("demo", [(0, 0, 0)])]
    assert [record.value for record in stored(demo)] == [b"APPLE", b"AVOCADO"]
    nothing = produce("demo", their_batch(b"banana"), modules=links)
    assert read_produced(spu.ask(PRODUCE, nothing)) == [("demo", [(0, 0, 0)])]
    assert len(stored(demo)) == 2


def test_a_failure_on_produce_writes_nothing(demo: FluvioBroker) -> None:
    sent = produce("demo", their_batch(b"apple", b"!x"), modules=chain(ad_hoc(module("map"))))
    answer = demo.spu().ask(PRODUCE, sent)
    answer.u32(), answer.text(), answer.u32(), answer.u32()
    fields = Fields()
    assert answer.i16() == 6004
    fields(answer)
    assert (fields.offset, fields.value) == (1, b"!x")
    assert stored(demo) == []


@pytest.mark.parametrize("age_s", [1 << 53, (1 << 64) - 1])
def test_looking_back_for_ever(demo: FluvioBroker, age_s: int) -> None:
    spu = filled(demo, b"x", b"b")
    link = ad_hoc(module("filter"), lookback=1, lookback_s=age_s)
    spu.request(STREAM, stream_fetch("demo", 2, modules=chain(link)))
    assert spu.pushed() == []
    demo.spu().ask(PRODUCE, produce("demo", their_batch(b"apple", b"banana")))
    assert values(spu) == [b"banana"]


def test_looking_back_at_much_in_parts(demo: FluvioBroker) -> None:
    """What is left of the last part decides."""
    for letter in (b"x", b"y", b"b"):
        filled(demo, *[letter + bytes(9_000)] * 50)
    spu = filled(demo, b"b")
    link = ad_hoc(module("filter"), lookback=1_000)
    spu.request(STREAM, stream_fetch("demo", 151, modules=chain(link)))
    assert spu.pushed() == []
    demo.spu().ask(PRODUCE, produce("demo", their_batch(b"apple", b"banana")))
    assert values(spu) == [b"banana"]


def test_what_may_yet_abort_is_not_looked_back_at(tmp_path: Path) -> None:
    broker = FluvioBroker(tmp_path / "data")
    broker.sc().ask(1001, create_topic("demo"))
    filled(broker, b"b")
    at = Partition("demo", 0)
    identified = broker.broker.transactions.identify("writer", timeout_ms=60_000)
    broker.runtime.run()
    who = identified.value
    broker.broker.transactions.admit("writer", who, at, enlists=True)
    built = batch.build(
        [Record(b"x")],
        timestamp_ms=1000,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=0,
        transactional=True,
    )
    broker.broker.log.append(at, memoryview(built))
    broker.runtime.run()
    spu = broker.spu()
    link = ad_hoc(module("filter"), lookback=5)
    spu.request(STREAM, stream_fetch("demo", 1, modules=chain(link)))
    assert spu.pushed() == []
    broker.broker.transactions.end("writer", who, commit=False, bump=False)
    broker.runtime.run()
    broker.spu().ask(PRODUCE, produce("demo", their_batch(b"xylophone", b"banana")))
    assert values(spu) == [b"banana"]
    broker.close()


def test_looking_back(demo: FluvioBroker) -> None:
    """This module looks for the letter that the last of the older records begins with."""
    spu = filled(demo, b"x", b"b")
    link = ad_hoc(module("filter"), lookback=1)
    spu.request(STREAM, stream_fetch("demo", 2, modules=chain(link)))
    assert spu.pushed() == []
    demo.spu().ask(PRODUCE, produce("demo", their_batch(b"apple", b"banana")))
    assert values(spu) == [b"banana"]


class Deriving:
    """A broker that derives topics, as the application puts it together."""

    def __init__(self, directory: Path, **settings: int) -> None:
        self.broker = FluvioBroker(directory, **settings)
        self.derived = DerivedTopics(self.broker.broker, self.broker.runtime)
        self.broker.topics.checks.append(self.derived.check)
        self.derived.start()
        self.run()

    def run(self) -> None:
        for _ in range(20):
            self.broker.runtime.advance(100)

    def make(self, partitions: int = 2, **more: str) -> None:
        self.broker.smart_modules.create(SmartModule("keep-a", module("filter")))
        self.run()
        self.broker.topics.create(TopicSpec(name="raw", partitions=2))
        self.derive(partitions, **more)
        self.run()

    def derive(self, partitions: int, **more: str) -> None:
        settings = {"derived.from": "raw", "derived.smartmodule": "keep-a"}
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        spec = TopicSpec(name="clean", partitions=partitions, settings=settings)
        self.broker.topics.create(spec)

    def write(self, *given: bytes, partition: int = 0) -> None:
        self.append(*given, partition=partition)
        self.run()

    def append(self, *given: bytes, partition: int = 0) -> None:
        """Without a turn of the loop; a commit is on its way."""
        built = batch.build([Record(value, b"k") for value in given], timestamp_ms=77)
        log = self.broker.broker.log
        log.settle(log.append(Partition("raw", partition), memoryview(built)), Ack.DURABLE)

    def step(self, steps: int) -> None:
        """Do the next things that are due."""
        for _ in range(steps):
            if self.broker.runtime._due:
                self.broker.runtime._due.popleft()()

    def seen(self, partition: int = 0) -> list[bytes | None]:
        """What a reader of committed records gets."""
        log, at = self.broker.broker.log, Partition("clean", partition)
        found: list[bytes | None] = []
        offset = 0
        while offset < log.marks(at).stable:
            opened = log.open(at, offset, bytes_max=1 << 20, horizon=Horizon.STABLE).value
            position = 0
            while position < len(opened.batches):
                header = batch.payload_of(opened.batches, position, bytes_max=1 << 20)[1]
                found += [
                    record.value
                    for _, record in batch.records_of(opened.batches, position, bytes_max=1 << 20)
                ]
                position += header.size
            offset = opened.next_offset
        return found

    def close(self) -> None:
        self.derived.close()
        self.broker.close()


def test_a_derived_topic_follows_its_source(tmp_path: Path) -> None:
    deriving = Deriving(tmp_path / "data")
    deriving.make()
    deriving.write(b"apple", b"banana", b"avocado")
    deriving.write(b"almond", partition=1)
    deriving.write(b"cherry")
    deriving.write(b"apricot")
    # After the clock was set back, what the source accepted before is not too new to be derived.
    deriving.append(b"artichoke")
    deriving.broker.runtime.wall_step_ms = -deriving.broker.runtime.now_ms() - 7_200_000
    deriving.run()
    assert deriving.seen() == [b"apple", b"avocado", b"apricot", b"artichoke"]
    assert deriving.seen(1) == [b"almond"]
    deriving.close()


def test_deriving_goes_on_after_a_restart(tmp_path: Path) -> None:
    deriving = Deriving(tmp_path / "data")
    deriving.make()
    deriving.write(b"apple", b"banana")
    deriving.close()
    deriving = Deriving(tmp_path / "data")
    deriving.write(b"avocado")
    assert deriving.seen() == [b"apple", b"avocado"]
    deriving.close()


def test_a_record_the_module_fails_at_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deriving = Deriving(tmp_path / "data")
    deriving.make()
    deriving.write(b"apple", b"!bad", b"avocado")
    assert deriving.seen() == [b"apple", b"avocado"]
    assert "record 1 of raw-0 is left out" in caplog.text
    deriving.close()


@pytest.mark.parametrize(
    ("bad", "setting", "value"),
    [
        (Record(b"a" * 3_000_000, b"k"), "max_message_bytes", "1000000"),
        (Record(b"avocado"), "cleanup_policy", "compact"),
    ],
    ids=["large", "no key"],
)
@pytest.mark.parametrize("before", [0, 5, 300])
def test_what_the_derived_topic_refuses_is_left_out(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    bad: Record,
    setting: str,
    value: str,
    before: int,
) -> None:
    """It is accepted by the source: compressed it is small there, or needs no key."""
    deriving = Deriving(tmp_path / "data")
    deriving.make(1, **{setting: value})
    given = [f"a{number}".encode() for number in range(before)]
    records = [*(Record(each, each) for each in given), bad, Record(b"a-last", b"last")]
    built = batch.build(records, timestamp_ms=77, codec=compression.GZIP)
    log = deriving.broker.broker.log
    log.settle(log.append(Partition("raw", 0), memoryview(built)), Ack.DURABLE)
    deriving.run()
    deriving.write(b"after")
    assert deriving.seen() == [*given, b"a-last", b"after"]
    assert f"record {before} of raw-0 is left out" in caplog.text
    deriving.close()


def test_many_records_that_the_module_fails_at_are_reported_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deriving = Deriving(tmp_path / "data")
    deriving.make(1)
    deriving.write(*[b"?x"] * 200, b"apple", *[b"!x"] * 200, b"avocado")
    assert deriving.seen() == [b"apple", b"avocado"]
    assert 1 <= caplog.text.count("left out, the") < 200
    deriving.close()


@pytest.mark.parametrize("steps", range(1, 12))
def test_whatever_step_the_process_ends_at_nothing_is_lost_or_doubled(
    tmp_path: Path, steps: int
) -> None:
    """The derivation stops between any two of its steps, as a process does that is killed."""
    deriving = Deriving(tmp_path / "data")
    deriving.make()
    deriving.write(b"apple")
    deriving.append(b"avocado", b"b")
    deriving.step(steps)
    deriving.close()
    deriving = Deriving(tmp_path / "data")
    deriving.write(b"apricot")
    assert deriving.seen() == [b"apple", b"avocado", b"apricot"]
    deriving.close()


@pytest.mark.parametrize("steps", range(15))
@pytest.mark.parametrize("flush_interval_ms", [0, 100])
def test_whatever_step_the_source_is_made_again_at_all_of_it_is_derived(
    tmp_path: Path, steps: int, flush_interval_ms: int
) -> None:
    """The new topic has no place of the old one, and no open transaction hides its records."""
    deriving = Deriving(tmp_path / "data", flush_interval_ms=flush_interval_ms)
    deriving.make(partitions=1)
    for partition in (0, 1):
        deriving.append(b"apple", b"avocado", partition=partition)
    deriving.step(steps)
    topics = deriving.broker.topics
    topics.delete("raw")
    topics.create(TopicSpec(name="raw", partitions=1))
    deriving.run()
    deriving.write(b"almond")
    deriving.write(b"apricot")
    assert deriving.seen()[-2:] == [b"almond", b"apricot"]
    deriving.close()


@pytest.mark.parametrize("steps", range(15))
@pytest.mark.parametrize("restarts", [False, True])
def test_whatever_step_it_is_made_again_at_a_derived_topic_has_all_of_its_source(
    tmp_path: Path, steps: int, restarts: bool
) -> None:
    deriving = Deriving(tmp_path / "data")
    deriving.make(partitions=1)
    deriving.write(b"apple")
    deriving.append(b"avocado", b"banana")
    deriving.step(steps)
    deriving.broker.topics.delete("clean")
    deriving.derive(1)
    if restarts:
        deriving.close()
        deriving = Deriving(tmp_path / "data")
    deriving.run()
    deriving.write(b"almond")
    assert deriving.seen() == [b"apple", b"avocado", b"almond"]
    deriving.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"derived.from": "raw"},
        {"derived.smartmodule": "keep-a"},
        {"derived.from": "absent", "derived.smartmodule": "keep-a"},
        {"derived.from": "raw", "derived.smartmodule": "absent"},
        {"derived.from": "itself", "derived.smartmodule": "keep-a"},
        {"derived.from": "raw", "derived.smartmodule": "keep-a", "derived.parameters": "x"},
    ],
)
def test_what_cannot_be_derived_is_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    deriving = Deriving(tmp_path / "data")
    deriving.make()
    with pytest.raises(InvalidConfig, match="derived"):
        deriving.broker.topics.create(TopicSpec(name="itself", settings=settings))
    deriving.close()


def test_without_wasmtime_there_is_a_clear_refusal(
    demo: FluvioBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wasmtime", None)
    later: Later[None] = demo.smart_modules.create(SmartModule("any", b"\0asm"))
    demo.runtime.run()
    with pytest.raises(SmartModuleInvalid, match=r"pentalog\[smartmodules\]"):
        _ = later.value
    assert isinstance(demo.broker, Broker)
