"""A gateway with RustLog's door only."""

from __future__ import annotations

from pathlib import Path

from fleet_member import FleetMember


class GatewayProcess(FleetMember):
    def __init__(self, directory: Path, cluster: str | None) -> None:
        super().__init__(directory, cluster, ("rustlog",))

    @property
    def address(self) -> str:
        return self.addresses["rustlog"]
