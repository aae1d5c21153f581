"""Where the broker is that a console serves: its doors, its files, its pipelines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    servers: str
    """`HOST:PORT` of the Kafka door that everything is asked through."""
    data: Path | None = None
    """The data directory, if it can be read from here."""
    http: str = ""
    """`HOST:PORT` of the broker's own http listener: rates, connections, frames."""
    http_key: str = field(default="", repr=False)
    """What this console shows there in place of a name, where the broker asks for one."""
    pipelines: tuple[Path, ...] = ()
    """Files that declare pipelines."""
    login: bool = False
    """The Kafka door demands a user and a password."""
    tls: bool = False
    tls_authorities: str | None = None
    """A file of certificates to trust; None: those of the system."""
