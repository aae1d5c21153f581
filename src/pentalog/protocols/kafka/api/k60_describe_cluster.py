"""DescribeCluster: the cluster's id and its one broker.

v1 asks for brokers or for controllers; v2 may list fenced brokers, of which there are none.
"""

from __future__ import annotations

from typing import Final

from pentalog.protocols.kafka.administration import (
    OPERATIONS_NOT_ASKED,
    error_fields,
)
from pentalog.protocols.kafka.authorization import cluster_operations
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def serve(call: Call) -> None:
    flaw = _flaw(call.field("endpoint_type", _BROKERS))
    context = call.context
    brokers = []
    if flaw is None:
        address = context.advertised("kafka")
        brokers.append(
            {
                "broker_id": context.config.node_id,
                "host": address.host,
                "port": address.port,
                "rack": None,
                "is_fenced": False,
            }
        )
    asked = flaw is None and call.body.include_cluster_authorized_operations
    call.answer(
        {
            **error_fields(flaw),
            "endpoint_type": _BROKERS,
            "cluster_id": context.broker.cluster_id if flaw is None else "",
            "controller_id": context.config.node_id if flaw is None else -1,
            "brokers": brokers,
            "cluster_authorized_operations": cluster_operations(call.access)
            if asked
            else OPERATIONS_NOT_ASKED,
        }
    )


def _flaw(endpoint_type: int) -> Refused | None:
    if endpoint_type == _BROKERS:
        return None
    if endpoint_type == _CONTROLLERS:
        return Refused(
            ErrorCode.mismatched_endpoint_type,
            "this is a broker's listener, not a controller's: ask for brokers (1)",
        )
    return Refused(
        ErrorCode.unsupported_endpoint_type,
        f"endpoints of type {endpoint_type} are unknown: ask for brokers (1)",
    )


API = Api(60, "DescribeCluster", 0, 2, serve)
