"""Which rights each command of Cursus needs, and how their lack is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pentalog.broker import rights
from pentalog.broker.rights import Need
from pentalog.broker.security import ANONYMOUS, Kind, Operation
from pentalog.model.errors import TopicNotFound
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused, shown
from pentalog.protocols.cursus.matching import WILD
from pentalog.protocols.cursus.options import wish_of
from pentalog.protocols.cursus.policies import POLICY
from pentalog.protocols.cursus.reading import group_of

FREE: Final = frozenset({"AUTH", "HELP", "PROTOCOL_INFO", "NEGOTIATE", "EXIT"})
"""What may be asked by somebody who has not said who he is."""
BATCH: Final = "BATCH"
"""What frames of records are called where a command's name is told."""
_TRANSACTION_NAMES: Final = ("transactional_id", "txn", "transaction")
_PERMISSIONS: Final = {Kind.GROUP: "group", Kind.TRANSACTION: "transaction", Kind.TOPIC: "topic"}

Needs = Callable[[Call], tuple[Need, ...]]


def _topic(call: Call) -> str:
    return call.command.get("topic")


def _group(call: Call) -> str:
    return call.command.get("group")


def _transaction(call: Call) -> str:
    names = (call.command.get(name) for name in _TRANSACTION_NAMES)
    return next((name for name in names if name), "")


def _reading(topic: str) -> tuple[Need, ...]:
    return (rights.read_topic(topic),)


def _writing(topic: str) -> tuple[Need, ...]:
    return (rights.write_topic(topic),)


def _read(call: Call) -> tuple[Need, ...]:
    # Who may read is asked again of the one topic that a pattern means.
    return () if WILD.search(_topic(call)) else (rights.read_topic(_topic(call)),)


def _write(call: Call) -> tuple[Need, ...]:
    return (rights.write_topic(_topic(call)),)


def _describe(call: Call) -> tuple[Need, ...]:
    return (rights.describe_topic(_topic(call)),)


def _consume(call: Call) -> tuple[Need, ...]:
    command = call.command
    if command.document and command.get("offset"):
        return _read(call)
    return (*_read(call), rights.read_group(group_of(command)))


def _member(call: Call) -> tuple[Need, ...]:
    return (rights.read_group(_group(call)), *_read(call))


def _present(call: Call) -> tuple[Need, ...]:
    return (rights.read_group(_group(call)),)


def _describe_group(call: Call) -> tuple[Need, ...]:
    return (rights.describe_group(_group(call)),)


def _fetch_offset(call: Call) -> tuple[Need, ...]:
    topic = () if WILD.search(_topic(call)) else _describe(call)
    return (*_describe_group(call), *topic)


def _coordinator(call: Call) -> tuple[Need, ...]:
    return (
        *_describe_group(call),
        Need(Operation.DESCRIBE, Kind.TRANSACTION, _transaction(call)),
    )


def _transact(call: Call) -> tuple[Need, ...]:
    return (rights.write_transaction(_transaction(call)),)


def _transaction_status(call: Call) -> tuple[Need, ...]:
    return (Need(Operation.DESCRIBE, Kind.TRANSACTION, _transaction(call)),)


def _create(call: Call) -> tuple[Need, ...]:
    """Every producer sends one at its start, so one that changes nothing is a question."""
    wish = wish_of(call.command)
    administers = any(name in wish.kept for name in POLICY)
    needs = [Need(Operation.ALTER, Kind.CLUSTER)] if administers else []
    try:
        topic = call.broker.topics.get(wish.topic)
    except TopicNotFound:
        return (rights.create_topic(wish.topic), *needs)
    needs.insert(0, rights.describe_topic(topic.name))
    if wish.partitions is not None and wish.partitions > topic.partitions:
        needs.append(rights.alter_topic(topic.name))
    if wish.settings or any(name not in POLICY for name in wish.kept):
        needs.append(rights.alter_topic_settings(topic.name))
    return tuple(needs)


def _nothing(call: Call) -> tuple[Need, ...]:
    return ()


