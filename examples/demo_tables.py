"""The second half of the story: every door in, one table out, proved, and asked a question.

Writes orders through each of the five doors into one topic, runs a pipeline over it with
`pentalog table run`, has `pentalog verify` prove that no offset is missing or doubled, and asks
`pentalog sql`.  Needs Java and `pentalog[spark]`; what is not installed is said and left out.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TOPIC = "sales"
ORDERS = 2_000
COMMAND_TIMEOUT_S = 300
PIPELINE = """
[pipeline.sales]
from = "{server}"
topics = ["sales"]
into = "{lake}"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE, through STRING" }}
"""
QUESTION = "select through, count(*) as orders, sum(amount) as amount from table.sales group by 1"


class WentWrong(Exception):
    """Something is not as this story says."""


def say(text: str) -> None:
    print(text, flush=True)


def kafka(address: str, values: Sequence[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(TOPIC, value)
    if producer.flush(30):
        raise WentWrong("not every record was acknowledged in 30 s")


def fluvio(address: str, values: Sequence[bytes]) -> None:
    from fluvio import Fluvio, FluvioConfig

    config = FluvioConfig.new(address)
    config.disable_tls()
    producer = Fluvio.connect_with_config(config).topic_producer(TOPIC)
    producer.send_all([(b"", value) for value in values])
    producer.flush()


def cursus(address: str, values: Sequence[bytes]) -> None:
    from cursus import Acks, Producer, ProducerConfig

    config = ProducerConfig(topic=TOPIC, brokers=[address], partitions=1, acks=Acks.ALL)
    producer = Producer(config)
    for value in values:
        producer.send(value.decode())
    producer.flush()
    producer.close()


def rustlog(address: str, values: Sequence[bytes]) -> None:
    from pentalog.clients.rustlog import RustLogClient

    with RustLogClient(address) as client:
        client.produce(TOPIC, 0, values)


def blipmq(address: str, values: Sequence[bytes]) -> None:
    from pentalog.clients.blipmq import BlipmqClient

    with BlipmqClient(address) as client:
        client.publish(TOPIC, *values)


DOORS: Mapping[str, tuple[str, str, Callable[[str, Sequence[bytes]], None]]] = {
    "Kafka": ("kafka", "confluent_kafka", kafka),
    "Fluvio": ("fluvio-sc", "fluvio", fluvio),
    "Cursus": ("cursus", "cursus", cursus),
    "RustLog": ("rustlog", "pentalog", rustlog),
    "BlipMQ": ("blipmq", "pentalog", blipmq),
}
"""By name: the listener, the package of its client, and how to write."""


def orders(door: str) -> list[bytes]:
    return [
        json.dumps({"id": number, "amount": number % 8 / 4, "through": door}).encode()
        for number in range(ORDERS)
    ]


def pentalog(*arguments: str) -> str:
    """Run a command as a user types it; what it printed."""
    say(f"   $ pentalog {' '.join(arguments)}")
    done = subprocess.run(
        [Path(sys.executable).with_name("pentalog"), *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise WentWrong(f"it ended with code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def indented(text: str) -> str:
    return "\n".join(f"     {line}" for line in text.splitlines())


def tell(folder: Path, addresses: Mapping[str, str]) -> None:
    say("\n4. Every door in, one table out")
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        say("   left out: it needs Java 17 and `pip install pentalog[spark]`")
        return
    used = []
    for name, (listener, package, write) in DOORS.items():
        if listener in addresses and importlib.util.find_spec(package) is not None:
            write(addresses[listener], orders(name))
            used.append(name)
    kafka(addresses["kafka"], [b"this is no order"])
    say(f"   {ORDERS:,} orders each through {', '.join(used)}; and one record that is no order")
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE.format(server=addresses["kafka"], lake=folder / "lake"))
    started = time.monotonic()
    pentalog("table", "run", str(file), "--once")
    say(f"   the table is there after {time.monotonic() - started:.1f} s")
    report = json.loads(pentalog("verify", str(file), "--json"))
    (account,) = report["partitions"]
    if account["records"] != ORDERS * len(used) + 1 or account["dead_letters"] != 1:
        raise WentWrong(f"the account is {account}")
    say(
        f"   {account['records']:,} records in the log = {account['silver']:,} rows + "
        f"{account['dead_letters']} dead letter; no offset is missing or doubled"
    )
    say(indented(pentalog("sql", "--config", str(file), QUESTION)))
