"""`pentalog start` as a process: what it prints, how it stops, how it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_process import BrokerProcess, answer, connect, pentalog, request

API_VERSIONS = 18
METADATA = 3
HTTP = ("--listen", "http=127.0.0.1:0", "--console", "off")


def test_it_says_where_it_listens_and_stops_when_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert re.fullmatch(r"kafka listening on 127\.0\.0\.1:\d+", broker.lines[0])
        assert broker.lines[1].startswith("ready")
        assert len(broker.lines) == 2
        with connect(broker.port) as client:
            client.sendall(request(API_VERSIONS, 0, 7, b""))
            correlation_id, body = answer(client)
            assert correlation_id == 7
            assert body[:2] == b"\0\0"
            assert broker.stop() == 0
            assert client.recv(1) == b""
        assert "Traceback" not in broker.errors


def test_ctrl_c_stops_it_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.signal(signal.SIGINT)
        assert broker.wait() == 0
        assert "Traceback" not in broker.errors


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    patient = ("--shutdown-timeout-ms", "25000", *HTTP)
    with BrokerProcess(tmp_path / "data", *patient) as broker, connect(broker.port) as client:
        client.sendall(request(API_VERSIONS, 0, 1, b""))
        answer(client)
        answer_bytes = _counted(broker)["sent_bytes"]
        # A peer that does not read its answers keeps the broker from stopping, if they are more
        # than the kernel buffers for it.
        client.sendall(request(API_VERSIONS, 0, 2, b"") * 50_000)

        def is_stuck() -> bool:
            counted = _counted(broker)
            return counted["requests"] * answer_bytes - counted["sent_bytes"] > 4 << 20

        _until(is_stuck)
        broker.signal(signal.SIGTERM)
        # Two pending signals of one kind are one: the first must have been handled.
        _until(lambda: not _answers(broker))
        assert broker.is_running
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 128 + signal.SIGTERM


def test_what_was_accepted_is_answered_before_the_end(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *HTTP) as broker, connect(broker.port) as client:
        client.sendall(_metadata("t") + _waiting_fetch("t", 400))
        assert answer(client)[0] == 1
        _until(lambda: _counted(broker)["requests"] == 2)
        broker.signal(signal.SIGTERM)
        assert answer(client)[0] == 2
        assert client.recv(1) == b""
        assert broker.wait() == 0


def test_records_and_topics_survive_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        with connect(broker.port) as client:
            client.sendall(_metadata("kept"))
            answer(client)
        assert broker.stop() == 0
    assert (data / "kept-0").is_dir()
    with BrokerProcess(data) as broker:
        with connect(broker.port) as client:
            client.sendall(request(METADATA, 1, 1, struct.pack(">i", -1)))
            assert b"kept" in answer(client)[1]
        assert broker.stop() == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", listen="[::1]:0") as broker:
        assert broker.lines[0].startswith("kafka listening on [::1]:")
        with connect(broker.port, "::1") as client:
            client.sendall(request(METADATA, 1, 1, struct.pack(">i", 0)))
            assert b"::1" in answer(client)[1]


def test_clients_are_told_the_advertised_address(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--advertise", "kafka=broker.example:1234") as broker,
        connect(broker.port) as client,
    ):
        client.sendall(request(METADATA, 1, 1, struct.pack(">i", 0)))
        _, body = answer(client)
        assert b"broker.example" + struct.pack(">i", 1234) in body


def test_everywhere_means_the_address_the_client_reached(tmp_path: Path) -> None:
    with (
        BrokerProcess(
            tmp_path / "data", "--allow-open-listeners", "true", listen="0.0.0.0:0"
        ) as broker,
        connect(broker.port, "127.0.0.2") as client,
    ):
        client.sendall(request(METADATA, 1, 1, struct.pack(">i", 0)))
        assert b"127.0.0.2" + struct.pack(">i", broker.port) in answer(client)[1]


def test_a_broken_request_harms_nobody_else(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with connect(broker.port) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1) == b""
        with connect(broker.port) as client:
            client.sendall(request(API_VERSIONS, 0, 1, b""))
            assert answer(client)[0] == 1
        assert broker.stop() == 0
        assert "Traceback" not in broker.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "fluvio=127.0.0.1:0"], ["'fluvio'", "this broker has: kafka"]),
        (["--listen", "nonsense=127.0.0.1:0"], ["'nonsense'", "this broker has: kafka"]),
        (["--listen", "kafka"], ["NAME=HOST:PORT"]),
        (
            ["--listen", "kafka=no.such.host.invalid:0", "--allow-open-listeners", "true"],
            ["no.such.host.invalid", "unknown"],
        ),
        (
            ["--listen", "kafka=203.0.113.1:0", "--allow-open-listeners", "true"],
            ["203.0.113.1", "does not have that address"],
        ),
        (["--flush-interval-ms", "soon"], ["flush_interval_ms", "'soon'", "whole number"]),
        (["--config", "/no/such/file.toml"], ["/no/such/file.toml", "No such file"]),
        (["--topic-defaults", "colour=red"], ["colour"]),
        (["--topic-defaults", "retention.ms=red"], ["retention.ms", "red"]),
        (["--log-level", "loud"], ["loud", "debug, info"]),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], said: list[str]
) -> None:
    run = pentalog("start", "--data", str(tmp_path / "data"), *_listen(arguments))
    _assert_refused(run.returncode, run.stderr, said)
    assert run.stdout == ""


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = pentalog(
            "start", "--data", str(tmp_path / "data"), "--listen", f"kafka=127.0.0.1:{port}"
        )
        _assert_refused(run.returncode, run.stderr, [f"127.0.0.1:{port}", "taken"])


def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data"):
        run = pentalog("start", "--data", str(tmp_path / "data"), "--listen", "kafka=127.0.0.1:0")
        _assert_refused(run.returncode, run.stderr, [str(tmp_path / "data"), "another broker"])


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    run = pentalog("start", "--data", str(in_the_way / "data"), "--listen", "kafka=127.0.0.1:0")
    _assert_refused(run.returncode, run.stderr, [str(in_the_way)])


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE topics SET topic_id = x'ff'",
        "UPDATE topics SET partitions = 1 << 60",
        "UPDATE topics SET partitions = 'many'",
        "INSERT INTO transactions VALUES ('t', 1, 1, -1, -1, -1, 1000, 'none', 0, '[]', 0)",
        "INSERT INTO transactions VALUES ('t', 1, 1, -1, -1, -1, 1000, 'commit', 0, '[', 0)",
    ],
)
def test_a_state_file_with_a_damaged_row_is_named(tmp_path: Path, damage: str) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        with connect(broker.port) as client:
            client.sendall(_metadata("kept"))
            answer(client)
        assert broker.stop() == 0
    with contextlib.closing(sqlite3.connect(data / "pentalog.sqlite")) as database:
        database.execute(damage)
        database.commit()
    run = pentalog("start", "--data", str(data), "--listen", "kafka=127.0.0.1:0")
    _assert_refused(run.returncode, run.stderr, ["pentalog.sqlite is damaged", "backup"])


def test_config_shows_values_and_sources(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("node_id = 4\n[topic_defaults]\nretention.ms = 1000\n")
    run = pentalog(
        "config", "--json", "--config", str(file), "--flush-interval-ms", "7",
        environment={"PENTALOG_CONNECTIONS_MAX": "50"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["node_id"] == {"value": 4, "source": str(file)}
    assert shown["topic_defaults"] == {"value": {"retention.ms": "1000"}, "source": str(file)}
    assert shown["connections_max"] == {"value": 50, "source": "PENTALOG_CONNECTIONS_MAX"}
    assert shown["flush_interval_ms"] == {"value": 7, "source": "--flush-interval-ms"}
    assert shown["data"] == {"value": "pentalog-data", "source": "default"}
    lines = pentalog("config", "--config", str(file)).stdout.splitlines()
    assert f"node_id\t4\t{file}" in lines
    assert f"topic_defaults\tretention.ms=1000\t{file}" in lines


def test_config_refuses_what_start_refuses(tmp_path: Path) -> None:
    run = pentalog("config", "--listen", "pigeon=127.0.0.1:0")
    _assert_refused(run.returncode, run.stderr, ["'pigeon'", "this broker has: kafka"])


def test_starting_loads_nothing_it_does_not_need(tmp_path: Path) -> None:
    script = (
        "import sys; from pentalog.cli.main import main; sys.argv = ['pentalog', 'start', "
        f"'--data', {str(tmp_path)!r}, '--listen', 'kafka=127.0.0.1:x']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('rich', 'pentalog.cli.client', 'confluent_kafka', 'pyspark') "
        "if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, env=os.environ
    )
    assert run.stdout.strip() == "[]", run.stderr


def test_output_may_go_nowhere(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.Popen(
        [sys.executable, "-m", "pentalog.cli.main", "start", "--data", str(tmp_path / "data"),
         "--listen", "kafka=127.0.0.1:0"],
        stdout=write_end, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    os.close(write_end)
    assert process.stderr is not None
    for line in process.stderr:
        if "listening" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


def _listen(arguments: list[str]) -> list[str]:
    return arguments if "--listen" in arguments else ["--listen", "kafka=127.0.0.1:0", *arguments]


def _assert_refused(code: int, errors: str, said: list[str]) -> None:
    assert code == 2, errors
    logged = (" INFO ", " WARNING ")
    lines = [line for line in errors.splitlines() if not any(level in line for level in logged)]
    assert len(lines) == 1, errors
    for part in said:
        assert part in lines[0]


def _metadata(topic: str) -> bytes:
    name = topic.encode()
    return request(METADATA, 1, 1, struct.pack(">ih", 1, len(name)) + name)


def _waiting_fetch(topic: str, wait_ms: int) -> bytes:
    """Fetch version 4 of partition 0 from its end."""
    name = topic.encode()
    body = struct.pack(">iiiib", -1, wait_ms, 1, 1 << 20, 0)
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    return request(1, 4, 2, body)


def _counted(broker: BrokerProcess) -> dict[str, int]:
    """What the broker has counted at Kafka's door."""
    with urllib.request.urlopen(f"{_http(broker)}/api/v1/connections", timeout=30) as page:
        (found,) = (one for one in json.load(page)["connections"] if one["door"] == "kafka")
    return dict(found)


def _answers(broker: BrokerProcess) -> bool:
    try:
        with urllib.request.urlopen(f"{_http(broker)}/health", timeout=30):
            return True
    except OSError:
        return False


def _http(broker: BrokerProcess) -> str:
    (line,) = (line for line in broker.lines if line.startswith("http "))
    return f"http://{line.rpartition(' ')[2]}"


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)
