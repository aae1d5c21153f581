"""Groups in use, live connections, load, the doctor and torture, as an operator types them."""

from __future__ import annotations

import json
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import pentalog
from pentalog.cli import backups, bench_load, checkup, torment
from pentalog.cli.bench_doors import DOORS
from pentalog.cli.client import Client
from pentalog.cli.output import Refused
from pentalog.config import load

Run = Callable[..., Any]
SECRET = "s3cr3t-of-nobody"


@pytest.fixture(params=["classic", "consumer"])
def member(
    request: pytest.FixtureRequest, doors: pentalog.Broker, run: Run, topic: str
) -> Iterator[str]:
    """A group with one live member; gives its name."""
    run("topic", "create", topic, "--partitions", "2")
    run("produce", topic, "--partition", "1", stdin=b"1\n2\n3\n")
    consumer = Consumer(
        {
            "bootstrap.servers": doors.address("kafka"),
            "group.id": f"{topic}-group",
            "group.protocol": request.param,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = None
    while message is None:
        message = consumer.poll(1)
    assert not message.error()
    consumer.commit(message, asynchronous=False)
    yield f"{topic}-group"
    consumer.close()


def test_a_group_with_members_is_shown_and_not_moved(run: Run, topic: str, member: str) -> None:
    found = json.loads(run("group", "describe", member, "--json").stdout)
    assert found["state"] == "Stable"
    assert {"group": member, "state": "Stable", "kind": found["kind"]} in json.loads(
        run("group", "list", "--json").stdout
    )
    assert [one["client"] for one in found["members"]] == ["reader"]
    assert found["lag"] == 2
    by_partition = {one["partition"]: one for one in found["partitions"]}
    assert by_partition[1]["offset"] == 1
    assert by_partition[0]["offset"] is None
    assert {one["client"] for one in found["partitions"]} == {"reader"}
    for arguments in (("seek", member, "--to", "earliest"), ("delete", member)):
        said = run("group", *arguments, code=1).said
        assert "1 live members" in said
        assert "stop them" in said
    offsets = json.loads(run("group", "describe", member, "--json").stdout)["partitions"]
    assert offsets == found["partitions"]


def test_frames_of_a_live_connection(run: Run, doors: pentalog.Broker, topic: str) -> None:
    run("topic", "create", topic)
    with Client(doors.address("kafka")) as client:
        client.topic(topic)
        listed = json.loads(run("inspect", "--door", "kafka", "--json").stdout)
        number = max(one["id"] for one in listed)
        assert str(number) in {line.split("\t")[0] for line in run("inspect").lines}
        stop = threading.Event()

        def talk() -> None:
            while not stop.wait(0.02):
                client.topics([topic])

        talking = threading.Thread(target=talk)
        talking.start()
        try:
            shown = run("inspect", str(number), "--hex", "--count", "2").lines
            lines = run("inspect", str(number), "--json", "--count", "1").lines
        finally:
            stop.set()
            talking.join(60)
    assert shown[0].startswith(f"kafka connection {number} from 127.0.0.1:")
    assert any(" -> Metadata " in line and f"topic={topic}" in line for line in shown)
    assert any(line.startswith("    00000000  00 03 ") for line in shown)
    assert json.loads(lines[1])["name"] == "Metadata"
    assert "no connection" in run("inspect", "999999", code=1).said


@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_load(run: Run, doors: pentalog.Broker, door: str) -> None:
    name = "fluvio-spu" if door == "fluvio" else door
    where = ("--server", doors.address(name), "--controller", doors.address("fluvio-sc"))
    size = ("--records", "3000", "--batch", "300", "--connections", "2", "--size", "50")
    done = run("bench", door, *where, *size, "--json")
    written, taken = json.loads(done.stdout)
    assert (written["direction"], taken["direction"]) == ("produce", "consume")
    assert written["records"] == 3000
    assert taken["records"] >= 3000
    for one in (written, taken):
        assert 0 < one["p50_ms"] <= one["p99_ms"]
        assert one["records_per_second"] > 0
    left = {line.split("\t")[0] for line in run("topic", "list").lines}
    assert not any(name.startswith(f"bench-{door}-") for name in left)


def test_load_on_a_topic_that_stays(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    for direction in ("produce", "consume"):
        arguments = ("--topic", topic, f"--{direction}", "--records", "500", "--json")
        (measured,) = json.loads(run("bench", "kafka", *arguments).stdout)
        assert (measured["direction"], measured["records"]) == (direction, 500)
    assert f"{topic}\t1" in run("topic", "list").lines


def test_the_broker_of_another_process_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert bench_load.broker_pid(address) is None  # it is ourselves
    assert bench_load.broker_pid("127.0.0.1:1") is None


def finding(found: list[checkup.Finding], name: str) -> checkup.Finding:
    return next(one for one in found if one.name == name)


def test_a_fit_machine(tmp_path: Path) -> None:
    flags = {"data": tmp_path / "data", "listen": ["kafka=127.0.0.1:0"], "connections_max": 10}
    found = list(checkup.findings(load(flags=flags).config))
    names = [one.name for one in found]
    assert names[:3] == ["python", "kernels", "directory"]
    assert {"space", "fsync", "port kafka", "open files", "java", "pyspark", "jars"} <= set(names)
    assert finding(found, "directory").state == checkup.OK
    assert finding(found, "open files").state == checkup.OK
    assert not (tmp_path / "data").exists()


def test_a_running_broker_is_recognised(doors: pentalog.Broker) -> None:
    listen = [f"kafka={doors.address('kafka')}"]
    found = list(checkup.findings(load(flags={"data": doors.data, "listen": listen}).config))
    assert finding(found, "lock").text == "a broker is running on it"
    assert finding(found, "port kafka") == checkup.Finding(
        "port kafka", checkup.OK, f"{doors.address('kafka')} answers"
    )


def test_what_is_wrong_has_an_advice(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("--data", str(tmp_path / "file"), "--listen", f"kafka={port}")
        done = run("doctor", *arguments, "--connections-max", "100000000", "--json", code=1)
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert found["directory"]["state"] == "fail"
    assert found["port kafka"]["state"] == "fail"
    assert found["open files"]["state"] in ("ok", "warn")
    for one in found.values():
        assert bool(one["advice"]) == (one["state"] != "ok"), one


def test_the_last_stop_and_the_format_are_told(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def told(name: str) -> checkup.Finding:
        config = load(flags={"data": data, "listen": ["kafka=127.0.0.1:0"]}).config
        return finding(list(checkup.findings(config)), name)

    with pentalog.Broker(data):
        pass
    assert told("lock").text == "free; the last stop was clean"
    (data / "pentalog.clean").unlink()
    assert told("lock").state == checkup.WARN
    format_file = data / "pentalog.format"
    format_file.write_text("1\n")
    assert told("directory").state == checkup.OK, "the next start makes it the present one"
    format_file.write_text("99\n")
    assert told("directory").state == checkup.FAIL
    format_file.unlink()
    format_file.mkdir()
    assert told("directory").state == checkup.FAIL
    assert "pentalog.format" in told("directory").text
    with pytest.raises(Refused, match=r"pentalog\.format"):
        backups.take(data, tmp_path / "backup")


def test_a_bundle_has_no_secrets_and_no_records(
    run: Run, doors: pentalog.Broker, topic: str, tmp_path: Path, settings: dict[str, str]
) -> None:
    run("topic", "create", topic)
    run("produce", topic, "--key", SECRET, stdin=f"{SECRET}\n".encode())
    log = tmp_path / "broker.log"
    log.write_text(f"12:00 INFO ready\n12:01 INFO password={SECRET}\n")
    settings["PENTALOG_BLIPMQ_API_KEYS"] = SECRET
    path = tmp_path / "support.zip"
    arguments = ("--data", str(doors.data), "--listen", f"kafka={doors.address('kafka')}")
    done = run("doctor", *arguments, "--bundle", str(path), "--log", str(log))
    assert str(path) in done.said
    with zipfile.ZipFile(path) as bundle:
        parts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert set(parts) == {
        "doctor.json", "config.json", "versions.json", "segments.json", "metrics.txt",
        "rates.json", "broker.log",
    }  # fmt: skip
    assert not [name for name, text in parts.items() if SECRET in text]
    assert "pentalog_appended_records_total" in parts["metrics.txt"]
    assert json.loads(parts["config.json"])["blipmq_api_keys"]["value"] == "not shown"
    assert any(one["file"].startswith(f"{topic}-0/") for one in json.loads(parts["segments.json"]))
    assert "INFO ready" in parts["broker.log"]


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_torture_finds_nothing_lost(run: Run, tmp_path: Path) -> None:
    done = run("torture", str(tmp_path), "--rounds", "3", "--seed", "7", "--json")
    found = json.loads(done.stdout)
    assert (found["rounds"], found["kills"], found["tears"], found["flips"]) == (3, 3, 1, 1)
    assert found["acknowledged"] > 0
    assert (found["lost"], found["wrong"], found["problems"]) == (0, 0, [])
    assert found["flips_detected"] + found["flips_harmless"] == 1
    assert list(tmp_path.glob("pentalog-torture-*")) == []


def test_torture_notices_what_is_lost_or_wrong(
    doors: pentalog.Broker, run: Run, tmp_path: Path
) -> None:
    """A report that could not say no would be worth nothing."""
    run("topic", "create", "torture", "--partitions", "3")
    values = [torment.value_of(0, 0), b"not ours", torment.value_of(0, 2)]
    run("produce", "torture", "--partition", "0", stdin=b"\n".join(values) + b"\n")
    tried = torment.Torment(tmp_path, seed=1)
    tried._told = {(0, 0): 0, (0, 1): 1, (0, 2): 5, (0, 9): 9}
    assert tried._look(doors.address("kafka"), tried._told) == {(0, 9)}
    assert tried.report.lost == 1
    assert tried.report.wrong == 3
    assert not tried.report.ok
