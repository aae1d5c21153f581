"""What settings of a topic mean to the log, and how they are listed and kept.

The defaults are the log's own, read from `LogSettings`, so they are stated once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pentalog.broker.port import Setting
from pentalog.broker.topic_definitions import CLEANUP, TOPIC_DEFINITIONS, Definition, Kind
from pentalog.model.errors import InvalidConfig
from pentalog.model.settings import LogSettings, TimestampType

DEFINITIONS: Final[Mapping[str, Definition]] = {each.name: each for each in TOPIC_DEFINITIONS}


def log_settings(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> LogSettings:
    """What a topic's overrides over the broker's defaults mean; raises `InvalidConfig`."""
    fields: dict[str, Any] = {}
    for name, text in {**defaults, **overrides}.items():
        value = definition(name).parse(text)
        if name == CLEANUP:
            assert isinstance(value, tuple)
            fields["cleanup_delete"] = "delete" in value
            fields["cleanup_compact"] = "compact" in value
        elif DEFINITIONS[name].field:
            fields[DEFINITIONS[name].field] = (
                TimestampType(value) if name == "message.timestamp.type" else value
            )
    settings = replace(LogSettings(), **fields)
    if settings.compaction_lag_ms_min > settings.compaction_lag_ms_max:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({settings.compaction_lag_ms_min}) cannot be larger than "
            f"max.compaction.lag.ms ({settings.compaction_lag_ms_max}): lower the one or raise "
            "the other"
        )
    return settings


def definition(name: str) -> Definition:
    found = DEFINITIONS.get(name)
    if found is None:
        raise InvalidConfig(
            f"there is no topic setting {name[:100]!r}: the settings are {', '.join(DEFINITIONS)}"
        )
    return found


def tidy(overrides: Mapping[str, str]) -> dict[str, str]:
    """The same overrides as they are kept and listed: trimmed, in the order of the table."""
    for name in overrides:
        definition(name)
    return {
        name: _spell(DEFINITIONS[name], overrides[name])
        for name in DEFINITIONS
        if name in overrides
    }


def listing(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> tuple[Setting, ...]:
    """Every setting of a topic, in the order of the table."""
    return tuple(
        Setting(
            name=name,
            value=overrides.get(name, _default(each, defaults)),
            default=_default(each, defaults),
            overridden=name in overrides,
            kind=each.kind.value,
            documentation=each.documentation,
        )
        for name, each in DEFINITIONS.items()
    )


def default_text(name: str) -> str:
    """What a setting is where nobody says anything else."""
    return _default(DEFINITIONS[name], {})


def _default(each: Definition, defaults: Mapping[str, str]) -> str:
    if each.name in defaults:
        return _spell(each, defaults[each.name])
    if not each.field:
        return each.default
    value = getattr(LogSettings(), each.field)
    return str(value.value if isinstance(value, TimestampType) else value)


def _spell(each: Definition, text: str) -> str:
    if each.kind is Kind.LIST:
        return ",".join(part.strip() for part in text.split(","))
    return text.strip().lower() if each.kind is Kind.BOOLEAN else text.strip()
