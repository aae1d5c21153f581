"""ListPartitionReassignments: what is being moved between brokers; with one broker nothing is."""

from __future__ import annotations

from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    call.answer({"error_code": 0, "error_message": None, "topics": []})


API = Api(46, "ListPartitionReassignments", 0, 0, serve)
