"""The broker's settings while it runs: what was given at the start, and what was changed since.

A change for this broker is stronger than one for all brokers, and both are stronger than what was
given at the start.  Changes are kept in the state file and hold in the next life too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import Final

from pentalog.broker import settings as topic_settings
from pentalog.broker.operation import Layer, Value
from pentalog.broker.state import State
from pentalog.config import SETTINGS, Config, ConfigError, changed, plain
from pentalog.model.errors import InvalidConfig
from pentalog.model.later import Later

_log: Final = logging.getLogger(__name__)

CHANGEABLE: Final = frozenset(
    {
        "auto_create_topics",
        "connections_max",
        "connections_per_address_max",
        "default_partitions",
    }
)
"""Those whose owners look at what is in force; all defaults of topics can be changed too."""
_LAYERS: Final = (Layer.CLUSTER, Layer.BROKER)


class LocalSettings:
    """Implements `Settings` over the state file."""

    def __init__(self, state: State, config: Config) -> None:
        self.live = config
        self._given = config
        self._state = state
        self._changed: dict[Layer, dict[str, str]] = {layer: {} for layer in _LAYERS}
        self._judges: list[Callable[[Config], None]] = []
        self._watchers: list[Callable[[Config], None]] = []

    def open(self) -> None:
        """Read what was changed in earlier lives."""
        keys = {self._key(layer): layer for layer in _LAYERS}
        for key, name, text in self._state.rows("SELECT layer, name, value FROM broker_settings"):
            if key in keys:
                self._changed[keys[key]][name] = text
        try:
            self.live = self._resolve(self._changed)
        except InvalidConfig:
            self._keep_acceptable()

    def watch(
        self, changed: Callable[[Config], None], judge: Callable[[Config], None] | None = None
    ) -> None:
        """Have `changed` called with every new set; `judge` may refuse it by `InvalidConfig`."""
        self._watchers.append(changed)
        if judge is not None:
            self._judges.append(judge)

    def values(self, name: str) -> Sequence[Value]:
        found = [
            Value(layer, self._changed[layer][name])
            for layer in (Layer.BROKER, Layer.CLUSTER)
            if name in self._changed[layer]
        ]
        if name in SETTINGS:
            given, default = _text(getattr(self._given, name)), _text(_default(name))
            if given != default:
                found.append(Value(Layer.GIVEN, given))
        else:
            default = topic_settings.default_text(name)
            if name in self._given.topic_defaults:
                found.append(Value(Layer.GIVEN, self._given.topic_defaults[name]))
        return (*found, Value(Layer.DEFAULT, default))

    def changeable(self, name: str) -> bool:
        return name in CHANGEABLE or name in topic_settings.DEFINITIONS

    def changed(self, layer: Layer) -> Mapping[str, str]:
        return dict(self._changed[layer])

    def change(
        self,
        layer: Layer,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
    ) -> None:
        after = {} if replace else dict(self._changed[layer])
        for name, text in changes.items():
            if text is None:
                after.pop(name, None)
            else:
                after[name] = text.strip()
        live = self._resolve({**self._changed, layer: after})
        for judge in self._judges:
            judge(live)
        if dry_run:
            return
        self._state.check()
        self._changed[layer] = after
        key = self._key(layer)
        self._state.write("DELETE FROM broker_settings WHERE layer = ?", key)
        for name, text in after.items():
            self._state.write("INSERT INTO broker_settings VALUES (?, ?, ?)", key, name, text)
        self.live = live
        for watcher in self._watchers:
            watcher(live)

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _keep_acceptable(self) -> None:
        """Drop what this release, or the new configuration, does not accept any more."""
        kept: dict[Layer, dict[str, str]] = {layer: {} for layer in _LAYERS}
        for layer in _LAYERS:
            for name, text in self._changed[layer].items():
                try:
                    self.live = self._resolve({**kept, layer: {**kept[layer], name: text}})
                    kept[layer][name] = text
                except InvalidConfig as refusal:
                    _log.warning("a setting changed earlier no longer holds: %s", refusal)
        self._changed = kept

    def _key(self, layer: Layer) -> str:
        """A directory that becomes another broker's does not keep the settings of this one."""
        return str(self._given.node_id) if layer is Layer.BROKER else layer.value

    def _require_changeable(self, name: str) -> None:
        if self.changeable(name):
            return
        if name in SETTINGS:
            raise InvalidConfig(
                f"{name} cannot be changed while the broker runs: change its configuration and "
                "restart it"
            )
        raise InvalidConfig(f"there is no broker setting {name[:100]!r}: ask for a list of them")

    def _resolve(self, layers: Mapping[Layer, Mapping[str, str]]) -> Config:
        """What is in force with these changes; raises `InvalidConfig`."""
        own: dict[str, str] = {}
        defaults = dict(self._given.topic_defaults)
        for layer in _LAYERS:
            for name, text in layers[layer].items():
                self._require_changeable(name)
                if name in SETTINGS:
                    own[name] = text
                else:
                    defaults[name] = text
        topic_settings.log_settings(defaults, {})
        try:
            return changed(self._given, own, topic_defaults=defaults)
        except ConfigError as flaw:
            raise InvalidConfig(str(flaw)) from None


def _default(name: str) -> object:
    setting = SETTINGS[name]
    if setting.default is not MISSING:
        return setting.default
    assert setting.default_factory is not MISSING
    return setting.default_factory()


def _text(value: object) -> str:
    """A setting's value as it would be given on a command line."""
    shown = plain(value)
    if isinstance(shown, bool):
        return "true" if shown else "false"
    if isinstance(shown, list):
        return ",".join(map(str, shown))
    if isinstance(shown, dict):
        return ",".join(f"{name}={entry}" for name, entry in shown.items())
    return str(shown)
