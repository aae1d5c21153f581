"""Where the log of a broker goes: stderr, as lines of text or of JSON."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from pentalog.cli.output import plain
from pentalog.config import ConfigError, LogFormat
from pentalog.security_settings import mask_urls

LEVELS: Final = ("debug", "info", "warning", "error")

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OWN: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "time", "level", "logger", "exception"}
)
"""What every entry has, and what we call it: not the fields somebody added."""


class TextLines(logging.Formatter):
    """One line an entry, whatever is named in it; only what went wrong in code has more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = plain(mask_urls(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        return mask_urls(super().formatException(ei))


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, then the fields that were added."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # not everybody's start should wait for it

        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_urls(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = mask_urls(self.formatException(record.exc_info))
        for name, value in vars(record).items():
            if name not in _OWN:
                entry[name] = mask_urls(value) if isinstance(value, str) else value
        return json.dumps(entry, ensure_ascii=False, default=str)


def check_level(level: str) -> None:
    if level.lower() not in LEVELS:
        raise ConfigError(f"--log-level {level!r} must be one of {', '.join(LEVELS)}")


def log_to_stderr(level: str, form: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
