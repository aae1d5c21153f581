"""Every command of the Cursus door in its largest legal and its first illegal form.

No turn of the loop may be long while the largest is served; the first that is too large is refused
in Cursus' own words, and the connection answers afterwards.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from tests.hostile.cursus_wire import ask, read_frame
from tests.hostile.longest_turn import UNSYNCED, TimedBroker, Turn
from tests.support.cursus_world import Message, batch, frame

from pentalog.model import compression
from pentalog.protocols.cursus.verbs import VERBS

PARTITIONS = 600
TOPICS = 300
MEMBERS = 1_500
MIB = 1 << 20
PAYLOAD = b"x" * (16 * MIB - 4096)
WORDS = b" topic=t" * 101


@dataclass(frozen=True, slots=True)
class Row:
    """What is asked of one command, and how its illegal form is refused."""

    legal: Callable[[Walk], bytes]
    illegal: Callable[[Walk], bytes]
    refusal: bytes


class Walk:
    """A connection to a broker with a wide topic, many topics, a crowded group, and a member.

    The member's group, and what the walk writes in transactions, have the walk's number in them.
    """

    numbers = count()
    leavers = count(7)
    """Members of the crowd that have not left it."""

    def __init__(self, broker: TimedBroker) -> None:
        self.broker = broker
        self.client: socket.socket = broker.connect("cursus")
        self.transactions = 0
        self.number = next(self.numbers)

    def furnish(self) -> None:
        """Make what all walks over this broker name."""
        self.ask(f"CREATE topic=wide partitions={PARTITIONS}")
        self.ask("CREATE topic=es partitions=1 event_sourcing=true")
        for number in range(TOPICS):
            self.ask(f"CREATE topic=many-{number} partitions=1")
        for number in range(MEMBERS):
            self.ask(f"JOIN_GROUP topic=wide group=crowd member=m{number}")

    def join(self) -> None:
        joined = self.ask(f"JOIN_GROUP topic=wide group=solo-{self.number} member=me")
        found = re.match(r"OK generation=(\d+) member=(\S+)", joined)
        assert found is not None, joined
        self.member = f"topic=wide group=solo-{self.number} member={found[2]} generation={found[1]}"

    def ask(self, command: str) -> str:
        answer = ask(self.client, command).decode()
        assert answer.startswith("OK"), f"{command[:80]}: {answer[:200]}"
        return answer

    def offsets(self, count: int) -> str:
        return ",".join(f"P{index}:0" for index in range(count))

    def identify(self) -> str:
        """Make a transactional id; returns what its commands say."""
        self.transactions += 1
        name = f"transactional_id=txn-{self.number}-{self.transactions}"
        made = self.ask(f"INIT_PRODUCER_ID {name}")
        found = re.search(r"producerId=(\S+) epoch=(\d+)", made)
        assert found is not None, made
        return f"{name} producerId={found[1]} epoch={found[2]}"

    def begin(self) -> str:
        """Begin a transaction of a new name; returns what its commands say."""
        name = self.identify()
        self.ask(f"BEGIN_TXN {name}")
        return name


def text(form: str) -> Callable[[Walk], bytes]:
    """A command that is the same for everybody, with the member of the group in it."""
    return lambda walk: form.replace("{member}", walk.member).encode()


def with_words(verb: str) -> Callable[[Walk], bytes]:
    return lambda walk: verb.encode() + WORDS


def with_message(form: str, size: int) -> Callable[[Walk], bytes]:
    return lambda walk: form.encode() + b" message=" + b"x" * size


def in_transaction(verb: str, rest: Callable[[Walk], bytes]) -> Callable[[Walk], bytes]:
    return lambda walk: f"{verb} {walk.begin()} ".encode() + rest(walk)


def plain(verb: str, legal: str = "") -> Row:
    """A command without anything that may be large but its words."""
    return Row(text(legal or verb), with_words(verb), b"malformed_input")


LONG = "g" * 1_001
TOO_MANY = ",".join(["P0:0"] * 10_001)
ROWS = {
    "CREATE": Row(
        text(f"CREATE topic=wide partitions={PARTITIONS} retention_hours=5"),
        text("CREATE topic=wide partitions=10001"),
        b"invalid_partitions",
    ),
    "DELETE": Row(
        lambda walk: (walk.ask("CREATE topic=gone partitions=4"), b"DELETE topic=gone")[1],
        text("DELETE topic=" + "t" * 250),
        b"topic_not_found",
    ),
    "LIST": Row(text("LIST"), text("LIST a"), b"invalid_list_syntax"),
    "DESCRIBE": plain("DESCRIBE", "DESCRIBE topic=wide"),
    "METADATA": plain("METADATA", "METADATA topic=wide"),
    "LIST_OFFSETS": Row(
        text("LIST_OFFSETS topic=wide"),
        text(f"LIST_OFFSETS topic=wide partition={PARTITIONS}"),
        b"partition_not_found",
    ),
    "FIND_COORDINATOR": plain("FIND_COORDINATOR", "FIND_COORDINATOR group=" + "g" * (MIB - 100)),
    "PUBLISH": Row(
        with_message("PUBLISH topic=wide partition=0 producerId=p", len(PAYLOAD)),
        with_message("PUBLISH topic=wide partition=0 producerId=p", 16 * MIB),
        b"invalid_payload",
    ),
    "CONSUME": Row(
        text("CONSUME topic=many-0 partition=0 offset=0 member=m"),
        text("CONSUME topic=*" + "a*" * 9 + " partition=0 offset=0 member=m"),
        b"command_failed",
    ),
    "STREAM": plain("STREAM", ""),
    "SUBSCRIBE": Row(
        text("SUBSCRIBE topic=wide group=" + "g" * 1_000),
        text("SUBSCRIBE topic=wide group=" + LONG),
        b"invalid_group",
    ),
    "REGISTER_GROUP": Row(
        text("REGISTER_GROUP topic=wide group=" + "h" * 1_000),
        text("REGISTER_GROUP topic=wide group=" + LONG),
        b"invalid_group",
    ),
    "JOIN_GROUP": Row(
        text("JOIN_GROUP topic=wide group=crowd member=" + "m" * 1_000),
        text("JOIN_GROUP topic=wide group=crowd member=" + LONG),
        b"member_not_found",
    ),
    "SYNC_GROUP": plain("SYNC_GROUP", "SYNC_GROUP {member}"),
    "HEARTBEAT": plain("HEARTBEAT", "HEARTBEAT {member}"),
    "LEAVE_GROUP": Row(
        lambda walk: b"LEAVE_GROUP topic=wide group=crowd member=m%d" % next(walk.leavers),
        text("LEAVE_GROUP topic=wide group=crowd member=" + LONG),
        b"member_not_found",
    ),
    "GROUP_STATUS": plain("GROUP_STATUS", "GROUP_STATUS group=crowd"),
    "LIST_GROUPS": plain("LIST_GROUPS"),
    "FETCH_OFFSET": Row(
        text("FETCH_OFFSET topic=wide partition=0 group=crowd"),
        text(f"FETCH_OFFSET topic=wide partition={PARTITIONS} group=crowd"),
        b"partition_not_found",
    ),
    "COMMIT": Row(
        text("COMMIT topic=wide group=other partition=1 offset=0"),
        text(f"COMMIT topic=wide group=other partition={PARTITIONS} offset=0"),
        b"partition_not_found",
    ),
    "COMMIT_OFFSET": Row(
        text("COMMIT_OFFSET {member} partition=0 offset=0"),
        text(f"COMMIT_OFFSET {{member}} partition={PARTITIONS} offset=0"),
        b"partition_not_found",
    ),
    "BATCH_COMMIT": Row(
        lambda walk: f"BATCH_COMMIT {walk.member} {walk.offsets(PARTITIONS)}".encode(),
        lambda walk: f"BATCH_COMMIT {walk.member} {TOO_MANY}".encode(),
        b"invalid_batch_commit_entry",
    ),
    "INIT_PRODUCER_ID": plain("INIT_PRODUCER_ID", "INIT_PRODUCER_ID transactional_id=t"),
    "BEGIN_TXN": Row(
        lambda walk: f"BEGIN_TXN {walk.identify()}".encode(),
        with_words("BEGIN_TXN"),
        b"malformed_input",
    ),
    "TXN_PUBLISH": Row(
        in_transaction(
            "TXN_PUBLISH",
            with_message("topic=wide partition=0 seqNum=1", len(PAYLOAD)),
        ),
        in_transaction(
            "TXN_PUBLISH",
            with_message("topic=wide partition=0 seqNum=1", 16 * MIB),
        ),
        b"invalid_payload",
    ),
    "SEND_OFFSETS_TO_TXN": Row(
        in_transaction(
            "SEND_OFFSETS_TO_TXN",
            lambda walk: f"{walk.member} {walk.offsets(PARTITIONS)}".encode(),
        ),
        in_transaction(
            "SEND_OFFSETS_TO_TXN",
            lambda walk: f"{walk.member} {TOO_MANY}".encode(),
        ),
        b"invalid_batch_commit_entry",
    ),
    "END_TXN": Row(
        in_transaction("END_TXN", lambda walk: b"result=commit"),
        in_transaction("END_TXN", lambda walk: b"result=perhaps"),
        b"invalid_transaction_result",
    ),
    "TXN_STATUS": plain("TXN_STATUS", "TXN_STATUS transactional_id=t"),
    "APPEND_STREAM": Row(
        lambda walk: (
            b"APPEND_STREAM topic=es key=a version=%d message=" % (walk_version(walk) + 1) + PAYLOAD
        ),
        with_message("APPEND_STREAM topic=es key=a version=9", 16 * MIB),
        b"invalid_payload",
    ),
    "STREAM_VERSION": Row(
        text("STREAM_VERSION topic=es key=" + "k" * 65_535),
        text("STREAM_VERSION topic=es key=" + "k" * 65_536),
        b"invalid_payload",
    ),
    "READ_STREAM": Row(
        lambda walk: b"READ_STREAM topic=es key=a from_version=%d" % walk_version(walk),
        text("READ_STREAM topic=es key=" + "k" * 65_536),
        b"invalid_payload",
    ),
    "SAVE_SNAPSHOT": Row(
        with_message("SAVE_SNAPSHOT topic=es key=s version=0", MIB),
        with_message("SAVE_SNAPSHOT topic=es key=s version=0", MIB + 1),
        b"invalid_payload",
    ),
    "READ_SNAPSHOT": Row(
        text("READ_SNAPSHOT topic=es key=s"),
        text("READ_SNAPSHOT topic=es key=" + "k" * 65_536),
        b"invalid_payload",
    ),
    "PROTOCOL_INFO": plain("PROTOCOL_INFO"),
    "NEGOTIATE": Row(
        text("NEGOTIATE version=1 features=" + ",".join(f"f{n}" for n in range(64))),
        text("NEGOTIATE version=1 features=" + ",".join(f"f{n}" for n in range(65))),
        b"invalid_protocol_features",
    ),
    "AUTH": Row(
        text("HELP"),
        text("AUTH principal=" + "u" * 1_001 + " token=x"),
        b"authentication_failed",
    ),
    "HELP": plain("HELP"),
    "EXIT": plain("EXIT", "HELP"),
}
REFUSED = {verb for verb, serve in VERBS.items() if serve.__name__ in ("clusterless", "internal")}
"""Commands that are refused in every form."""


def walk_version(walk: Walk) -> int:
    """The version of the aggregate that the walk appends to."""
    return int(walk.ask("STREAM_VERSION topic=es key=a").partition("=")[2])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedBroker]:
    data = tmp_path_factory.mktemp("walk") / "data"
    with TimedBroker(data, "cursus", arguments=UNSYNCED) as broker:
        walk = Walk(broker)
        with walk.client:
            walk.furnish()
        yield broker


@pytest.fixture
def walk(broker: TimedBroker) -> Iterator[Walk]:
    walk = Walk(broker)
    with walk.client:
        walk.join()
        yield walk


def test_every_command_has_a_row() -> None:
    assert set(VERBS) == set(ROWS) | REFUSED


def test_the_largest_legal_form_takes_no_long_turn(walk: Walk) -> None:
    # In one order: some commands end what others need.
    long = {}
    for verb in sorted(ROWS):
        turn = measure_legal_form(walk, verb)
        print(verb, turn)
        if not turn.short:
            long[verb] = str(turn)
    assert long == {}


def measure_legal_form(walk: Walk, verb: str) -> Turn:
    def act() -> None:
        if verb == "STREAM":
            with walk.broker.connect("cursus") as reader:
                reader.sendall(frame(b"STREAM topic=wide partition=0 group=s offset=0"))
                pushed = b""
                while not pushed:  # an empty frame says that the stream is alive
                    pushed = read_frame(reader)
                assert pushed[:2] == b"\xba\x7c"
            return
        answer = ask(walk.client, ROWS[verb].legal(walk))
        assert not answer.startswith(b"ERROR"), answer[:200]
        if verb == "READ_STREAM":
            read_frame(walk.client)

    if verb in ("STREAM", "READ_STREAM"):
        # Their largest answers: one record that fills a frame.
        needed = "PUBLISH" if verb == "STREAM" else "APPEND_STREAM"
        assert not ask(walk.client, ROWS[needed].legal(walk)).startswith(b"ERROR")
    return walk.broker.measure(act)


def test_the_first_illegal_form_is_refused(walk: Walk) -> None:
    for verb in sorted(set(ROWS) | REFUSED):
        check_illegal_form(walk, verb)


def check_illegal_form(walk: Walk, verb: str) -> None:
    row = ROWS.get(verb)
    body = row.illegal(walk) if row is not None else verb.encode()
    refusals = (row.refusal,) if row is not None else (b"distribution", b"internal_command")

    def act() -> None:
        answer = ask(walk.client, body)
        assert answer.startswith((b"ERROR: ", b'{"error"')), answer[:200]
        assert any(refusal in answer[:60] for refusal in refusals), answer[:200]

    turn = walk.broker.measure(act)
    assert turn.short, f"{verb}: {turn}"
    assert ask(walk.client, "HELP").startswith(b"OK")


def many(count: int) -> bytes:
    # Not all alike: what holds a thousand times its size is refused.
    return batch([Message(b"%d " % n * 80) for n in range(count)], topic="many-1")


@pytest.mark.parametrize("codec", [compression.NONE, compression.GZIP, compression.ZSTD])
def test_the_largest_batches_take_no_long_turn(walk: Walk, codec: int) -> None:
    body = compression.compress(codec, many(100_000))

    def act() -> None:
        answer = ask(walk.client, body)
        assert answer.startswith(b'{"status":"OK"'), answer[:200]

    turn = walk.broker.measure(act)
    print(codec, turn)
    assert turn.short, f"a batch of {len(body)} bytes: {turn}"


@pytest.mark.parametrize("command", [b"", b"HELP", b"PUBLISH topic=wide producerId=p message="])
def test_blanks_cost_little(walk: Walk, command: bytes) -> None:
    def act() -> None:
        for body in (command + b" " * (60 * MIB), b" " * (60 * MIB) + command):
            answer = ask(walk.client, body)
            assert answer.startswith(b"ERROR: malformed_input"), answer[:200]

    turn = walk.broker.measure(act)
    print(turn)
    assert turn.short, turn


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (many(1)[:31] + struct.pack(">i", 100_001) + many(1)[35:], b"batch_decode_failed"),
        (compression.compress(compression.ZSTD, bytes(65 * MIB)), b"batch_decode_failed"),
        (compression.compress(compression.GZIP, bytes(65 * MIB)), b"batch_decode_failed"),
        (compression.compress(compression.GZIP, many(1)[:-1]), b"batch_decode_failed"),
    ],
    ids=["messages", "zstd", "gzip", "cut"],
)
def test_the_first_illegal_batches_are_refused(walk: Walk, body: bytes, refusal: bytes) -> None:
    def act() -> None:
        answer = ask(walk.client, body)
        assert answer.startswith(b'{"status":"ERROR"'), answer[:200]
        assert refusal in answer, answer[:400]

    turn = walk.broker.measure(act)
    assert turn.short, f"{refusal.decode()}: {turn}"


def test_the_first_frame_that_is_too_long_ends_the_connection(walk: Walk) -> None:
    with walk.broker.connect("cursus") as client:
        client.sendall(struct.pack(">I", (64 << 20) + 1))
        assert read_frame(client) == b"ERROR: message_too_large size=67108865 max=67108864"
        assert client.recv(1) == b""
