"""Settings of single groups that the broker plans, by Kafka's names; the others have the broker's.

A group need not exist to have settings, and keeps them when it is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import InvalidConfig, InvalidGroup
from pentalog.model.later import Later

SESSION_TIMEOUT_MS: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS: Final = "consumer.heartbeat.interval.ms"
GROUPS_MAX: Final = 100_000
_NAME_CHARACTERS_MAX: Final = 1_000


class _Definition(NamedTuple):
    setting: str
    """The broker's setting that holds where a group has none."""
    least: str
    most: str


_DEFINITIONS: Final[Mapping[str, _Definition]] = {
    SESSION_TIMEOUT_MS: _Definition(
        "consumer_session_timeout_ms",
        "consumer_session_timeout_ms_min",
        "consumer_session_timeout_ms_max",
    ),
    HEARTBEAT_INTERVAL_MS: _Definition(
        "consumer_heartbeat_interval_ms",
        "consumer_heartbeat_interval_ms_min",
        "consumer_heartbeat_interval_ms_max",
    ),
}


class LocalGroupSettings:
    """Implements `GroupSettings` over the state file."""

    def __init__(self, state: State, config: Config) -> None:
        self._state = state
        self._config = config
        self._own: dict[str, dict[str, int]] = {}
        self._owners: dict[str, str] = {}
        """Clients that gave groups their settings; not of those that an earlier life left."""
        self._groups = PrincipalLimits(
            "groups with settings",
            GROUPS_MAX,
            share_percent=config.principal_share_percent,
            refusal=InvalidConfig,
        )

    def open(self) -> None:
        for group, name, value in self._state.rows("SELECT grp, name, value FROM group_settings"):
            if name in _DEFINITIONS:
                self._own.setdefault(group, {})[name] = value
        self._groups.add("", len(self._own))

    @property
    def names(self) -> Mapping[str, str]:
        return {name: known.setting for name, known in _DEFINITIONS.items()}

    def value(self, group: str, name: str) -> int:
        """What holds for a group."""
        own = self._own.get(group)
        if own is not None and name in own:
            return own[name]
        broker_wide: int = getattr(self._config, _DEFINITIONS[name].setting)
        return broker_wide

    def groups(self) -> Collection[str]:
        return self._own.keys()

    def own(self, group: str) -> Mapping[str, str]:
        return {name: str(value) for name, value in self._own.get(group, {}).items()}

    def change(
        self,
        group: str,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
        owner: str = "",
    ) -> None:
        if not 0 < len(group) <= _NAME_CHARACTERS_MAX:
            raise InvalidGroup(
                f"the name of a group with settings has 1 to {_NAME_CHARACTERS_MAX} characters"
            )
        after = {} if replace else dict(self._own.get(group, {}))
        for name, text in changes.items():
            if name not in _DEFINITIONS:
                raise InvalidConfig(
                    f"there is no group setting {name[:100]!r}: there are {', '.join(_DEFINITIONS)}"
                )
            if text is None:
                after.pop(name, None)
            else:
                after[name] = self._parsed(name, text)
        self._check_together(after)
        if group not in self._own and after:
            self._groups.check(owner)
        if dry_run:
            return
        self._state.check()
        self._state.write("DELETE FROM group_settings WHERE grp = ?", group)
        for name, value in after.items():
            self._state.write("INSERT INTO group_settings VALUES (?, ?, ?)", group, name, value)
        self._keep(group, after, owner)

    def _keep(self, group: str, own: dict[str, int], owner: str) -> None:
        if own and group not in self._own:
            self._groups.add(owner)
            self._owners[group] = owner
        elif not own and group in self._own:
            self._groups.release(self._owners.pop(group, ""))
        if own:
            self._own[group] = own
        else:
            self._own.pop(group, None)

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _parsed(self, name: str, text: str) -> int:
        known = _DEFINITIONS[name]
        broker_wide: int = getattr(self._config, known.setting)
        # What the broker itself was told cannot be wrong for a group.
        least = min(getattr(self._config, known.least), broker_wide)
        most = max(getattr(self._config, known.most), broker_wide)
        try:
            value = int(text)
        except ValueError:
            value = -1
        if not least <= value <= most:
            raise InvalidConfig(
                f"{name} cannot be {text[:100]!r}: {least} to {most} ms are accepted, as "
                f"{known.least} and {known.most} say"
            )
        return value

    def _check_together(self, after: Mapping[str, int]) -> None:
        both = [
            after.get(name, getattr(self._config, _DEFINITIONS[name].setting))
            for name in (HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS)
        ]
        if both[0] >= both[1]:
            raise InvalidConfig(
                f"{HEARTBEAT_INTERVAL_MS} would be {both[0]}: it must be less than "
                f"{SESSION_TIMEOUT_MS}, {both[1]}"
            )
