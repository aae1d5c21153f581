"""A story of a minute: a broker, five kinds of clients, a kill -9, and nothing acknowledged lost.

Starts `pentalog start` as a user would, writes and reads with confluent-kafka, kills the broker
with SIGKILL while it is being written to, starts it again and compares what it kept with what it
had acknowledged; `demo_tables.py` goes on with tables.  Ends with code 0 only if everything was as
promised.  Killing a process shows that recovery works; it does not show what a power cut would do,
since the page cache survives.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import demo_doors
import demo_tables
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from demo_doors import WentWrong, say

LISTENERS = ("kafka", "fluvio-sc", "fluvio-spu", "cursus", "rustlog", "blipmq", "http")
READY_TIMEOUT_S = 30
RECORDS = 200_000
VALUE = b'{"order": %d, "amount": 42, "note": "%s"}'
PADDING = b"x" * 60


class Broker:
    """One `pentalog start` process on a free port."""

    def __init__(self, data: Path) -> None:
        started = time.monotonic()
        self._process = subprocess.Popen(
            [
                Path(sys.executable).with_name("pentalog"),
                "start",
                *(word for name in LISTENERS for word in ("--listen", f"{name}=127.0.0.1:0")),
                *("--data", data),
                *("--console", "127.0.0.1:0"),
                *("--log-level", "warning"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        # A broker that hangs must not hang the story.
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        self.addresses = self._wait_until_ready()
        self.address = self.addresses["kafka"]
        watchdog.cancel()
        self.start_s = time.monotonic() - started

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> int:
        self._process.terminate()
        self._process.communicate(timeout=READY_TIMEOUT_S)
        return self._process.returncode

    def _wait_until_ready(self) -> dict[str, str]:
        """Where it listens, by the name of the listener."""
        assert self._process.stdout is not None
        addresses: dict[str, str] = {}
        for line in self._process.stdout:
            found = re.match(r"(\S+) listening on (\S+)", line)
            if found:
                addresses[found[1]] = found[2]
            if line.startswith("ready") and "kafka" in addresses:
                return addresses
        raise WentWrong(f"the broker ended with code {self._process.wait()} before it was ready")


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise WentWrong(what)


def producer_for(address: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 20_000,
            "message.timeout.ms": 20_000,
            "log_level": 0,
            # The broker is killed on purpose below; the client need not talk about it.
            "error_cb": lambda _: None,
        }
    )


def read_all(address: str, topic: str) -> list[Message]:
    """Every record of partition 0 up to its present end."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "demo", "enable.auto.commit": False}
    )
    place = TopicPartition(topic, 0, 0)
    found: list[Message] = []
    try:
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=10)
        while len(found) < end:
            batch = consumer.consume(min(10_000, end - len(found)), timeout=10)
            expect(bool(batch), f"only {len(found)} of {end} records of {topic} came")
            for message in batch:
                if message.error() is not None:
                    raise WentWrong(str(message.error()))
                found.append(message)
    finally:
        consumer.close()
    return found


def one_record(address: str) -> None:
    say("\n1. One record, with everything a record can have")
    producer = producer_for(address)
    outcome: list[Message] = []
    now_ms = int(time.time() * 1000)
    producer.produce(
        "greetings",
        key=b"en",
        value="Hello, log ✓".encode(),
        headers=[("language", b"English"), ("language", None), ("empty", b"")],
        timestamp=now_ms,
        partition=0,
        on_delivery=lambda error, message: outcome.append(error or message),
    )
    expect(producer.flush(20) == 0, "the record was not acknowledged")
    (back,) = read_all(address, "greetings")
    expect(back.value() == "Hello, log ✓".encode(), "the value came back changed")
    expect(back.key() == b"en", "the key came back changed")
    expect(back.timestamp()[1] == now_ms, "the timestamp came back changed")
    expected = [("language", b"English"), ("language", None), ("empty", b"")]
    expect(back.headers() == expected, "the headers came back changed")
    shown = {"key": "en", "offset": back.offset(), "timestamp": back.timestamp()[1]}
    say(f"   written and read back: {back.value().decode()!r} {json.dumps(shown)}")
    say(f"   headers: {back.headers()}")


