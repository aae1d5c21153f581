"""Where the broker is that a console serves: its doors, its files, its pipelines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Place:
    servers: str
    """`HOST:PORT` of the Kafka door that everything is asked through."""
    data: Path | None = None
    """The data directory, if it can be read from here."""
    http: str = ""
    """`HOST:PORT` of the broker's own http listener: rates, connections, frames."""
    http_tls: bool = False
    """That listener speaks TLS."""
    http_key: str = field(default="", repr=False)
    """What this console shows there in place of a name, where the broker asks for one."""
    pipelines: tuple[Path, ...] = ()
    """Files that declare pipelines."""
    login: bool = False
    """The Kafka door demands a user and a password."""
    session_idle_s: float = 1_800.0
    """A user who does nothing for this long must log in again."""
    session_max_s: float = 43_200.0
    """So must every user after this long."""
    names: tuple[str, ...] = ()
    """Names that browsers may call the console by, besides localhost and addresses."""
    tls: bool = False
    tls_authorities: str | None = None
    """A file of certificates to trust; None: those of the system."""
    tls_certificate: str | None = None
    """A file that begins with the broker's own certificate, which is trusted instead and alone."""

    def certificate(self) -> str | None:
        """The broker's certificate as it is now, in PEM; raises `OSError`."""
        if self.tls_certificate is None:
            return None
        text = Path(self.tls_certificate).read_text(encoding="ascii", errors="replace")
        first, end, _ = text[max(0, text.find(_BEGIN)) :].partition(_END)
        return first + end
