"""Which function serves which command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pentalog.protocols.cursus import publishing, streams
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.verbs import (
    consume,
    event_streams,
    groups,
    negotiation,
    topics,
    transactions,
)


def _help(call: Call) -> None:
    call.reply(f"OK commands={','.join(HELPED)}")


VERBS: Final[Mapping[str, Callable[[Call], None]]] = {
    "CREATE": topics.create,
    "DELETE": topics.delete,
    "LIST": topics.list_topics,
    "DESCRIBE": topics.describe,
    "METADATA": topics.metadata,
    "LIST_OFFSETS": topics.list_offsets,
    "FIND_COORDINATOR": topics.find_coordinator,
    "PUBLISH": publishing.publish,
    "CONSUME": consume.consume,
    "STREAM": streams.stream,
    "SUBSCRIBE": groups.register,
    "REGISTER_GROUP": groups.register,
    "JOIN_GROUP": groups.join,
    "SYNC_GROUP": groups.sync,
    "HEARTBEAT": groups.heartbeat,
    "LEAVE_GROUP": groups.leave,
    "GROUP_STATUS": groups.status,
    "LIST_GROUPS": groups.list_groups,
    "FETCH_OFFSET": groups.fetch_offset,
    "COMMIT": groups.commit,
    "COMMIT_OFFSET": groups.commit,
    "BATCH_COMMIT": groups.batch_commit,
    "INIT_PRODUCER_ID": transactions.initialize,
    "BEGIN_TXN": transactions.begin,
    "TXN_PUBLISH": transactions.publish,
    "SEND_OFFSETS_TO_TXN": transactions.send_offsets,
    "END_TXN": transactions.end,
    "TXN_STATUS": transactions.status,
    "APPEND_STREAM": event_streams.append_stream,
    "STREAM_VERSION": event_streams.stream_version,
    "READ_STREAM": event_streams.read_stream,
    "SAVE_SNAPSHOT": event_streams.save_snapshot,
    "READ_SNAPSHOT": event_streams.read_snapshot,
    "PROTOCOL_INFO": negotiation.protocol_info,
    "NEGOTIATE": negotiation.negotiate,
    "AUTH": negotiation.authenticate,
    "HELP": _help,
    "EXIT": negotiation.leave,
    **dict.fromkeys(
        ("LIST_CLUSTER", "CLUSTER_STATUS", "ELECT_LEADER", "RAFT_APPLY"), negotiation.clusterless
    ),
    **dict.fromkeys(
        (
            "REPLICATE_MESSAGE",
            "REPLICATE_SNAPSHOT",
            "LIST_SNAPSHOTS",
            "FETCH_SNAPSHOT",
            "CATCHUP_SNAPSHOTS",
            "INTERNAL_BATCH",
        ),
        negotiation.internal,
    ),
}

REFUSED: Final[Mapping[str, Callable[[str], bytes]]] = {"READ_STREAM": event_streams.stream_refused}
"""How refusals are told by commands whose clients read no line of text."""
_REFUSING: Final = (negotiation.clusterless, negotiation.internal)
HELPED: Final = tuple(verb for verb, serve in VERBS.items() if serve not in _REFUSING)
