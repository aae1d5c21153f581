"""How commands speak: tables for people, JSON for programs, one line for what went wrong.

Exit codes of every command: 0 done; 1 refused, unreachable or interrupted; 2 used wrongly.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import typer

from pentalog.security_settings import mask_urls

P = ParamSpec("P")
R = TypeVar("R")

REFUSED: Final = 1
MISUSED: Final = 2
_LINES: Final = "\n\t"


class Refused(Exception):
    """What was asked cannot be had; the text names the cause and the next step."""


class Misused(Exception):
    """The command line asks for something that cannot be meant."""


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what may go wrong in a command into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
            return result
        except Refused as error:
            fail(str(error), REFUSED)
        except Misused as error:
            fail(str(error), MISUSED)
        except KeyboardInterrupt:
            fail("interrupted", REFUSED)
        except BrokenPipeError:
            leave_quietly()

    return run


def fail(text: str, code: int) -> NoReturn:
    typer.echo(f"pentalog: {plain(mask_urls(text), kept=_LINES)}", err=True)
    raise typer.Exit(code)


def leave_quietly() -> NoReturn:
    """The reader of our output has gone, as `head` does: a normal end, not an error."""
    # The interpreter flushes stdout once more when it ends and would complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


def plain(text: str, *, kept: str = "") -> str:
    """What no terminal takes for an order: a character that cannot be printed is spelled out.

    Names of topics and groups are any text, given by anybody.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else repr(each)[1:-1] for each in text
    )


def show_json(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    typer.echo(text if text.isprintable() else json.dumps(value).replace("\x7f", "\\u007f"))


def on_terminal() -> bool:
    return sys.stdout.isatty()


def show_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """A table on a terminal; in a pipe one line per row, cells separated by tabs."""
    if not on_terminal():
        for row in rows:
            typer.echo("\t".join(plain(str(cell)) for cell in row))
        return
    # Imported here: it takes longer to load than most commands take to run.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(plain(str(cell))) for cell in row))
    Console().print(table)


def show_done(text: str, fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Say that something was done, as a sentence or as JSON."""
    if as_json:
        show_json(fields)
    else:
        typer.echo(plain(text, kept=_LINES))


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` arguments as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Misused(f"{option} {text!r} is not NAME=VALUE, for example retention.ms=3600000")
        found[name] = value
    return found
