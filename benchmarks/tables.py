"""What it costs to make Arrow columns, Spark's rows and tables of a topic: CPU per million records.

Measured is CPU time, so other work on the machine matters little: for Arrow that of the process
that reads, for Spark that of the driver, of Java and of all Python workers.  The broker runs in a
process of its own and is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

import brokers
import cpu_clock
import machine
import spark_costs
from pentalog.clients.kafka import LATEST, Cluster
from pentalog.kernels import column_facts, decode_columns
from pentalog.log.reader import DirectoryReader
from pentalog.model import batch
from pentalog.model.types import Partition, Record
from pentalog.tables.options import SourceOptions, read_options
from pentalog.tables.origins import open_origin
from pentalog.tables.rows import RowMaker
from pentalog.tables.splits import Split, SplitReader

TOPIC = "bench"
VALUE_BYTES = 100
BATCH_RECORDS = 150
REPEATS = 5
WORK = ("rows", "raw", "json")


class Row(NamedTuple):
    name: str
    records: int
    cpu_s: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.cpu_s


def schema(*names: str) -> StructType:
    kinds = {
        "topic": "string",
        "partition": "integer",
        "offset": "long",
        "timestamp": "timestamp",
        "key": "binary",
        "value": "binary",
        "door": "string",
    }
    made = StructType()
    for name in names:
        made = made.add(name, kinds[name])
    return made


def fill(address: str, records: int, codec: int) -> str:
    """One partition of JSON-sized values with short keys; returns its topic."""
    topic = f"{TOPIC}-{codec}"
    now_ms = int(time.time() * 1000)
    with Cluster(address) as cluster:
        cluster.create_topic(topic, 1)
        for first in range(0, records, BATCH_RECORDS):
            wanted = [
                Record((b"%d," % number).ljust(VALUE_BYTES, b"v"), b"key%05d" % (number % 1000))
                for number in range(first, first + BATCH_RECORDS)
            ]
            data = batch.build(wanted, timestamp_ms=now_ms, codec=codec)
            cluster.produce(Partition(topic, 0), bytes(data), acks=1)
    return topic


def best(name: str, records: int, run: Callable[[], int]) -> Row:
    """The least CPU time of several runs: nothing makes a run cheaper than it is."""
    times: list[float] = []
    for _ in range(REPEATS):
        begun = time.process_time()
        found = run()
        times.append(time.process_time() - begun)
        assert found == records, f"{name}: {found} of {records} records"
    return Row(name, records, min(times))


def kernel_rows(records: int) -> Iterator[Row]:
    one = batch.build(
        [Record(b"v" * VALUE_BYTES, b"key%05d" % n) for n in range(BATCH_RECORDS)],
        timestamp_ms=1_700_000_000_000,
    )
    data = bytes(one) * 250
    count = 250 * BATCH_RECORDS
    everything = 0x3F
    for name, columns in (("two columns", column_facts.OFFSETS | column_facts.VALUES),
                          ("every column, headers too", everything)):  # fmt: skip

        def run(columns: int = columns) -> int:
            found = 0
            while found < records:
                found += decode_columns(
                    data, 0, len(data), low=0, high=1 << 60, columns=columns, aborted=b"",
                    picks=(), doors=(b"kafka",),
                ).rows  # fmt: skip
            return found

        whole = -(-records // count) * count
        yield best(f"kernel alone, {name}", whole, run)


def read_all(options: SourceOptions, topic: str, end: int, names: tuple[str, ...]) -> int:
    maker = RowMaker(schema(*names), rows_per_batch=options.rows_per_batch)
    origin = open_origin(options)
    split = Split(Partition(topic, 0), 0, end)
    try:
        return sum(made.num_rows for made in SplitReader(split, maker, options).read(origin))
    finally:
        origin.close()


def source_rows(address: str, data: Path, records: int) -> Iterator[Row]:
    every = ("topic", "partition", "offset", "timestamp", "key", "value", "door")
    for codec in (0, 4):
        topic = fill(address, records, codec)
        at = Partition(topic, 0)
        with Cluster(address) as cluster:
            end = cluster.offsets({at: LATEST})[at]
        # The broker writes its marks down a moment later than it makes records readable.
        while (marks := DirectoryReader(data).marks().get(at)) is None or marks.stable < end:
            time.sleep(0.1)
        for way, options in (
            ("segment files", read_options({"data": str(data), "topics": topic})),
            ("Kafka door", read_options({"servers": address, "topics": topic})),
        ):
            for names in (("offset", "value"), every):
                label = f"{way}, {'zstd, ' if codec else ''}{len(names)} columns"

                def run(
                    options: SourceOptions = options,
                    topic: str = topic,
                    end: int = end,
                    names: tuple[str, ...] = names,
                ) -> int:
                    return read_all(options, topic, end, names)

                yield best(label, end, run)


def spark_rows(
    records: int, folder: Path, rounds: int, work: tuple[str, ...], *, consumer: bool
) -> list[spark_costs.Cost]:
    """Our ways through Spark that do one of `work`, and those of others, over one topic."""
    started = brokers.start_pentalog(folder)
    with brokers.stopping(started), cpu_clock.running([started.process.pid]) as clock:
        print(f"CPU time of Spark by {clock.name}")
        topic = spark_costs.fill(started.address, started.data, records)
        jars = [] if consumer else spark_costs.connector_jars()
        spark = spark_costs.session(jars)
        bench = spark_costs.Bench(spark, topic, folder / "lakes")
        others = spark_costs.connector if jars else spark_costs.consumer
        every = (*spark_costs.ours(bench), *others(bench))
        ways = [one for one in every if one.work.startswith(work)]
        try:
            return list(spark_costs.measured(ways, topic.records, rounds, clock))
        finally:
            spark.stop()


def print_arrow(rows: list[Row]) -> None:
    table = Table(title=f"{VALUE_BYTES} B values, {BATCH_RECORDS} records a batch, one core")
    for heading in ("way", "million records/s", "CPU s per million"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        per_million = 1e6 / row.records_per_s
        table.add_row(row.name, f"{row.records_per_s / 1e6:.1f}", f"{per_million:.3f}")
    Console().print(table)


def print_spark(costs: list[spark_costs.Cost]) -> None:
    """One line a way; the ratios are to the CPU of other programs that do the same."""
    table = Table(title=f"Spark, {costs[0].records:,} JSON records of about 100 B, two cores")
    headings = ("way", "records/s", "CPU s per million", "of the other's CPU", "of its batch's")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "way" else "right")
    rest = sorted((one for one in costs if not one.ours), key=lambda one: -one.cpu_s)
    others = {one.work: one for one in rest}
    for one in costs:
        beside = [others.get(work) for work in (one.work, f"{one.work} in a batch") if one.ours]
        table.add_row(
            one.name,
            f"{one.records / one.wall_s:,.0f}",
            f"{one.per_million:.2f}",
            *(f"{one.per_million / other.per_million:.2f}" if other else "" for other in beside),
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--rounds", type=int, default=2, help="of Spark, the cheapest counts")
    parser.add_argument("--work", choices=WORK, help="only this, and only through Spark")
    parser.add_argument("--quick", action="store_true", help="a tenth of it; not for quoting")
    parser.add_argument(
        "--consumer",
        action="store_true",
        help="compare with confluent-kafka in foreachBatch, as where Spark's connector is missing",
    )
    given = parser.parse_args()
    records = given.records // (10 if given.quick else 1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        if not given.work:
            started = brokers.start_pentalog(Path(folder) / "arrow")
            with brokers.stopping(started):
                made = source_rows(started.address, started.data, records)
                rows = [*kernel_rows(records), *made]
            print_arrow(rows)
        costs = spark_rows(
            records * 2 // 3,
            Path(folder) / "spark",
            1 if given.quick else given.rounds,
            (given.work,) if given.work else WORK,
            consumer=given.consumer,
        )
    print_spark(costs)
    described = {
        "machine": machine.described(),
        "rows": [row._asdict() for row in rows],
        "spark": [one._asdict() for one in costs],
    }
    print(json.dumps(described))
    print(f"again: {Path(sys.executable)} benchmarks/tables.py {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    main()
