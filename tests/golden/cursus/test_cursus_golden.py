"""Conversations byte for byte: those captured from released clients, and the document's.

A change of these bytes is a change of what clients see.  To accept one:
`python -m tests.golden.cursus.test_cursus_golden`, and look at the difference.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.cursus_world import Client, CursusBroker

GOLDEN = Path(__file__).with_name("conversations.txt")

PRODUCED = (
    "ba7c0003707974 00000001 0131 00 0000000000000001 0000000000000002 00000002"
    " 0000000000000000 0000000000000001 000f 70792d3766333736613166373064 30 0000 000000006af9fd73"
    " 00000005 6d73672d31 0000 00000000 0000000000000000 0000"
    " 0000000000000000 0000000000000002 000f 70792d3766333736613166373064 30 0000 000000006af9fd73"
    " 00000005 6d73672d33 0000 00000000 0000000000000000 0000"
)
TWO = (
    "ba7c 0006 6f7264657273 00000000 01 31 00 0000000000000001 0000000000000002 00000002"
    " 0000000000000000 0000000000000001 0002 7031 0002 6b31 0000000000000005 00000005 68656c6c6f"
    " 0000 00000000 0000000000000000 0000"
    " 0000000000000000 0000000000000002 0002 7031 0000 0000000000000005 00000005 776f726c64"
    " 0002 4576 00000002 0000000000000009 0002 7b7d"
)
JAVA = (
    "ba7c0002 6a74 00000000 0131 00 0000000000000001 0000000000000001 00000001"
    " 0000000000000000 0000000000000001 0029"
    " 6a6176612d37613433616661372d303030302d343030302d383030302d303030303030303030303031"
    " 0000 000000006af9fe67 00000002 6869 0000 00000000 0000000000000000 0000"
)
DOCUMENT = (
    "ba7c 0006 6f7264657273 0001 30 0001 31 00 0000000000000001 0000000000000001 00000001"
    " 0000000000000000 0000000000000001 0002 7031 0000 0000000000000005 00000005 68656c6c6f 0000"
    " 00000000 0000000000000000 0000"
)
COMPRESSED = {
    "gzip": "1f8b08000000000000ffda55c3c0965f94925a54ccc0c0c0c068c800058c509a098a910123035381210353"
    "364c312b0867a4e6e4e433e0074c608d0cc8dacaf38b7252d0d501020000ffff9a0a972c95000000",
    "snappy": "95013cba7c00066f726465727300000000013101060101000101050c000000020d042e01001c0100"
    "02703100026b112d24050000000568656c6c6f2e26004a0100000205391101053710776f726c6411121c"
    "0000000000000000",
    "lz4": "04224d186470b95d000000f302ba7c00066f726465727300000000013100010012010700230002040008"
    "020093010002703100026b311400a3050000000568656c6c6f11000f020005440200027035000337005077"
    "6f726c641300c0000000000000000000000000000000007aae4d30",
}
CONVERSATIONS: dict[str, list[str]] = {
    "a producer of PyPI's client": [
        "admin CREATE topic=pyt partitions=2",
        "E METADATA topic=pyt",
        f"hex {PRODUCED}",
    ],
    "a polling consumer of PyPI's client": [
        "E FIND_COORDINATOR group=pg-poll",
        "E JOIN_GROUP topic=pyt group=pg-poll member=pc",
        "E FETCH_OFFSET topic=pyt partition=0 group=pg-poll",
        "E FETCH_OFFSET topic=pyt partition=1 group=pg-poll",
        "E METADATA topic=pyt",
        "E CONSUME topic=pyt partition=1 offset=0 member={member} group=pg-poll generation=1",
        "E CONSUME topic=pyt partition=1 offset=2 member={member} group=pg-poll generation=1",
        "E HEARTBEAT topic=pyt group=pg-poll member={member} generation=1",
        "E BATCH_COMMIT topic=pyt group=pg-poll member={member} generation=1 P0:0,P1:2",
        "E LEAVE_GROUP topic=pyt group=pg-poll member={member}",
    ],
    "the Java client": [
        "admin CREATE topic=jt partitions=2",
        "raw LIST topic=jt",
        "E METADATA topic=jt",
        f"hex {JAVA}",
        "raw FIND_COORDINATOR group=jg",
        "E JOIN_GROUP topic=jt group=jg member=7a43afa7-0000-4000-8000-000000000001",
    ],
    "a rebalance": [
        "E CREATE topic=orders partitions=3",
        "E JOIN_GROUP topic=orders group=g1 member=c1",
        "E JOIN_GROUP topic=orders group=g1 member=c2",
        "E HEARTBEAT topic=orders group=g1 member={member} generation=1",
        "E SYNC_GROUP topic=orders group=g1 member={member} generation=2",
        "E JOIN_GROUP topic=orders group=g1 member={member} generation=2",
        "E COMMIT_OFFSET topic=orders partition=0 group=g1 offset=0 generation=2 member={member}",
        "E COMMIT_OFFSET topic=orders partition=2 group=g1 offset=0 generation=2 member={member}",
        "E LEAVE_GROUP topic=orders group=g1 member={member} generation=2",
    ],
    "batches and their compressions": [
        f"hex {TWO}",
        *(f"hex {body}" for body in COMPRESSED.values()),
        "E CONSUME topic=orders partition=0 offset=0 member=m",
    ],
    "the document": [
        "raw DELETE orders",
        "raw CREATE orders 2",
        f"hex {DOCUMENT}",
        "raw JOIN_GROUP orders g1 c1",
        "raw CONSUME orders 0 0",
        "raw COMMIT orders g1 0 1",
        "raw HEARTBEAT orders g1 c1 {member} 1",
        "raw LEAVE_GROUP orders g1 c1",
    ],
    "the Go SDK's negotiation": [
        "E PROTOCOL_INFO",
        "E NEGOTIATE version=1 features=structured_errors_v1 require_features=true",
        "E DESCRIBE topic=nope",
    ],
    "event sourcing": [
        "E CREATE topic=es partitions=2 event_sourcing=true",
        'E APPEND_STREAM topic=es key=acc-1 version=1 event_type=Opened metadata={"a":1} '
        'message={"amount": 10}',
        "E APPEND_STREAM topic=es key=acc-1 version=2 event_type=Dep message=y=2 message=z",
        "E READ_STREAM topic=es key=acc-1",
        "E APPEND_STREAM topic=es key=acc-1 version=3 message=",
        "E READ_SNAPSHOT topic=es key=acc-1",
    ],
}


def body_of(line: str) -> bytes:
    kind, _, rest = line.partition(" ")
    if kind == "hex":
        return bytes.fromhex(rest)
    return {"E": b"\0\0", "admin": b"\0\5admin", "raw": b""}[kind] + rest.encode()


def spoken(client: Client) -> list[str]:
    """Every conversation with its answers, as lines."""
    lines: list[str] = []
    member = ""
    for title, asked in CONVERSATIONS.items():
        lines.append(f"# {title}")
        for line in asked:
            line = line.replace("{member}", member)
            answers = client.ask(body_of(line))
            lines.append(f"> {line}")
            for answer in answers:
                text = answer.decode("latin-1")
                lines.append(f"< {text}" if text.isprintable() else f"< hex {answer.hex()}")
            joined = answers[0].decode("latin-1").split()
            if "JOIN_GROUP" in line and "member=c2" not in line:
                member = joined[2].removeprefix("member=")
    return lines


def conversations() -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        broker = CursusBroker(Path(directory), seed=7)
        try:
            return spoken(broker.connect())
        finally:
            broker.close()


def test_every_answer_is_as_it_was() -> None:
    assert conversations() == GOLDEN.read_text().splitlines()


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(conversations()) + "\n")
