"""pentalog beside Apache Kafka on this machine: same clients, same records, same durability.

Every row runs on both brokers in turn, the order swapped each round; the first round warms up
and is thrown away; medians of the rest are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

import apache_kafka
import machine
import table
from brokers import ROOT, Broker, start_pentalog, stopping
from rows import ROWS, WARM_UP, Durability, Load, Row

RESULTS = machine.CACHE / "results.jsonl"
# A consumer that runs into the end waits there, and the next pass waits behind it; so there are
# more records than the client reads ahead.
BEYOND = 400_000
CONTROL = "kafka-again"
BASELINE = "baseline"
# How long a new group waits for more members is a setting, nothing to measure.
KAFKA_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
PENTALOG_SETTINGS: dict[Durability, dict[str, str]] = {
    Durability.PAGE_CACHE: {"flush_interval_ms": "0", "group_initial_rebalance_delay_ms": "0"},
    Durability.FSYNC: {"group_initial_rebalance_delay_ms": "0"},
}


@dataclass(slots=True)
class Subject:
    """One of the two brokers under comparison."""

    name: str
    brokers: dict[Durability, Broker]
    synced_topic: dict[str, str] = field(default_factory=dict)
    """Topic settings that make an acknowledgement wait for the disk."""
    filled: dict[str, str] = field(default_factory=dict)
    """Topics full of records to consume, by row."""


def main() -> int:
    arguments = _arguments()
    rows = _chosen(arguments.only, quick=arguments.quick)
    rounds = 2 if arguments.quick else arguments.repeats + 1
    described = machine.described()
    if described["load_average"] > 1:
        print(f"warning: load average is {described['load_average']}; figures will suffer")
    if arguments.quick:
        print("quick: too short for Java to warm up and for medians; not for quoting")
    results: list[dict[str, Any]] = []
    machine.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=machine.CACHE) as work:
        directory = Path(work)
        machine.warm_page_memory(directory, size_bytes=(1 if arguments.quick else 6) << 30)
        names = _subject_names(arguments)
        if not arguments.only or "start" in arguments.only:
            results += _measure_starts(directory, names, rounds=rounds, baseline=arguments.baseline)
        if rows:
            wanted = [one for one in Durability if any(row.durability is one for row in rows)]
            with _subjects(directory, wanted, names, arguments.baseline) as subjects:
                _warm(subjects, share=0.1 if arguments.quick else 1.0)
                results += _run_rounds(subjects, rows, rounds=rounds)
                results += [_memory(subject) for subject in subjects]
    _keep(results, described, quick=arguments.quick)
    comparison = table.Comparison(*names, results)
    table.show(comparison, rows, described, command=f"python {' '.join(sys.argv)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the work, one repeat; not for quoting"
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds that count (default 3)")
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument(
        "--control",
        action="store_true",
        help="Apache Kafka against itself: how far from 1 a ratio gets by chance",
    )
    beside.add_argument(
        "--baseline",
        type=Path,
        metavar="CHECKOUT",
        help="compare with the pentalog of another checkout, its kernels compiled in place",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="ROW",
        choices=["start", *(row.name for row in ROWS)],
        help="run this row only; may be given more than once: "
        + ", ".join(["start", *(row.name for row in ROWS)]),
    )
    return parser.parse_args()


def _subject_names(arguments: argparse.Namespace) -> tuple[str, str]:
    if arguments.baseline:
        return "pentalog", BASELINE
    return (CONTROL if arguments.control else "pentalog"), "kafka"


def _chosen(only: Sequence[str] | None, *, quick: bool) -> list[Row]:
    rows = [row for row in ROWS if not only or row.name in only]
    return [row.scaled(0.1) for row in rows] if quick else rows


@contextlib.contextmanager
def _subjects(
    directory: Path,
    wanted: Sequence[Durability],
    names: Sequence[str],
    baseline: Path | None,
) -> Iterator[list[Subject]]:
    """Both brokers, up all the time; the one not measured is idle."""
    with contextlib.ExitStack() as stack:

        def kept(broker: Broker) -> Broker:
            return stack.enter_context(stopping(broker))

        def kafka(name: str) -> Subject:
            # As many processes as ours: a synced row must not inherit another row's leftovers.
            nodes = {
                durability: kept(
                    apache_kafka.start(
                        directory / f"{name}-{durability.name}", settings=KAFKA_SETTINGS
                    )
                )
                for durability in wanted
            }
            return Subject(name, nodes, synced_topic={"flush.messages": "1"})

        def pentalog(name: str) -> Subject:
            nodes = {
                durability: kept(
                    start_pentalog(
                        directory / f"{name}-{durability.name}",
                        settings=PENTALOG_SETTINGS[durability],
                        checkout=_checkout(name, baseline),
                    )
                )
                for durability in wanted
            }
            return Subject(name, nodes)

        yield [kafka(name) if name.startswith("kafka") else pentalog(name) for name in names]


def _checkout(name: str, baseline: Path | None) -> Path:
    return baseline if name == BASELINE and baseline else ROOT


def _run_rounds(
    subjects: list[Subject], rows: Sequence[Row], *, rounds: int
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for number in range(rounds):
        for row in rows:
            for subject in subjects if number % 2 == 0 else reversed(subjects):
                result = _run(subject, row, number)
                # The first round pays for cold caches and an untrained compiler.
                result["counts"] = number > 0
                results.append(result)
                _tell(result)
    return results


def _warm(subjects: Sequence[Subject], *, share: float) -> None:
    """Many small requests: Java compiles what runs often, and a round alone is not enough."""
    for subject in subjects:
        for durability, broker in subject.brokers.items():
            for row in WARM_UP:
                topic = f"warm-{row.name}"
                _create(broker, [topic], partitions=row.partitions, settings={})
                _load(broker, row.scaled(share), [topic], identity=topic)
                _delete(broker, [topic])
            if durability is Durability.FSYNC and subject.synced_topic:
                # It exists since the first transaction; a commit is only as safe as this log.
                _change(broker, "__transaction_state", subject.synced_topic)


def _run(subject: Subject, row: Row, number: int) -> dict[str, Any]:
    broker = subject.brokers[row.durability]
    settings = subject.synced_topic if row.durability is Durability.FSYNC else {}
    topics = [f"{row.name}-{number}-{i}" for i in range(row.topics)]
    identity = f"{row.name}-{number}"
    consuming = row.load in (Load.CONSUME, Load.GROUP)
    if consuming:
        topics = [_filled_topic(subject, broker, row)]
    else:
        _create(broker, topics, partitions=row.partitions, settings=settings)
    machine.settle()
    cpu_before = broker.cpu_s
    measured = _load(broker, row, topics, identity=identity)
    cpu_s = broker.cpu_s - cpu_before
    if row.load is Load.GROUP:
        _check_committed(broker, identity, topics[0], row.count)
    if not consuming:
        expected = measured.get("offsets", measured["messages"])
        _check_all_there(broker, topics, row.partitions, expected)
        _delete(broker, topics)
        # Deleted segments must be gone, or the next run starts while their memory is freed.
        time.sleep(1.5)
    if row.load is Load.TRANSACTIONS:
        done = measured["transactions"]
        measured["transaction_rate"] = done / measured["seconds"]
        measured["broker_cpu_s_per_thousand"] = cpu_s / done * 1e3
    return {
        "row": row.name,
        "broker": subject.name,
        "durability": row.durability.value,
        "round": number,
        **measured,
        "rate": measured["messages"] / measured["seconds"],
        "broker_cpu_s": cpu_s,
        "broker_cpu_s_per_million": cpu_s / measured["messages"] * 1e6,
        "broker_cores": cpu_s / measured["seconds"],
        "rss_bytes": broker.rss_bytes,
    }


def _load(broker: Broker, row: Row, topics: Sequence[str], *, identity: str) -> dict[str, Any]:
    """Run the load generator; `identity` names the group or the transactional producer."""
    host, _, port = broker.address.rpartition(":")
    seconds = str(row.seconds)
    if row.load in (Load.PARTITIONS, Load.TINY):
        number = row.partitions if row.load is Load.PARTITIONS else row.window
        arguments = [topics[0], seconds, str(number), str(row.size)]
        command = [str(machine.compiled("pipelined.c")), host, port, row.load.value, *arguments]
    else:
        number = row.count if row.load in (Load.CONSUME, Load.GROUP) else row.size
        arguments = [",".join(topics), seconds, str(number)]
        if row.load in (Load.GROUP, Load.TRANSACTIONS):
            key = "group.id" if row.load is Load.GROUP else "transactional.id"
            arguments += [str(row.commit_every), f"{key}={identity}"]
        arguments += row.settings
        client = [str(machine.compiled("load.c")), str(machine.librdkafka())]
        command = [*client, broker.address, row.load.value, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=os.environ
    )
    if done.returncode != 0:
        raise SystemExit(f"{row.name} on {broker.name} failed: {done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _filled_topic(subject: Subject, broker: Broker, row: Row) -> str:
    if row.name not in subject.filled:
        topic = f"{row.name}-filled"
        _create(broker, [topic], partitions=1, settings={})
        client = [str(machine.compiled("load.c")), str(machine.librdkafka()), broker.address]
        count = str(row.count + BEYOND)
        command = [*client, "fill", topic, count, str(row.size), "acks=1"]
        subprocess.run(command, check=True, capture_output=True, timeout=600, env=os.environ)
        subject.filled[row.name] = topic
    return subject.filled[row.name]


def _create(
    broker: Broker, topics: Sequence[str], *, partitions: int, settings: dict[str, str]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 4})
    asked = [NewTopic(topic, partitions, 1, config=settings) for topic in topics]
    for made in admin.create_topics(asked).values():
        made.result(60)
    # Creation is answered before every partition of Kafka has a leader that takes requests.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if _records(admin, topics, partitions) is not None:
            return
        time.sleep(0.05)
    raise SystemExit(f"{broker.name} did not open {topics} within 60 s; see {broker.log}")


def _records(admin: AdminClient, topics: Sequence[str], partitions: int) -> int | None:
    """How many records the topics hold; None while a partition cannot say."""
    asked = [TopicPartition(topic, i) for topic in topics for i in range(partitions)]
    ends = list(admin.list_offsets({at: OffsetSpec.latest() for at in asked}).values())
    if any(end.exception() is not None for end in ends):
        return None
    return sum(end.result().offset for end in ends)


def _check_all_there(broker: Broker, topics: Sequence[str], partitions: int, expected: int) -> None:
    """A rate counts only if every acknowledged record is in the log, once."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 4})
    found = _records(admin, topics, partitions)
    # Kafka answers a commit before its last control record is in the topic.
    deadline = time.monotonic() + 10
    while (found is None or found < expected) and time.monotonic() < deadline:
        time.sleep(0.1)
        found = _records(admin, topics, partitions)
    if found != expected:
        raise SystemExit(f"{broker.name} acknowledged {expected} records and holds {found}")


