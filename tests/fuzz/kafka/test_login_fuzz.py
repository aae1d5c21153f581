"""Any bytes before a login: answers or a hang-up, and nothing is served to anybody."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "protocols" / "kafka"))

from disk_broker import Connection, DiskBroker

ALLOWED = (17, 18, 36)
MESSAGES = (
    b"\0alice\0secret",
    b"\0alice\0wrong",
    b"n,,n=alice,r=abcdef",
    b"n,,n=token,r=abcdef,tokenauth=true",
    b"c=biws,r=abcdef,p=AAAA",
    b"n,,\x01auth=Bearer a.b.c\x01\x01",
    b"\x01",
    b"",
)
NAMES = (b"PLAIN", b"SCRAM-SHA-256", b"SCRAM-SHA-512", b"OAUTHBEARER", b"GSSAPI", b"other")


def frame(dice: random.Random) -> bytes:
    key = dice.choice((*ALLOWED, *ALLOWED, 0, 3, 19))
    version = dice.choice((0, 0, 1, 1, 2, 3, -1))
    head = struct.pack(">hhih", key, version, 7, -1)
    if key == 17:
        name = dice.choice(NAMES)
        head += struct.pack(">h", len(name)) + name
    elif key == 36:
        message = dice.choice(MESSAGES)
        head += struct.pack(">i", len(message)) + message
    body = bytearray(head)
    if dice.random() < 0.2:
        body[dice.randrange(len(body))] = dice.randrange(256)
    return struct.pack(">i", len(body)) + bytes(body)


@pytest.mark.parametrize("seed", range(2))
def test_any_bytes(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    broker = DiskBroker(tmp_path, seed=seed, authorization=True)
    broker.broker.users.set_password("alice", "secret")
    broker.runtime.run()
    for _ in range(150):
        connection = Connection(broker, "sasl")
        for _ in range(dice.randrange(1, 6)):
            if connection.line.hung_up:
                break
            data = b"".join(frame(dice) for _ in range(dice.randrange(1, 4)))
            if dice.random() < 0.2:
                data = data[: dice.randrange(len(data))]
            connection.feed(data)
            connection.run()
            broker.runtime.advance(15_000)
            while connection.line.held:
                broker.runtime.advance(15_000)
            if not connection.line.hung_up:
                connection.feed(b"")
        connection.session.close()
    assert not broker.topics.all()
    broker.close()
