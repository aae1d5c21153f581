"""`pentalog config`, and how every command that takes settings reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pentalog.app import doors
from pentalog.cli import broker, output
from pentalog.config import SETTINGS, ConfigError, plain

_METAVARS: Final = {
    "listen": "NAME=HOST:PORT",
    "advertise": "NAME=HOST:PORT",
    "topic_defaults": "NAME=VALUE",
    "int": "N",
    "bool": "true|false",
    "Path": "DIR",
    "LogFormat": "text|json",
    "ConsoleAddress": "HOST:PORT|off",
    "tuple[Path, ...]": "FILE,FILE",
    "Secrets": "KEY,KEY",
}

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", envvar="PENTALOG_CONFIG", metavar="FILE", help="Settings in TOML."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` a flag for every setting; it gets the file and the flags that were given.

    The flags are made from `config.py`, so a setting cannot be without one.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[2:]
    parameters = [
        inspect.Parameter(
            "config_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile
        ),
        *(_parameter(name) for name in SETTINGS),
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
    ]

    def run(*, config_file: Path | None, **given: Any) -> None:
        flags = {name: given.pop(name) for name in SETTINGS}
        command(
            config_file,
            {name: flag for name, flag in flags.items() if flag not in (None, [])},
            **given,
        )

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameter(name: str) -> inspect.Parameter:
    setting = SETTINGS[name]
    flag = "--" + name.replace("_", "-")
    text = setting.metadata["text"]
    annotation: Any
    if name in broker.REPEATED:
        option = typer.Option(flag, metavar=_METAVARS[name], help=f"{text}  Repeatable.")
        annotation = Annotated[list[str] | None, option]
    else:
        # Taken as text, so that a bad value is refused in the same words whatever its source.
        metavar = _METAVARS[str(setting.type)]
        option = typer.Option(flag, metavar=metavar, help=f"{text}  Default: {_shown(name)}.")
        annotation = Annotated[str | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _shown(name: str) -> str:
    default = plain(SETTINGS[name].default)
    return str(default).lower() if isinstance(default, bool) else str(default)


@with_settings
def config(config_file: Path | None, flags: dict[str, object], as_json: AsJson = False) -> None:
    """Print the settings a broker started like this would have, and where each came from.

    Later sources win: default, file, environment (PENTALOG_ and the name in capitals), flags.

    Exit codes: 0 done, 2 a setting is refused.

    Example: pentalog config --config pentalog.toml --json
    """
    try:
        loaded = broker.read(str(config_file) if config_file else None, flags)
        doors(loaded.config)
    except ConfigError as error:
        output.fail(str(error), output.MISUSED)
    values = {name: plain(getattr(loaded.config, name)) for name in SETTINGS}
    if as_json:
        output.show_json(
            {
                name: {"value": value, "source": loaded.sources[name]}
                for name, value in values.items()
            }
        )
        return
    rows = [(name, _written(value), loaded.sources[name]) for name, value in values.items()]
    output.show_rows(("setting", "value", "from"), rows)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(str(entry) for entry in value)
    if isinstance(value, dict):
        return ",".join(
            str(entry) if str(entry).startswith(f"{name}=") else f"{name}={entry}"
            for name, entry in value.items()
        )
    return str(value)