def _check_committed(broker: Broker, group: str, topic: str, expected: int) -> None:
    """A group's rate counts only if its last commit is what the broker remembers."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 4})
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    (answer,) = admin.list_consumer_group_offsets(asked).values()
    found = answer.result(60).topic_partitions[0].offset
    if found != expected:
        raise SystemExit(f"{broker.name} took a commit of {expected} and remembers {found}")


def _change(broker: Broker, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 4})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for changed in admin.incremental_alter_configs([asked]).values():
        changed.result(60)


def _delete(broker: Broker, topics: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 4})
    for gone in admin.delete_topics(list(topics)).values():
        gone.result(60)


def _measure_starts(
    directory: Path, names: Sequence[str], *, rounds: int, baseline: Path | None
) -> list[dict[str, Any]]:
    """Start each broker on an empty directory, to its first Metadata answer; then its memory."""
    results = []
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            place = directory / f"start-{name}-{number}"
            broker = (
                apache_kafka.start(place)
                if name.startswith("kafka")
                else start_pentalog(place, checkout=_checkout(name, baseline))
            )
            with stopping(broker):
                time.sleep(2)
                result = {
                    "row": "start",
                    "broker": name,
                    "round": number,
                    "counts": number > 0,
                    "start_s": broker.start_s,
                    "rss_idle_bytes": broker.rss_bytes,
                }
            results.append(result)
            shutil.rmtree(place)
            print(f"  start {name}: {broker.start_s:.2f} s", flush=True)
    return results


def _memory(subject: Subject) -> dict[str, Any]:
    broker = next(iter(subject.brokers.values()))
    return {
        "row": "memory",
        "broker": subject.name,
        "counts": True,
        "rss_loaded_bytes": broker.rss_bytes,
        "rss_peak_bytes": broker.rss_peak_bytes,
    }


def _tell(result: dict[str, Any]) -> None:
    print(
        f"  round {result['round']} {result['row']} {result['broker']}: {result['rate']:,.0f}/s,"
        f" {result['broker_cpu_s_per_million']:.3f} CPU s per million",
        flush=True,
    )


def _keep(results: Sequence[dict[str, Any]], described: dict[str, Any], *, quick: bool) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with RESULTS.open("a") as file:
        for result in results:
            file.write(
                json.dumps({"at": at, "quick": quick, **result, "machine": described}) + "\n"
            )


if __name__ == "__main__":
    sys.exit(main())
