"""What the real Fluvio client does in the tests, one function per process.

The client holds the interpreter's lock while it waits, so each piece of work is a process of its
own: `python fluvio_scripts.py FUNCTION ADDRESS ARGUMENT...` prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from fluvio import (
    Compression,
    ConsumerConfig,
    ConsumerConfigExtBuilder,
    DeliverySemantic,
    Fluvio,
    FluvioAdmin,
    FluvioConfig,
    Isolation,
    Offset,
    OffsetManagementStrategy,
    TopicProducerConfigBuilder,
    TopicSpec,
)

COMPRESSIONS = ("Gzip", "Snappy", "Lz4", "Zstd")


def config(address: str) -> Any:
    made = FluvioConfig.new(address)
    made.disable_tls()
    return made


def patient() -> Any:
    """By default a producer waits for 1.5 s, less than a busy machine may need."""
    return TopicProducerConfigBuilder().timeout(60_000)


def producer_of(connected: Any, topic: str) -> Any:
    return connected.topic_producer_with_config(topic, patient().build())


def client(address: str) -> Any:
    return Fluvio.connect_with_config(config(address))


def admin(address: str) -> Any:
    return FluvioAdmin.connect_with_config(config(address))


def said(act: Callable[[], Any]) -> str:
    """The text of the exception that this raises; empty if it does not."""
    try:
        act()
    except Exception as error:
        return str(error)
    return ""


def record(found: Any) -> list[Any]:
    return [found.offset(), bytes(found.key()).decode(), bytes(found.value()).decode()]


def topics(address: str) -> Any:
    """Create, list, delete; and what the client says of what is refused."""
    control = admin(address)

    def listed() -> list[str]:
        return sorted(
            name for topic in control.all_topics() if (name := topic.name())[:4] == "own-"
        )

    control.create_topic("own-one")
    control.create_topic("own-two", TopicSpec.create().with_partitions(3).build())
    spec = TopicSpec.create().with_retention_time(3600).with_segment_size(4096)
    control.create_topic("own-kept", spec.with_replications(1).build())
    found = {
        "topics": listed(),
        "filtered": [topic.name() for topic in control.list_topics(["own-tw"])],
        "partitions": sorted(part.name() for part in control.list_partitions(["own-two"])),
        "exists": said(lambda: control.create_topic("own-one")),
        "name": said(lambda: control.create_topic("Not_A_Name")),
        "missing": said(lambda: control.delete_topic("absent")),
    }
    control.delete_topic("own-two")
    found["left"] = listed()
    other = client(address)
    found["producer"] = said(lambda: other.topic_producer("absent"))
    found["consumer"] = said(lambda: next(_stream(other, "absent")))
    return found


def _stream(connected: Any, topic: str, offset: Any = None) -> Any:
    start = Offset.beginning() if offset is None else offset
    return connected.partition_consumer(topic, 0).stream(start)


def produce(address: str, topic: str) -> Any:
    """Single, with keys, many at once, flushed; where each was put."""
    admin(address).create_topic(topic)
    producer = producer_of(client(address), topic)
    outputs = [producer.send(b"k%d" % number, b"v%d" % number) for number in range(3)]
    outputs += [producer.send_string("text")]
    outputs += producer.send_all([(b"", b"a"), (b"x", b"b")])
    producer.flush()
    return [output.wait().offset() for output in outputs]


def more(address: str, topic: str, count: str) -> Any:
    producer = producer_of(client(address), topic)
    for number in range(int(count)):
        producer.send(b"", b"more %d" % number)
    producer.flush()


def fruit(address: str, topic: str, *others: str) -> Any:
    admin(address).create_topic(topic)
    producer = producer_of(client(address), topic)
    for name in ("apple", "banana", "avocado", *others):
        producer.send_string(name)
    producer.flush()


def compressed(address: str, topic: str) -> Any:
    """Each compression, both isolations, batches of many records."""
    admin(address).create_topic(topic)
    connected = client(address)
    for name in COMPRESSIONS:
        builder = (
            patient()
            .compression(getattr(Compression, name))
            .batch_size(65_536)
            .linger(20)
            .isolation(Isolation.ReadCommitted if name == "Gzip" else Isolation.ReadUncommitted)
            .delivery_semantic(DeliverySemantic.AtLeastOnce)
        )
        producer = connected.topic_producer_with_config(topic, builder.build())
        producer.send_all([(name.encode(), b"%s %d " % (name.encode(), n) * 20) for n in range(50)])
        producer.flush()
    return None


def consume(address: str, topic: str, offset: str, count: str) -> Any:
    """Some records from a place: `beginning`, `beginning:2`, `end:2` or a number."""
    word, _, number = offset.partition(":")
    if word == "beginning":
        place = Offset.from_beginning(int(number)) if number else Offset.beginning()
    elif word == "end":
        place = Offset.from_end(int(number)) if number else Offset.end()
    else:
        place = Offset.absolute(int(word))
    stream = _stream(client(address), topic, place)
    return [record(next(stream)) for _ in range(int(count))]


def tail(address: str, topic: str) -> Any:
    """The next two records behind the end; says when it is ready."""
    connected = client(address)
    stream = _stream(connected, topic, Offset.end())
    print("ready", flush=True)
    return [record(next(stream)) for _ in range(2)]


def managed(address: str, topic: str, count: str, mode: str) -> Any:
    """Read some as a consumer that remembers, and let it remember."""
    builder = ConsumerConfigExtBuilder(topic)
    builder.offset_start(Offset.beginning())
    builder.offset_strategy(OffsetManagementStrategy.MANUAL)
    builder.offset_consumer("the-consumer")
    stream = client(address).consumer_with_config(builder.build())
    found = [record(next(stream)) for _ in range(int(count))]
    if mode == "commit":
        stream.offset_commit()
        stream.offset_flush()
    return found


def consumers(address: str, topic: str, mode: str) -> Any:
    connected = client(address)
    if mode == "delete":
        connected.delete_consumer_offset("the-consumer", topic, 0)
    return [
        [kept.consumer_id, kept.topic, kept.partition, kept.offset]
        for kept in connected.consumer_offsets()
        if kept.topic == topic
    ]


def partitions(address: str, topic: str) -> Any:
    """Write to all partitions of a topic, and read all of them."""
    admin(address).create_topic(topic, TopicSpec.create().with_partitions(3).build())
    connected = client(address)
    producer = producer_of(connected, topic)
    for number in range(30):
        producer.send(b"key-%d" % number, b"%d" % number)
    producer.flush()
    builder = ConsumerConfigExtBuilder(topic)
    builder.offset_start(Offset.beginning())
    builder.disable_continuous()
    stream = connected.consumer_with_config(builder.build())
    return sorted(int(bytes(next(stream).value())) for _ in range(30))


def follow(address: str, topic: str, count: str) -> Any:
    """Read on and on, through whatever happens to the broker."""
    builder = ConsumerConfigExtBuilder(topic)
    builder.offset_start(Offset.beginning())
    stream = client(address).consumer_with_config(builder.build())
    found = []
    for _ in range(int(count)):
        found.append(record(next(stream)))
        print("read", flush=True)
    return found


def smart(address: str, topic: str, kind: str, path: str, fails: str = "") -> Any:
    """Read through a SmartModule that is brought along, then through the same one stored."""
    control = admin(address)
    control.create_smartmodule(f"stored-{kind}", path, False)
    names = [module.name() for module in control.list_smartmodules([])]
    found: dict[str, Any] = {"names": names}
    connected = client(address)
    for way in ("path", "name"):
        settings = ConsumerConfig()
        where = {"path": path} if way == "path" else {"name": f"stored-{kind}"}
        settings.smartmodule(**where)
        consumer = connected.partition_consumer(topic, 0)
        stream = consumer.stream_with_config(Offset.beginning(), settings)
        found[way] = [bytes(next(stream).value()).decode() for _ in range(2)]
        if fails:
            found[f"{way}-error"] = said(partial(next, stream))
    control.delete_smartmodule(f"stored-{kind}")
    return found


def store_module(address: str, name: str, path: str) -> Any:
    admin(address).create_smartmodule(name, path, False)


def big(address: str, topic: str, size: str) -> Any:
    """One large record and many small ones, both ways, on one connection that also writes."""
    admin(address).create_topic(topic)
    connected = client(address)
    producer = producer_of(connected, topic)
    producer.send(b"", b"x" * int(size)).wait()
    for number in range(3000):
        producer.send(b"", b"%d" % number)
    producer.flush()
    stream = _stream(connected, topic)
    sizes = [len(bytes(next(stream).value()))]
    # A backlog behind the stream must not keep the answer to a write from coming.
    producer.send(b"", b"while reading").wait()
    last = [bytes(next(stream).value()).decode() for _ in range(3001)][-1]
    return [sizes, last]


def main() -> None:
    name, address, *arguments = sys.argv[1:]
    print(json.dumps(globals()[name](address, *arguments)), flush=True)
    # The client's threads do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
