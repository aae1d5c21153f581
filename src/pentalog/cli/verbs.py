"""Every verb of the command line, each loaded when it is used."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from pentalog.cli.output import MISUSED, REFUSED, reported
from pentalog.cli.profiles import CHOSEN, chosen

VERBS: Final = {
    "start": "pentalog.cli.start:start",
    "config": "pentalog.cli.config:config",
    "topic": "pentalog.cli.topic:app",
    "produce": "pentalog.cli.produce:produce",
    "consume": "pentalog.cli.consume:consume",
    "group": "pentalog.cli.group:app",
    "bench": "pentalog.cli.bench:bench",
    "doctor": "pentalog.cli.doctor:doctor",
    "inspect": "pentalog.cli.inspect:inspect",
    "dump": "pentalog.cli.dump:dump",
    "backup": "pentalog.cli.backup:backup",
    "restore": "pentalog.cli.backup:restore",
    "move": "pentalog.cli.move:move",
    "torture": "pentalog.cli.torture:torture",
    "profile": "pentalog.cli.profile:app",
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


# What the parser raises, under whatever name this version of Typer keeps it.
_USED_WRONGLY: Final[type[Exception]] = typer.BadParameter.__mro__[1]
_WANTS_HELP: Final = "NoArgsIsHelpError"
_NO_COMMAND: Final = re.compile(r"No such command '([^']*)'$")


class _Verbs(TyperGroup):
    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Says what is wrong with a command line in one line, as commands do with the rest."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            code = REFUSED
        except _USED_WRONGLY as error:
            _explain(error)
            code = MISUSED
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        where = VERBS.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        verb = getattr(import_module(module), attribute)
        if isinstance(verb, typer.Typer):
            command: Any = get_group(verb)  # a group has no completion of its own
        else:
            only = typer.Typer(add_completion=False)
            only.command(cmd_name)(verb)
            command = get_command(only)
        command.name = cmd_name
        return command


def _explain(error: Any) -> None:
    if type(error).__name__ == _WANTS_HELP:
        error.show()
        return
    text = " ".join(error.format_message().split()).rstrip(".")
    where = error.ctx.command_path if error.ctx is not None else "pentalog"
    typer.echo(f"pentalog: {text}{_nearest(error, text)}; `{where} --help` shows how", err=True)


def _nearest(error: Any, text: str) -> str:
    mistyped = _NO_COMMAND.match(text)
    if mistyped is None or error.ctx is None:
        return ""
    near = difflib.get_close_matches(mistyped[1], error.ctx.command.list_commands(error.ctx), 1)
    return f". Did you mean '{near[0]}'?" if near else ""


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="One durable event log for Kafka, Fluvio, Cursus, RustLog and BlipMQ clients.",
)


@app.callback(invoke_without_command=True)
@reported
def pentalog(
    context: typer.Context,
    profile: Annotated[
        str | None,
        typer.Option(envvar=CHOSEN, metavar="NAME", help="A broker kept by `pentalog profile`."),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"pentalog {installed('pentalog')}")
        raise typer.Exit
    context.with_resource(chosen(profile))
