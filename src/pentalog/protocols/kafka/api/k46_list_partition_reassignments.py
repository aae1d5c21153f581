"""ListPartitionReassignments: what is being moved between brokers; with one broker nothing is."""

from __future__ import annotations

from pentalog.broker.security import Kind, Operation
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import Denied
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    try:
        demand(call.access, Operation.DESCRIBE, Kind.CLUSTER)
    except Denied as refusal:
        call.answer({**error_fields(refusal), "topics": []})
        return
    call.answer({"error_code": 0, "error_message": None, "topics": []})


API = Api(46, "ListPartitionReassignments", 0, 0, serve)
