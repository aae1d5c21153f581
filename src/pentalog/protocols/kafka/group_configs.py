"""The settings of single groups as Kafka's tools see them."""

from __future__ import annotations

from collections.abc import Mapping

from pentalog.config import SETTINGS
from pentalog.model.errors import InvalidGroup
from pentalog.protocols.kafka.configs import Entry, Source, synonyms_of
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Call


def group_entries(call: Call, group: str) -> list[Entry]:
    """Every setting a group has, its own or the broker's."""
    _check_name(group)
    settings = call.context.broker.groups.settings
    own = settings.own(group)
    return [_entry(call, name, setting, own) for name, setting in settings.names.items()]


def _entry(call: Call, name: str, setting: str, own: Mapping[str, str]) -> Entry:
    synonyms = synonyms_of(call, f"group.{name}", setting)
    if name in own:
        synonyms = ((name, own[name], Source.DYNAMIC_GROUP), *synonyms)
    return Entry(
        name=name,
        value=synonyms[0][1],
        source=synonyms[0][2],
        kind="int",
        documentation=SETTINGS[setting].metadata["text"],
        synonyms=synonyms,
    )


def change(
    call: Call, group: str, changes: Mapping[str, str | None], *, replace: bool, dry_run: bool
) -> None:
    """Change settings of a group (None: back to the broker's)."""
    _check_name(group)
    try:
        call.context.broker.groups.settings.change(
            group, changes, replace=replace, dry_run=dry_run, owner=call.access.owner
        )
    except InvalidGroup as refusal:
        raise Refused(ErrorCode.invalid_request, str(refusal)) from None


def _check_name(group: str) -> None:
    if not group:
        raise Refused(
            ErrorCode.invalid_request,
            "groups have no settings in common: name one, or change the broker's",
        )
