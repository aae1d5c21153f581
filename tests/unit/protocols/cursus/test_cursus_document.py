"""The document's dialect, byte for byte, and every command it names."""

from __future__ import annotations

import re

import pytest
from tests.support.cursus_world import Client, Message, batch

BATCH = bytes.fromhex(
    "ba7c00066f7264657273000130000131000000000000000001000000000000000100000001"
    "0000000000000000000000000000000100027031000000000000000000050000000568656c6c6f"
    "00000000000000000000000000000000"
)


def test_the_conversation(client: Client) -> None:
    assert client.ask("CREATE orders 2")[0].startswith(b"OK topic=orders partitions=2 ")
    assert client.ask(BATCH) == [
        b'{"status":"OK","last_offset":0,"producer_epoch":5,"producer_id":"p1","seq_start":1,'
        b'"seq_end":1,"leader":"","error":""}'
    ]
    (joined,) = client.ask("JOIN_GROUP orders g1 c1")
    found = re.fullmatch(rb"OK generation=1 member=(c1-\w+) assignments=\[0 1\]", joined)
    assert found
    member = found[1]
    assert client.ask("CONSUME orders 0 0") == [BATCH]
    assert client.ask("COMMIT orders g1 0 1") == [b"OK"]
    beat = b"HEARTBEAT orders g1 c1 " + member + b" 1"
    assert client.ask(beat) == [b"OK member=" + member + b" generation=1"]
    assert client.ask("LEAVE_GROUP orders g1 c1") == [
        b"OK group=g1 member=" + member + b" left=true"
    ]


@pytest.fixture
def topic(client: Client) -> None:
    client.ask("CREATE orders 2")
    client.publish(batch([Message(b"%d" % n) for n in range(20)], acks="-1", document=True))
    client.publish(
        batch([Message(b"%d" % n) for n in range(30)], partition=1, acks="-1", document=True)
    )


@pytest.mark.usefixtures("topic")
def test_every_command(client: Client) -> None:
    assert client.ask("LIST") == [b"OK count=1 topics=orders"]
    assert client.ask("SUBSCRIBE orders g") == [b"OK group=g topic=orders subscribed=true"]
    assert client.text("SUBSCRIBE topic=orders group=g2").endswith("subscribed=true")
    (joined,) = client.ask("join_group orders g c")
    member = joined.split()[2].removeprefix(b"member=").decode()
    assert client.ask(f"SYNC_GROUP orders g {member} 1") == [joined]
    assert client.ask(f"BATCH_COMMIT orders g {member} 1 P0:10,P1:20") == [b"OK batched=2"]
    assert client.ask(f"BATCH_COMMIT orders g {member} 1 0:11,1:21") == [b"OK batched=2"]
    client.ask("JOIN_GROUP orders g d")
    assert client.ask(f"HEARTBEAT orders g c {member} 1") == [
        f"ERROR: REBALANCE_REQUIRED current=2 requested=1 group=g member={member}".encode()
    ]
    assert client.ask(f"SYNC_GROUP orders g {member} 1")[0].startswith(b"ERROR: GEN_MISMATCH")
    assert client.ask("DELETE orders") == [b"OK topic=orders deleted=true"]
    assert client.ask("DELETE orders") == [b"ERROR: topic_not_found topic=orders"]


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("CREATE orders", "invalid_create_syntax"),
        ("CREATE orders x", "invalid_partitions"),
        ("DELETE a b", "invalid_delete_syntax"),
        ("LIST something", "invalid_list_syntax"),
        ("COMMIT orders g 0", "invalid_commit_syntax"),
        ("COMMIT orders g x 1", "invalid_partition command=COMMIT"),
        ("COMMIT orders g 0 x", "invalid_offset command=COMMIT"),
        ("COMMIT orders g 7 1", "partition_not_found partition=7"),
        ("HEARTBEAT orders g c m x", "invalid_generation command=HEARTBEAT"),
        ("STREAM orders 0", "invalid_stream_syntax"),
        ("JOIN_GROUP nope g c", "topic_not_found topic=nope"),
        ("LEAVE_GROUP orders nog c", "group_not_found group=nog"),
    ],
)
def test_refusals_start_with_error(client: Client, command: str, code: str) -> None:
    (answer,) = client.ask(command)
    assert answer.decode().startswith(f"ERROR: {code}")


@pytest.mark.usefixtures("topic")
def test_a_topic_may_have_an_equals_sign(client: Client) -> None:
    assert client.ask("CREATE a=b 1")[0].startswith(b"OK topic=a=b partitions=1")
    assert client.ask("CONSUME a=b 0 0")[0][:7] == b"\xba\x7c\x00\x03a=b"
    assert client.text("LIST") == "OK count=2 topics=a=b,orders"


@pytest.mark.usefixtures("topic")
def test_empty_reads_are_batches_of_nothing(client: Client) -> None:
    (answer,) = client.ask("CONSUME orders 0 20")
    head = bytes.fromhex("ba7c00066f726465727300013000013100")
    assert answer == head + bytes(20)
    (answer,) = client.ask("CONSUME topic=orders partition=0 offset=20 member=m")
    assert answer == bytes.fromhex("ba7c00066f726465727300000000013100") + bytes(20)
