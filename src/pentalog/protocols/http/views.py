"""Connections, doors and frames as JSON shows them."""

from __future__ import annotations

from pentalog.observation import ConnectionView, DoorView, Frame


def connection_view(view: ConnectionView) -> dict[str, object]:
    traffic = view.traffic
    return {
        "id": view.number,
        "door": view.door,
        "listener": view.listener,
        "peer": view.peer,
        "since_ms": view.since_ms,
        "client": view.client or None,
        "principal": view.principal or None,
        "received_bytes": traffic.received_bytes,
        "sent_bytes": traffic.sent_bytes,
        "requests": traffic.requests,
        "request_errors": traffic.request_errors,
        "received_records": traffic.received_records,
        "sent_records": traffic.sent_records,
    }


def door_view(view: DoorView) -> dict[str, object]:
    traffic = view.traffic
    return {
        "door": view.door,
        "listeners": dict(view.listeners),
        "connections": view.connections,
        "received_bytes": traffic.received_bytes,
        "sent_bytes": traffic.sent_bytes,
        "requests": traffic.requests,
        "request_errors": traffic.request_errors,
        "received_records": traffic.received_records,
        "sent_records": traffic.sent_records,
    }


def frame_view(frame: Frame, *, hex_bytes_max: int) -> dict[str, object]:
    told = frame.told
    return {
        "time_ms": frame.time_ms,
        "direction": "in" if frame.received else "out",
        "length": frame.size_bytes,
        "name": told.name,
        "version": told.version,
        "correlation": told.correlation,
        "topic": told.topic,
        "client": told.client,
        "hex": None if told.secret else frame.start[:hex_bytes_max].hex(),
    }
