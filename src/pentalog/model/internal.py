"""Topics that are the broker's own: clients may read them, and only the broker writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_TOPIC_ID: Final = UUID("c1b0f8a6-6f0e-5a43-9d5c-70656e74616c")
"""The same everywhere: by it a directory of ours is told from one that an Apache Kafka left."""
INTERNAL: Final[Mapping[str, Mapping[str, str]]] = {
    OFFSETS_TOPIC: {
        "cleanup.policy": "compact",
        "segment.bytes": str(100 << 20),
        "max.message.bytes": str(16 << 20),
    }
}
"""Their names, and the settings they are made with."""
