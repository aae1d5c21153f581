"""Where Kafka's own clients find the cluster that a gateway stands in front of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from pentalog.model.later import Later

Said: TypeAlias = Mapping[str, Any]
"""What a node has answered, by the names its schema gives to fields."""


class Signpost(Protocol):
    """Everything is refused with `Overloaded` while nobody of the cluster answers."""

    def versions(self) -> Later[Mapping[int, tuple[int, int]]]:
        """Which requests the nodes serve: by key, the lowest and the highest version."""

    def metadata(
        self, topics: Sequence[tuple[str | None, UUID | None]] | None, *, create: bool
    ) -> Later[Said]:
        """The nodes, and these topics by name or by id, or all; may `create` what is missing."""

    def coordinator(self, kind: int, name: str) -> Later[Said]:
        """The node that keeps a group (kind 0) or a transactional id (1)."""
