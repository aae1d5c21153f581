"""Loads the plugin where the installed package does not register it yet."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("pentalog"):
        from pentalog.testing import plugin

        if not config.pluginmanager.is_registered(plugin):
            config.pluginmanager.register(plugin, "pentalog")