NEEDS: Final[Mapping[str, Needs]] = {
    "CREATE": _create,
    "DELETE": lambda call: (rights.delete_topic(_topic(call)),),
    "LIST": _describe,
    "DESCRIBE": _describe,
    "METADATA": _describe,
    "LIST_OFFSETS": _describe,
    "FIND_COORDINATOR": _coordinator,
    "PUBLISH": _write,
    "CONSUME": _consume,
    "STREAM": _consume,
    "SUBSCRIBE": _member,
    "REGISTER_GROUP": _member,
    "JOIN_GROUP": _member,
    "SYNC_GROUP": _member,
    "HEARTBEAT": _present,
    "LEAVE_GROUP": _present,
    "GROUP_STATUS": _describe_group,
    "LIST_GROUPS": _nothing,
    "FETCH_OFFSET": _fetch_offset,
    "COMMIT": _member,
    "COMMIT_OFFSET": _member,
    "BATCH_COMMIT": _member,
    "INIT_PRODUCER_ID": _transact,
    "BEGIN_TXN": _transact,
    "TXN_PUBLISH": lambda call: (*_transact(call), *_write(call)),
    "SEND_OFFSETS_TO_TXN": lambda call: (*_transact(call), *_member(call)),
    "END_TXN": _transact,
    "TXN_STATUS": _transaction_status,
    "APPEND_STREAM": _write,
    "STREAM_VERSION": _read,
    "READ_STREAM": _read,
    "SAVE_SNAPSHOT": _write,
    "READ_SNAPSHOT": _read,
    "PROTOCOL_INFO": _nothing,
    "NEGOTIATE": _nothing,
    "AUTH": _nothing,
    "HELP": _nothing,
    "EXIT": _nothing,
    **dict.fromkeys(
        (
            "LIST_CLUSTER",
            "CLUSTER_STATUS",
            "ELECT_LEADER",
            "RAFT_APPLY",
            "REPLICATE_MESSAGE",
            "REPLICATE_SNAPSHOT",
            "LIST_SNAPSHOTS",
            "FETCH_SNAPSHOT",
            "CATCHUP_SNAPSHOTS",
            "INTERNAL_BATCH",
        ),
        _nothing,
    ),
}
"""Those at the end are refused to everybody.  Listings leave out what may not be seen."""


def check(call: Call) -> None:
    """Refuse what may not be done.  Asked before anything is looked up."""
    context = call.session.context
    verb = call.command.verb
    check_login(call, verb)
    if context.access.guarded:
        needs = NEEDS[verb](call)
        if "" in [need.name for need in needs]:
            # A name that is missing is refused for that.
            needs = tuple(need for need in needs if need.name)
        _check(call, verb, needs)


def allowed(call: Call) -> bool:
    """May it be done, by whoever is known to be at the other end?"""
    try:
        check(call)
    except Refused:
        return False
    return True


def check_batch(call: Call, topic: bytes) -> None:
    """The same for a frame of records."""
    check_login(call, BATCH)
    access = call.session.context.access
    if access.guarded:
        name = topic.decode("utf-8", "surrogateescape")
        if not rights.may(access, _writing, name):
            _check(call, BATCH, _writing(name))


def check_read(call: Call, topic: str) -> None:
    """The same for a read that has waited."""
    call.session.login.refresh()
    check_login(call, call.command.verb)
    access = call.session.context.access
    if access.guarded and not rights.may(access, _reading, topic):
        _check(call, call.command.verb, _reading(topic))


def check_login(call: Call, verb: str) -> None:
    """Refuse commands before a login where one is demanded, but for those in `FREE`."""
    context = call.session.context
    if "auth" in context.demands and context.access.who == ANONYMOUS and verb not in FREE:
        raise Refused(f"authentication_required command={verb}")


def _check(call: Call, verb: str, needs: tuple[Need, ...]) -> None:
    access = call.session.context.access
    lacking = rights.missing(access, needs)
    if lacking is None:
        return
    if access.who == ANONYMOUS:
        raise Refused(f"authentication_required command={verb}")
    operation = lacking.operation
    if lacking.kind is Kind.TOPIC and operation in (Operation.READ, Operation.WRITE):
        what = f"operation={operation.value} topic={shown(lacking.name)}"
        raise Refused(f"NOT_AUTHORIZED_FOR_TOPIC {what}")
    permission = _PERMISSIONS.get(lacking.kind, "admin")
    if permission == "topic":
        # Whether a topic is there must not be told by the word for what is missing.
        described = operation is Operation.DESCRIBE and verb != "CREATE"
        permission = "topic.read" if described else "admin"
    raise Refused(f"NOT_AUTHORIZED_FOR_OPERATION command={verb} permission={permission}")
