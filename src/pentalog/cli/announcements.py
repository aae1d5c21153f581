"""What a broker's process says on its standard output: lines for people, or events in JSON."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from pentalog.security_settings import mask_urls

if TYPE_CHECKING:
    from pentalog.session import Address

_log = logging.getLogger("pentalog")


class Announcements:
    def listening(self, name: str, address: Address) -> None: ...

    def ready(self, addresses: dict[str, str], kept: str) -> None:
        """Every listener is open; `kept` is where the records are."""

    def console(self, url: str) -> None:
        """Where the web console is."""

    def stopping(self) -> None: ...
    def stopped(self, *, clean: bool) -> None: ...


class PlainLines(Announcements):
    """The rest is in the log, which people see beside these."""

    def ready(self, addresses: dict[str, str], kept: str) -> None:
        lines = [f"{name} listening on {address}" for name, address in addresses.items()]
        _write("\n".join([*lines, f"ready, keeping records in {kept}"]))


class JsonEvents(Announcements, logging.Handler):
    """One object a line, as things happen; warnings and errors of the log are among them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def listening(self, name: str, address: Address) -> None:
        self._tell("listening", listener=name, address=str(address))

    def ready(self, addresses: dict[str, str], kept: str) -> None:
        self._tell("ready", listeners=addresses, records=kept)

    def console(self, url: str) -> None:
        self._tell("console", url=url)

    def emit(self, record: logging.LogRecord) -> None:
        level = "warning" if record.levelno < logging.ERROR else "error"
        self._tell(level, logger=record.name, message=mask_urls(record.getMessage()))

    def stopping(self) -> None:
        self._tell("stopping")

    def stopped(self, *, clean: bool) -> None:
        self._tell("stopped", clean=clean)

    def _tell(self, event: str, **fields: object) -> None:
        import json  # not everybody's start should wait for it

        _write(json.dumps({"event": event, **fields}, ensure_ascii=False))


def _write(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError:
        # Nobody reads our output: no reason not to serve.  What is left in the buffer must go
        # where it is taken, or the interpreter ends with a complaint.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _log.info("%s", text.replace("\n", "; "))
