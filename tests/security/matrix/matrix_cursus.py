"""Cursus' commands, and its frames of records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.security.guarded_world import Wire
from tests.security.matrix.matrix_cells import GROUP, TOPIC, TRANSACTION, Asked
from tests.support.cursus_world import Message, batch

from pentalog.broker import rights
from pentalog.broker.rights import Need
from pentalog.broker.security import Kind, Operation
from pentalog.protocols.cursus.verbs import VERBS

REGISTRY = {*VERBS, "BATCH"}
EVENTS = "m-events"
_DOOMED = "m-doomed"

_READ = (rights.read_topic(TOPIC),)
_DESCRIBE = (rights.describe_topic(TOPIC),)
_CONSUME = (rights.read_topic(TOPIC), rights.read_group(GROUP))
_MEMBER = (rights.read_group(GROUP), rights.read_topic(TOPIC))
_PRESENT = (rights.read_group(GROUP),)
_TRANSACT = (rights.write_transaction(TRANSACTION),)
_AT = f"topic={TOPIC} partition=0"
_IN = f"topic={TOPIC} group={GROUP} member=m1 generation=1"
_TXN = f"transactional_id={TRANSACTION} producerId=p epoch=0"

_COMMANDS: dict[str, tuple[str, tuple[Need, ...]]] = {
    "CREATE": ("CREATE topic=m-made partitions=1", (rights.create_topic("m-made"),)),
    "CREATE: one that is there": (f"CREATE topic={TOPIC} partitions=1", _DESCRIBE),
    "CREATE: more partitions": (
        "CREATE topic=m-growing partitions=3",
        (rights.describe_topic("m-growing"), rights.alter_topic("m-growing")),
    ),
    "CREATE: other settings": (
        f"CREATE topic={TOPIC} retention_hours=9",
        (rights.describe_topic(TOPIC), rights.alter_topic_settings(TOPIC)),
    ),
    "CREATE: another policy": (
        "CREATE topic=m-policy auth_policy=acl read_acl=somebody",
        (rights.describe_topic("m-policy"), Need(Operation.ALTER, Kind.CLUSTER)),
    ),
    "DELETE": (f"DELETE topic={_DOOMED}", (rights.delete_topic(_DOOMED),)),
    "LIST": ("LIST", _DESCRIBE),
    "LIST: one": (f"LIST topic={TOPIC}", _DESCRIBE),
    "DESCRIBE": (f"DESCRIBE topic={TOPIC}", _DESCRIBE),
    "METADATA": (f"METADATA topic={TOPIC}", _DESCRIBE),
    "LIST_OFFSETS": (f"LIST_OFFSETS topic={TOPIC}", _DESCRIBE),
    "FIND_COORDINATOR": (f"FIND_COORDINATOR group={GROUP}", (rights.describe_group(GROUP),)),
    "PUBLISH": (
        f"PUBLISH topic={TOPIC} acks=1 producerId=p message=x",
        (rights.write_topic(TOPIC),),
    ),
    "CONSUME": (f"CONSUME {_AT} offset=0 member=m group={GROUP}", _CONSUME),
    "CONSUME: as documented": (f"CONSUME {TOPIC} 0 0", _READ),
    "CONSUME: by a pattern": (
        f"CONSUME topic={TOPIC[:-2]}* partition=0 offset=0 member=m group={GROUP}",
        _CONSUME,
    ),
    "SUBSCRIBE": (f"SUBSCRIBE {TOPIC} {GROUP}", _MEMBER),
    "REGISTER_GROUP": (f"REGISTER_GROUP topic={TOPIC} group={GROUP}", _MEMBER),
    "JOIN_GROUP": (f"JOIN_GROUP topic={TOPIC} group={GROUP} member=m1", _MEMBER),
    "SYNC_GROUP": (f"SYNC_GROUP {_IN}", _MEMBER),
    "HEARTBEAT": (f"HEARTBEAT {_IN}", _PRESENT),
    "LEAVE_GROUP": (f"LEAVE_GROUP topic={TOPIC} group={GROUP} member=m1", _PRESENT),
    "GROUP_STATUS": (f"GROUP_STATUS group={GROUP}", (rights.describe_group(GROUP),)),
    "LIST_GROUPS": ("LIST_GROUPS", (rights.describe_group(GROUP),)),
    "FETCH_OFFSET": (
        f"FETCH_OFFSET {_AT} group={GROUP}",
        (rights.describe_group(GROUP), rights.describe_topic(TOPIC)),
    ),
    "COMMIT": (f"COMMIT {TOPIC} {GROUP} 0 0", _MEMBER),
    "COMMIT_OFFSET": (f"COMMIT_OFFSET {_IN} partition=0 offset=0", _MEMBER),
    "BATCH_COMMIT": (f"BATCH_COMMIT {_IN} P0:0", _MEMBER),
    "INIT_PRODUCER_ID": (f"INIT_PRODUCER_ID transactional_id={TRANSACTION}", _TRANSACT),
    "BEGIN_TXN": (f"BEGIN_TXN {_TXN}", _TRANSACT),
    "TXN_PUBLISH": (
        f"TXN_PUBLISH {_TXN} topic={TOPIC} seqNum=1 message=x",
        (*_TRANSACT, rights.write_topic(TOPIC)),
    ),
    "SEND_OFFSETS_TO_TXN": (f"SEND_OFFSETS_TO_TXN {_TXN} {_IN} P0:0", (*_TRANSACT, *_MEMBER)),
    "END_TXN": (f"END_TXN {_TXN} result=abort", _TRANSACT),
    "TXN_STATUS": (
        f"TXN_STATUS transactional_id={TRANSACTION}",
        (Need(Operation.DESCRIBE, Kind.TRANSACTION, TRANSACTION),),
    ),
    "APPEND_STREAM": (
        f"APPEND_STREAM topic={EVENTS} key=k version=1 message=x",
        (rights.write_topic(EVENTS),),
    ),
    "STREAM_VERSION": (f"STREAM_VERSION topic={EVENTS} key=k", (rights.read_topic(EVENTS),)),
    "SAVE_SNAPSHOT": (
        f"SAVE_SNAPSHOT topic={EVENTS} key=k version=1 message=x",
        (rights.write_topic(EVENTS),),
    ),
    "READ_SNAPSHOT": (f"READ_SNAPSHOT topic={EVENTS} key=k", (rights.read_topic(EVENTS),)),
    **{
        verb: (verb, ())
        for verb in (
            "PROTOCOL_INFO", "NEGOTIATE", "HELP", "LIST_CLUSTER", "CLUSTER_STATUS",
            "ELECT_LEADER", "RAFT_APPLY", "REPLICATE_MESSAGE", "REPLICATE_SNAPSHOT",
            "LIST_SNAPSHOTS", "FETCH_SNAPSHOT", "CATCHUP_SNAPSHOTS", "INTERNAL_BATCH",
        )
    },
}  # fmt: skip
_REFUSED = b"NOT_AUTHORIZED_FOR_"


def say(wire: Wire, command: str) -> bytes:
    return wire.ask(b"\0\0" + command.encode())


def operations(credentials: str) -> Iterator[Asked]:
    """`credentials` are right ones for AUTH."""
    for name, (command, needs) in _COMMANDS.items():
        gone = "m-made" if name == "CREATE" else ""
        there = {"CREATE: more partitions": "m-growing", "DELETE": _DOOMED}.get(name, "")
        yield Asked(name, needs, _asking(name, command), gone=gone, there=there)
    yield Asked("BATCH", (rights.write_topic(TOPIC),), _batch)
    yield Asked("READ_STREAM", (rights.read_topic(EVENTS),), _read_stream)
    yield Asked("STREAM", _CONSUME, _stream, fresh=True)
    yield Asked("AUTH", (), lambda wire: say(wire, f"AUTH {credentials}").startswith(b"OK"), True)
    yield Asked("EXIT", (), lambda wire: say(wire, "EXIT") == b"OK", fresh=True)


def _asking(name: str, command: str) -> Any:
    hidden = {"LIST": TOPIC, "LIST_GROUPS": GROUP, "CONSUME: by a pattern": None}

    def ask(wire: Wire) -> bool:
        answer = say(wire, command)
        assert b"authentication_required" not in answer
        if name in hidden:
            shown = hidden[name]
            if shown is None:
                # Topics that may not be read do not match.
                return b"no topics match" not in answer and _REFUSED not in answer
            return shown.encode() in answer
        return _REFUSED not in answer

    return ask


def _batch(wire: Wire) -> bool:
    answer = json.loads(wire.ask(batch([Message(b"x", producer=b"p")], topic=TOPIC)))
    refused = "NOT_AUTHORIZED_FOR_TOPIC operation=write" in answer.get("error", "")
    assert refused or answer["status"] == "OK", answer
    return not refused


def _read_stream(wire: Wire) -> bool:
    answer = json.loads(say(wire, f"READ_STREAM topic={EVENTS} key=k"))
    if answer["status"] == "OK":
        wire.receive()
        return True
    assert "NOT_AUTHORIZED_FOR_TOPIC" in answer["error"]
    return False


def _stream(wire: Wire) -> bool:
    answer = say(wire, f"STREAM {_AT} offset=0 member=m group={GROUP}")
    return _REFUSED not in answer
