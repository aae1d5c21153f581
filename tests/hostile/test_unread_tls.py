"""Clients with TLS that do not read: of what is enciphered for them, little is in memory."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from pathlib import Path

import trustme
from tests.hostile.hostile_world import HostileWorld, string
from tests.hostile.test_batches import NOW_MS, create, produced
from tests.server.broker_process import request

from pentalog.model import batch
from pentalog.model.types import Record

CLIENTS = 150
RECORD_BYTES = 1_000_000
RECORDS = 10
CLIENT_KIB = 300
"""With all that a TLS connection needs without an answer; it was 540 KiB with 256 KiB at a time."""


def fetch() -> bytes:
    """Fetch 8 of all that there is."""
    head = struct.pack(">iiiibii", -1, 0, 1, 1 << 30, 0, 0, -1)
    cursor = struct.pack(">iiqqi", 1, 0, 0, -1, 50 << 20)
    return request(1, 8, 1, head + struct.pack(">i", 1) + string("large") + cursor + bytes(4))


def test_files_that_are_not_read_stay_on_the_disk(tmp_path: Path) -> None:
    authority = trustme.CA()
    identity = tmp_path / "identity.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(identity)
    arguments = ("--listen", "kafka+tls=127.0.0.1:0", "--tls-certificate", str(identity))
    with (
        HostileWorld(tmp_path / "data", arguments=arguments) as world,
        contextlib.ExitStack() as stack,
    ):
        with world.connect() as client:
            create(client, "large")
            for _ in range(RECORDS):
                data = batch.build([Record(os.urandom(RECORD_BYTES))], timestamp_ms=NOW_MS)
                assert produced(client, "large", data) == 0
        trust = ssl.create_default_context()
        authority.configure_trust(trust)

        def attack() -> None:
            for _ in range(CLIENTS):
                plain = socket.socket()
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                plain.connect(("127.0.0.1", world.port("kafka+tls")))
                client = stack.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1"))
                client.sendall(fetch())

        cost = world.measure(attack)
        print(cost)
        assert cost.memory_bytes < CLIENTS * CLIENT_KIB << 10, cost
