"""A broker as this process: settings read, ports open, until it is told to stop.

Knows nothing of the command line's library, which takes longer to load than a broker to start.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pentalog.cli import console, logs
from pentalog.cli.announcements import Announcements, JsonEvents, PlainLines
from pentalog.config import SETTINGS, Config, ConfigError, Loaded, load
from pentalog.security_settings import mask_urls

if TYPE_CHECKING:
    from pentalog.app import App
    from pentalog.gateway import Gateway
    from pentalog.server.lifecycle import Loop

NOT_CLEAN: Final = 1
NOT_STARTED: Final = 2
REPEATED: Final = frozenset({"listen", "advertise", "topic_defaults"})
"""Settings whose flag may be given more than once."""


def read(config_file: str | None, flags: Mapping[str, object]) -> Loaded:
    """Settings from the file, this process's environment and `flags`."""
    text = ""
    if config_file is not None:
        try:
            text = Path(config_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"cannot read --config {config_file}: {cause}; correct it") from error
    return load(toml=text, toml_name=str(config_file), environment=os.environ, flags=flags)


def parse(arguments: Sequence[str]) -> dict[str, str | list[str]] | None:
    """Flags of `pentalog start` by parameter name; None if there is anything unusual about them."""
    known = {"config", "log_level", *SETTINGS}
    found: dict[str, str | list[str]] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument == "--json":
            found["as_json"] = "true"
            continue
        flag, equals, value = argument.partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or name not in known or "_" in flag:
            return None
        if not equals:
            value = next(rest, "--")
            if value.startswith("--"):
                return None
        if name not in REPEATED:
            found[name] = value
        else:
            found.setdefault(name, []).append(value)  # type: ignore[union-attr]
    return found


def run(
    config_file: str | None, flags: Mapping[str, object], log_level: str, *, as_json: bool = False
) -> int:
    """Serve until told to stop; returns the exit code of the process."""
    from pentalog.app import StartFailed
    from pentalog.server import lifecycle

    try:
        logs.check_level(log_level)
        config = read(config_file, flags).config
        logs.log_to_stderr(log_level, config.log_format)
        told: Announcements = PlainLines()
        if as_json:
            told = JsonEvents()
            logging.getLogger().addHandler(told)
        clean = lifecycle.run(lambda loop: _serve(config, loop, told))
    except (ConfigError, StartFailed) as error:
        print(f"pentalog: {mask_urls(str(error))}", file=sys.stderr)
        return NOT_STARTED
    return 0 if clean else NOT_CLEAN


async def _serve(config: Config, loop: Loop, told: Announcements) -> bool:
    from pentalog.server import lifecycle

    stopped = lifecycle.watch_signals(loop)
    app = new_app(config, loop)
    await app.start(told.listening)
    lifecycle.calm_garbage_collector()
    kept = str(config.data.resolve() if config.engine == "local" else config.engine)
    told.ready({name: str(address) for name, address in app.addresses.items()}, kept)
    beside = console.companion(config, app, told.console)
    if beside is not None:
        beside.start()
    await stopped.wait()
    told.stopping()
    if beside is not None:
        await beside.stop()
    clean = await app.stop()
    told.stopped(clean=clean)
    return clean


def new_app(config: Config, loop: Loop) -> App | Gateway:
    """What the engine asks for; raises `ConfigError`."""
    # Each loaded when it is needed: a gateway's client takes longer than a broker to start.
    if config.engine == "local":
        from pentalog.app import App

        return App(config, loop)
    from pentalog.gateway import Gateway

    return Gateway(config, loop)
