"""Every verb of the command line, each loaded when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

_VERBS: Final = {
    "start": "pentalog.cli.start:start",
    "config": "pentalog.cli.config:config",
    "topic": "pentalog.cli.topic:app",
    "produce": "pentalog.cli.produce:produce",
    "consume": "pentalog.cli.consume:consume",
    "rustlog": "pentalog.cli.rustlog:app",
    "blipmq": "pentalog.cli.blipmq:app",
    "table": "pentalog.cli.table:app",
    "sql": "pentalog.cli.sql:sql",
    "verify": "pentalog.cli.verify:verify",
    "user": "pentalog.cli.user:app",
    "acl": "pentalog.cli.acl:app",
    "token": "pentalog.cli.token:app",
    "quota": "pentalog.cli.quota:app",
}


class _Verbs(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        where = _VERBS.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        verb = getattr(import_module(module), attribute)
        if not isinstance(verb, typer.Typer):
            only = typer.Typer(add_completion=False)
            only.command(cmd_name)(verb)
            verb = only
        command = get_command(verb)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="One durable event log for Kafka, Fluvio, Cursus, RustLog and BlipMQ clients.",
)


@app.callback()
def pentalog() -> None: ...
