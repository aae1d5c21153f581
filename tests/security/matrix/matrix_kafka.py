"""Kafka's requests, and every way its clients log in."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from tests.security.guarded_world import Wire
from tests.security.matrix.matrix_cells import GROUP, TOPIC, TRANSACTION, Asked

from pentalog.broker import rights
from pentalog.broker.rights import Need
from pentalog.broker.security import Kind, Operation
from pentalog.clients.kafka import messages
from pentalog.clients.kafka.authentication import authenticate
from pentalog.clients.kafka.messages import ms
from pentalog.model import batch
from pentalog.model.types import Record
from pentalog.protocols.kafka.api import APIS

REGISTRY = {f"{key} {api.name}" for key, api in APIS.items()}
OTHER = "m-other"
"""Somebody whose tokens are asked for."""
_DENIED = frozenset({29, 30, 31, 53, 65})
"""The codes that mean a lack of rights."""
_NOT_BY_TOKEN = 64
_MADE, _DOOMED, _GROWING = "m-made", "m-doomed", "m-growing"


class Client:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._numbers = count(1)

    def ask(self, key: int, version: int, fields: Mapping[str, Any]) -> Any:
        return messages.answer(key, version, self.ask_raw(key, version, fields))

    def ask_raw(self, key: int, version: int, fields: Mapping[str, Any]) -> bytes:
        number = next(self._numbers)
        self._wire.send(messages.request(key, version, number, b"matrix", fields))
        return self._wire.receive()

    def log_in(self, mechanism: str, converse: Callable[[Callable[[bytes], bytes]], None]) -> None:
        assert self.ask(17, 1, {"mechanism": mechanism}).error_code == 0

        def exchange(token: bytes) -> bytes:
            answer = self.ask(36, 2, {"auth_bytes": token})
            assert answer.error_code == 0, answer
            return bytes(answer.auth_bytes)

        converse(exchange)

    def close(self) -> None:
        self._wire.close()


def by_password(wire: Wire, mechanism: str, password: str, user: str = "edge") -> Client:
    client = Client(wire)
    client.log_in(mechanism, lambda exchange: authenticate(mechanism, user, password, exchange))
    return client


def by_bearer(wire: Wire, token: str) -> Client:
    client = Client(wire)
    said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    client.log_in("OAUTHBEARER", lambda exchange: _ignore(exchange(said)))
    return client


def by_token(wire: Wire, token_id: str, secret: str) -> Client:
    """SCRAM, with the word that says that it is no user."""
    nonce = secrets.token_urlsafe(24)
    first = f"n={token_id},r={nonce},tokenauth=true"

    def converse(exchange: Callable[[bytes], bytes]) -> None:
        challenge = exchange(f"n,,{first}".encode()).decode()
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, rounds)
        key = hmac.digest(salted, b"Client Key", "sha256")
        last = f"c=biws,r={fields['r']}"
        said = f"{first},{challenge},{last}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
        exchange(f"{last},p={base64.b64encode(proof).decode()}".encode())

    client = Client(wire)
    client.log_in("SCRAM-SHA-256", converse)
    return client


def _ignore(_: object) -> None: ...


def _codes(entity: Any) -> Iterator[int]:
    """Every error code in an answer, but whether settings are told along with it."""
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        name = field.name
        if name.endswith("error_code") and name != "topic_config_error_code" and value is not None:
            yield int(value)
        for item in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(item):
                yield from _codes(item)


def _asking(key: int, version: int, fields: Mapping[str, Any]) -> Callable[[Client], bool | None]:
    def ask(client: Client) -> bool | None:
        codes = set(_codes(client.ask(key, version, fields)))
        if _NOT_BY_TOKEN in codes:
            return None
        return not codes & _DENIED

    return ask


def _listing(
    key: int, version: int, fields: Mapping[str, Any], wanted: str
) -> Callable[[Client], bool]:
    """Is this shown?"""
    return lambda client: repr(wanted) in repr(client.ask(key, version, fields))


_CLUSTER_READ = (Need(Operation.DESCRIBE, Kind.CLUSTER),)
_CLUSTER_ALTER = (Need(Operation.ALTER, Kind.CLUSTER),)
_DESCRIBE = (rights.describe_topic(TOPIC),)
_READ_GROUP = (rights.read_group(GROUP),)
_DESCRIBE_GROUP = (rights.describe_group(GROUP),)
_TRANSACT = (rights.write_transaction(TRANSACTION),)
_SEE_TRANSACTION = (Need(Operation.DESCRIBE, Kind.TRANSACTION, TRANSACTION),)
_OWN = {"transactional_id": TRANSACTION, "producer_id": 0, "producer_epoch": 0}
_ANY_RULE = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": "User:nobody",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_NEW_RULE = {
    "resource_type": 2,
    "resource_name": "m-unused",
    "resource_pattern_type": 3,
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


def records(topic: str) -> dict[str, Any]:
    """What a Produce of one record says."""
    data = bytes(batch.build([Record(b"x")], timestamp_ms=1_700_000_000_000))
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": ms(1000),
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": data}]}],
    }


def _fetch() -> dict[str, Any]:
    at = {
        "partition": 0,
        "current_leader_epoch": -1,
        "log_start_offset": -1,
        "fetch_offset": 0,
        "partition_max_bytes": 100,
    }
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "rack_id": "",
        "max_wait": ms(0),
        "min_bytes": 1,
        "max_bytes": 100,
        "topics": [{"topic": TOPIC, "partitions": [at]}],
        "forgotten_topics_data": [],
    }


def _offset(**more: Any) -> dict[str, Any]:
    at = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    return {
        "group_id": GROUP,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": [at]}],
        **more,
    }


def _records_operations() -> Iterator[Asked]:
    yield Asked("0 Produce", (rights.write_topic(TOPIC),), _asking(0, 9, records(TOPIC)))
    yield Asked("1 Fetch", (rights.read_topic(TOPIC),), _asking(1, 11, _fetch()))
    place = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    listed = {"replica_id": -1, "isolation_level": 0, "topics": place}
    yield Asked("2 ListOffsets", _DESCRIBE, _asking(2, 5, listed))
    flags = {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    named = {"topics": [{"name": TOPIC}], **flags}
    yield Asked("3 Metadata: named", _DESCRIBE, _asking(3, 8, named))
    yield Asked("3 Metadata: all", _DESCRIBE, _listing(3, 8, {"topics": None, **flags}, TOPIC))
    yield Asked(
        "3 Metadata: one that makes its topic",
        (rights.describe_topic(_MADE), rights.create_topic(_MADE)),
        _asking(3, 8, {**named, "topics": [{"name": _MADE}], "allow_auto_topic_creation": True}),
        gone=_MADE,
    )
    at = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    epochs = {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [at]}]}
    yield Asked("23 OffsetForLeaderEpoch", _DESCRIBE, _asking(23, 3, epochs))
    at = {"partition_index": 0, "offset": 0}
    doomed = {"topics": [{"name": TOPIC, "partitions": [at]}], "timeout": ms(1000)}
    yield Asked("21 DeleteRecords", (rights.delete_topic(TOPIC),), _asking(21, 2, doomed))
    places = {"topics": [{"name": TOPIC, "partition_indexes": (0,)}]}
    yield Asked("61 DescribeProducers", (rights.read_topic(TOPIC),), _asking(61, 0, places))
    shown = {"topics": [{"name": TOPIC}], "response_partition_limit": 10}
    yield Asked("75 DescribeTopicPartitions", _DESCRIBE, _asking(75, 0, shown))


def _group_operations() -> Iterator[Asked]:
    commits = (*_READ_GROUP, rights.read_topic(TOPIC))
    yield Asked("8 OffsetCommit", commits, _asking(8, 8, _offset(generation_id_or_member_epoch=-1)))
    asked = {
        "group_id": GROUP,
        "topics": [{"name": TOPIC, "partition_indexes": (0,)}],
        "require_stable": False,
    }
    yield Asked("9 OffsetFetch", (*_DESCRIBE_GROUP, *_DESCRIBE), _asking(9, 7, asked))
    for kind, key, needs in ((0, GROUP, _DESCRIBE_GROUP), (1, TRANSACTION, _SEE_TRANSACTION)):
        name = f"10 FindCoordinator: {key}"
        yield Asked(name, needs, _asking(10, 3, {"key": key, "key_type": kind}))
    joining = {
        "group_id": GROUP,
        "session_timeout": ms(10_000),
        "rebalance_timeout": ms(10_000),
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    yield Asked("11 JoinGroup", _READ_GROUP, _asking(11, 5, joining))
    member = {"group_id": GROUP, "generation_id": 1, "member_id": "m"}
    yield Asked("12 Heartbeat", _READ_GROUP, _asking(12, 3, member))
    leaving = {"group_id": GROUP, "members": [{"member_id": "m"}]}
    yield Asked("13 LeaveGroup", _READ_GROUP, _asking(13, 3, leaving))
    yield Asked("14 SyncGroup", _READ_GROUP, _asking(14, 3, {**member, "assignments": []}))
    described = {"groups": (GROUP,), "include_authorized_operations": False}
    yield Asked("15 DescribeGroups", _DESCRIBE_GROUP, _asking(15, 4, described))
    yield Asked("16 ListGroups", _DESCRIBE_GROUP, _listing(16, 4, {"states_filter": ()}, GROUP))
    deleting = Need(Operation.DELETE, Kind.GROUP, "m-gone")
    yield Asked("42 DeleteGroups", (deleting,), _asking(42, 2, {"groups_names": ("m-gone",)}))
    at = [{"name": TOPIC, "partitions": [{"partition_index": 7}]}]
    deleting = Need(Operation.DELETE, Kind.GROUP, GROUP)
    yield Asked(
        "47 OffsetDelete",
        (deleting, rights.read_topic(TOPIC)),
        _asking(47, 0, {"group_id": GROUP, "topics": at}),
    )
    beating = {
        "group_id": GROUP,
        "member_id": "unknown",
        "member_epoch": 7,
        "rebalance_timeout": ms(-1),
        "subscribed_topic_names": None,
        "topic_partitions": None,
    }
    yield Asked("68 ConsumerGroupHeartbeat", _READ_GROUP, _asking(68, 0, beating))
    described = {"group_ids": (GROUP,), "include_authorized_operations": False}
    yield Asked("69 ConsumerGroupDescribe", _DESCRIBE_GROUP, _asking(69, 0, described))


def _transaction_operations() -> Iterator[Asked]:
    wish = {"transactional_id": TRANSACTION, "transaction_timeout": ms(1000)}
    yield Asked("22 InitProducerId: a transaction", _TRANSACT, _asking(22, 4, wish))
    yield Asked(
        "22 InitProducerId: none",
        (Need(Operation.WRITE_IDEMPOTENTLY, Kind.CLUSTER),),
        _asking(22, 4, {**wish, "transactional_id": None}),
    )
    joined = {**_OWN, "topics": [{"name": TOPIC, "partitions": (0,)}]}
    yield Asked(
        "24 AddPartitionsToTxn",
        (*_TRANSACT, rights.write_topic(TOPIC)),
        _asking(24, 3, {f"v3_and_below_{name}": value for name, value in joined.items()}),
    )
    yield Asked(
        "25 AddOffsetsToTxn",
        (*_TRANSACT, *_READ_GROUP),
        _asking(25, 3, {**_OWN, "group_id": GROUP}),
    )
    yield Asked("26 EndTxn", _TRANSACT, _asking(26, 3, {**_OWN, "committed": False}))
    marker = {
        "producer_id": 777,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": TOPIC, "partition_indexes": (9,)}],
        "coordinator_epoch": 0,
    }
    yield Asked(
        "27 WriteTxnMarkers",
        (Need(Operation.ADMINISTER, Kind.CLUSTER),),
        _asking(27, 1, {"markers": [marker]}),
    )
    yield Asked(
        "28 TxnOffsetCommit",
        (*_TRANSACT, *_READ_GROUP, rights.read_topic(TOPIC)),
        _asking(28, 3, _offset(**_OWN)),
    )
    yield Asked("65 DescribeTransactions", _SEE_TRANSACTION, _describe_transaction)
    filters = {"state_filters": (), "producer_id_filters": ()}
    yield Asked("66 ListTransactions", _SEE_TRANSACTION, _listing(66, 0, filters, TRANSACTION))


def _describe_transaction(client: Client) -> bool:
    # kio does not read the time of a transaction that is not open.
    answer = client.ask_raw(65, 0, {"transactional_ids": (TRANSACTION,)})
    return int.from_bytes(answer[10:12], "big") not in _DENIED


def _topic_operations() -> Iterator[Asked]:
    making = {
        "name": _MADE,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    yield Asked(
        "19 CreateTopics",
        (rights.create_topic(_MADE),),
        _asking(19, 5, {"topics": [making], "timeout": ms(1000), "validate_only": False}),
        gone=_MADE,
    )
    derived = [
        {"name": "derived.from", "value": TOPIC},
        {"name": "derived.smartmodule", "value": "m-none"},
    ]
    deriving = {"topics": [{**making, "configs": derived}], "timeout": ms(1000)}
    yield Asked(
        "19 CreateTopics: derived from another",
        (rights.create_topic(_MADE), rights.read_topic(TOPIC)),
        _asking(19, 5, {**deriving, "validate_only": False}),
        gone=_MADE,
    )
    yield Asked(
        "20 DeleteTopics",
        (rights.delete_topic(_DOOMED),),
        _asking(20, 5, {"topic_names": (_DOOMED,), "timeout": ms(1000)}),
        there=_DOOMED,
    )
    growing = {"name": _GROWING, "count": 2, "assignments": None}
    yield Asked(
        "37 CreatePartitions",
        (rights.alter_topic(_GROWING),),
        _asking(37, 3, {"topics": [growing], "timeout": ms(1000), "validate_only": False}),
        there=_GROWING,
    )
    of = {"resource_type": 2, "resource_name": TOPIC}
    asked = {"include_synonyms": False, "include_documentation": False}
    yield Asked(
        "32 DescribeConfigs",
        (Need(Operation.DESCRIBE_SETTINGS, Kind.TOPIC, TOPIC),),
        _asking(32, 4, {"resources": [{**of, "configuration_keys": None}], **asked}),
    )
    alter = (rights.alter_topic_settings(TOPIC),)
    changes = {"resources": [{**of, "configs": []}], "validate_only": False}
    yield Asked("33 AlterConfigs", alter, _asking(33, 2, changes))
    one = {"name": "retention.ms", "config_operation": 0, "value": "9000000"}
    changes = {"resources": [{**of, "configs": [one]}], "validate_only": False}
    yield Asked("44 IncrementalAlterConfigs", alter, _asking(44, 1, changes))
    source = [{**one, "config_operation": 0} for one in derived]
    into = {"resource_type": 2, "resource_name": _GROWING}
    for key, name, version, configs in (
        (33, "AlterConfigs", 2, derived),
        (44, "IncrementalAlterConfigs", 1, source),
    ):
        changes = {"resources": [{**into, "configs": configs}], "validate_only": False}
        yield Asked(
            f"{key} {name}: derived from another",
            (rights.alter_topic_settings(_GROWING), rights.read_topic(TOPIC)),
            _asking(key, version, changes),
            there=_GROWING,
        )


def _cluster_operations() -> Iterator[Asked]:
    yield Asked("29 DescribeAcls", _CLUSTER_READ, _asking(29, 3, _ANY_RULE))
    yield Asked("30 CreateAcls", _CLUSTER_ALTER, _asking(30, 3, {"creations": [_NEW_RULE]}))
    yield Asked("31 DeleteAcls", _CLUSTER_ALTER, _asking(31, 3, {"filters": [_ANY_RULE]}))
    moved = {"path": "/x", "topics": [{"name": TOPIC, "partitions": (0,)}]}
    yield Asked("34 AlterReplicaLogDirs", _CLUSTER_ALTER, _asking(34, 2, {"dirs": [moved]}))
    yield Asked("35 DescribeLogDirs", _CLUSTER_READ, _asking(35, 4, {"topics": None}))
    electing = {
        "election_type": 0,
        "topic_partitions": [{"topic": TOPIC, "partitions": (0,)}],
        "timeout": ms(1000),
    }
    yield Asked("43 ElectLeaders", _CLUSTER_ALTER, _asking(43, 2, electing))
    moved = {"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}
    reassigning = {"timeout": ms(1000), "topics": [moved]}
    yield Asked("45 AlterPartitionReassignments", _CLUSTER_ALTER, _asking(45, 0, reassigning))
    asked = {"timeout": ms(1000), "topics": None}
    yield Asked("46 ListPartitionReassignments", _CLUSTER_READ, _asking(46, 0, asked))
    settings = (Need(Operation.DESCRIBE_SETTINGS, Kind.CLUSTER),)
    alter = (Need(Operation.ALTER_SETTINGS, Kind.CLUSTER),)
    asked = {"components": [], "strict": False}
    yield Asked("48 DescribeClientQuotas", settings, _asking(48, 1, asked))
    limit = {"key": "producer_byte_rate", "value": 1e9, "remove": False}
    entry = {"entity": [{"entity_type": "user", "entity_name": "m"}], "ops": [limit]}
    changes = {"entries": [entry], "validate_only": True}
    yield Asked("49 AlterClientQuotas", alter, _asking(49, 1, changes))
    yield Asked("50 DescribeUserScramCredentials", _CLUSTER_READ, _asking(50, 0, {"users": None}))
    gone = {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []}
    yield Asked("51 AlterUserScramCredentials", _CLUSTER_ALTER, _asking(51, 0, gone))
    keys = {"resource_type": 64, "resource_name": ""}
    asked = {"include_synonyms": False, "include_documentation": False}
    described = {"resources": [{**keys, "configuration_keys": None}], **asked}
    yield Asked("32 DescribeConfigs: keys", _CLUSTER_READ, _asking(32, 4, described))
    keys["resource_name"] = "nobody"
    gone = {"name": "key.0", "config_operation": 1, "value": None}
    changes = {"resources": [{**keys, "configs": [gone]}], "validate_only": False}
    yield Asked("44 IncrementalAlterConfigs: keys", _CLUSTER_ALTER, _asking(44, 1, changes))
    changes = {"resources": [{**keys, "configs": []}], "validate_only": False}
    yield Asked("33 AlterConfigs: keys", _CLUSTER_ALTER, _asking(33, 2, changes))
    changes = {"timeout": ms(1000), "feature_updates": [], "validate_only": True}
    yield Asked("57 UpdateFeatures", _CLUSTER_ALTER, _asking(57, 1, changes))
    yield Asked("60 DescribeCluster", _CLUSTER_READ, _describe_cluster)
    yield Asked("74 ListConfigResources", settings, _asking(74, 0, {}))


def _describe_cluster(client: Client) -> bool:
    """It is told to everybody, but what he may do with it only to who may see it."""
    answer = client.ask(60, 0, {"include_cluster_authorized_operations": True})
    assert answer.error_code == 0
    return bool(answer.cluster_authorized_operations)


def _login_operations() -> Iterator[Asked]:
    yield Asked("17 SaslHandshake", (), _asking(17, 1, {"mechanism": "PLAIN"}), fresh=True)
    yield Asked("18 ApiVersions", (), _asking(18, 0, {}))
    yield Asked("36 SaslAuthenticate", (), _asking(36, 2, {"auth_bytes": b""}), fresh=True)
    # First: who has asked for another's token sees that one.
    yield Asked(
        "41 DescribeDelegationToken",
        (Need(Operation.DESCRIBE_TOKENS, Kind.USER, f"User:{OTHER}"),),
        _describe_tokens,
    )
    for_other = {
        "owner_principal_type": "User",
        "owner_principal_name": OTHER,
        "renewers": [],
        "max_lifetime": ms(-1),
    }
    needs = (Need(Operation.CREATE_TOKENS, Kind.USER, f"User:{OTHER}"),)
    yield Asked("38 CreateDelegationToken: another's", needs, _asking(38, 3, for_other))
    own = {**for_other, "owner_principal_type": None, "owner_principal_name": None}
    yield Asked("38 CreateDelegationToken: one's own", (), _asking(38, 3, own))
    renewing = {"hmac": b"x", "renew_period": ms(1)}
    yield Asked("39 RenewDelegationToken", (), _asking(39, 2, renewing))
    ending = {"hmac": b"x", "expiry_time_period": ms(1)}
    yield Asked("40 ExpireDelegationToken", (), _asking(40, 2, ending))


def _describe_tokens(client: Client) -> bool | None:
    answer = client.ask(41, 3, {"owners": None})
    if int(answer.error_code) == _NOT_BY_TOKEN:
        return None
    return OTHER in {token.principal_name for token in answer.tokens}


def operations() -> Iterator[Asked]:
    yield from _records_operations()
    yield from _group_operations()
    yield from _transaction_operations()
    yield from _topic_operations()
    yield from _cluster_operations()
    yield from _login_operations()