def many_records(address: str) -> None:
    say(f"\n2. {RECORDS:,} records of about 100 bytes, acknowledged only when they are on the disk")
    producer = producer_for(address)
    failures: list[object] = []

    def note(error: object, _: Message) -> None:
        if error is not None:
            failures.append(error)

    started = time.monotonic()
    for number in range(RECORDS):
        value = VALUE % (number, PADDING)
        while not _taken(producer, "orders", value, note):
            producer.poll(0.05)
    expect(producer.flush(60) == 0, "not every record was acknowledged in a minute")
    seconds = time.monotonic() - started
    expect(not failures, f"{len(failures)} records were refused, the first with {failures[:1]}")
    say(f"   written in {seconds:.2f} s: {RECORDS / seconds:,.0f} records/s from one Python client")

    started = time.monotonic()
    found = read_all(address, "orders")
    seconds = time.monotonic() - started
    expect(len(found) == RECORDS, f"{len(found)} of {RECORDS} records came back")
    for number, message in enumerate(found):
        if message.offset() != number or message.value() != VALUE % (number, PADDING):
            raise WentWrong(f"record {number} came back as {message.value()!r}")
    say(f"   read in {seconds:.2f} s: {RECORDS / seconds:,.0f} records/s, all equal, in order")


def _taken(
    producer: Producer, topic: str, value: bytes, note: Callable[[object, Message], None]
) -> bool:
    try:
        producer.produce(topic, value=value, partition=0, on_delivery=note)
    except BufferError:
        return False
    producer.poll(0)
    return True


def kill_and_restart(data: Path, broker: Broker) -> Broker:
    say("\n3. kill -9 in the middle of writing")
    producer = producer_for(broker.address)
    acknowledged: dict[int, bytes] = {}

    def note(error: object, message: Message) -> None:
        if error is None:
            acknowledged[message.offset()] = message.value()

    deadline = time.monotonic() + 30
    number = 0
    killer = threading.Timer(1.0, broker.kill)
    while broker.running:
        expect(time.monotonic() < deadline, "20,000 records were not acknowledged in 30 s")
        if len(acknowledged) > 20_000 and killer.ident is None:
            killer.start()
        if _taken(producer, "payments", VALUE % (number, PADDING), note):
            number += 1
        else:
            producer.poll(0.01)
    killer.join()
    # Answers that were on their way count; what was never answered is given up.
    producer.poll(0.5)
    producer.purge()
    producer.flush(5)
    say(f"   killed with {len(acknowledged):,} of {number:,} records acknowledged")

    again = Broker(data)
    say(f"   restarted and recovered in {again.start_s:.2f} s on {again.address}")
    kept = {message.offset(): message.value() for message in read_all(again.address, "payments")}
    lost = [offset for offset, value in acknowledged.items() if kept.get(offset) != value]
    expect(not lost, f"{len(lost)} acknowledged records are missing or changed: {lost[:5]}")
    expect(sorted(kept) == list(range(len(kept))), "there is a hole between the offsets")
    extra = len(kept) - len(acknowledged)
    say(f"   every acknowledged record is there; {extra:,} more had arrived unacknowledged")
    return again


def console(address: str) -> None:
    say("\n6. Look at it")
    if importlib.util.find_spec("nicegui") is None:
        say("   left out: the console needs `pip install pentalog[console]`")
        return
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        client = HTTPConnection(host, int(port), timeout=READY_TIMEOUT_S)
        client.request("GET", "/")
        answer = client.getresponse()
        client.close()
        if answer.status == HTTPStatus.TEMPORARY_REDIRECT:
            say(f"   the console is at {answer.headers['Location']}; metrics at {address}/metrics")
            return
        time.sleep(0.2)
    raise WentWrong(f"the console was not there in {READY_TIMEOUT_S} s")


def keep(broker: Broker) -> None:
    say("\nThe broker stays up; Ctrl-C ends it.")
    for name, address in broker.addresses.items():
        say(f"   {name:<10} {address}")
    try:
        while broker.running:
            time.sleep(0.5)
    except KeyboardInterrupt:
        say("")


def tell(data: Path, *, stay: bool) -> None:
    broker = Broker(data)
    try:
        say(f"pentalog is ready after {broker.start_s:.2f} s on {broker.address}")
        one_record(broker.address)
        many_records(broker.address)
        broker = kill_and_restart(data, broker)
        count = demo_doors.tell(broker.addresses)
        demo_tables.tell(data.parent, broker.address, count)
        console(broker.addresses["http"])
        if stay:
            keep(broker)
        code = broker.stop()
        expect(code == 0, f"the broker ended with code {code}")
    finally:
        broker.kill()
    size = sum(path.stat().st_size for path in data.rglob("*.log"))
    say(f"\nStopped cleanly.  The log took {size / 1e6:.1f} MB; it is Kafka's own format.")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="pentalog-demo-") as directory:
        try:
            tell(Path(directory) / "data", stay="--keep" in sys.argv[1:])
        except (WentWrong, KafkaException, subprocess.TimeoutExpired) as wrong:
            print(f"\nThis went wrong: {wrong}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
