"""`pentalog blipmq`: publish and listen as a BlipMQ client does, at any broker of its protocol."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from pentalog.cli import output
from pentalog.cli.advice import speaking_to
from pentalog.cli.output import Misused, reported
from pentalog.clients.blipmq import BlipmqClient, BlipmqError, ConnectionLost, Delivery

app = typer.Typer(
    help="Publish and listen as a BlipMQ client does.  Exit codes: 0 done, 1 refused, 2 used "
    "wrongly.",
    no_args_is_help=True,
)

Server = Annotated[
    str, typer.Option(envvar="PENTALOG_BLIPMQ", metavar="HOST:PORT", help="A BlipMQ broker.")
]
Key = Annotated[
    str, typer.Option(envvar="PENTALOG_BLIPMQ_KEY", help="The API key.", show_default=False)
]
Quality = Annotated[int, typer.Option("--qos", help="0: at most once, 1: at least once.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]

_SERVER: Final = "127.0.0.1:5555"
_KEY: Final = "dev-key"
_BATCH: Final = 1000


@contextmanager
def _client(server: str, key: str, qos: int) -> Iterator[BlipmqClient]:
    if qos not in (0, 1):
        raise Misused(f"--qos {qos} is neither 0 nor 1")
    with speaking_to(server, ConnectionLost, BlipmqError), BlipmqClient(server, key=key) as client:
        yield client


@app.command(epilog="Example: echo hello | pentalog blipmq publish news")
@reported
def publish(
    topic: Topic,
    server: Server = _SERVER,
    key: Key = _KEY,
    qos: Quality = 1,
    as_json: AsJson = False,
) -> None:
    """Publish each line of stdin as one message."""
    lines = [line.rstrip(b"\n") for line in sys.stdin.buffer]
    with _client(server, key, qos) as client:
        for start in range(0, len(lines), _BATCH):
            client.publish(topic, *lines[start : start + _BATCH], qos=qos)
    fields = {"topic": topic, "messages": len(lines)}
    count = "1 message" if len(lines) == 1 else f"{len(lines)} messages"
    output.show_done(f"{count} published to {topic}", fields, as_json=as_json)


@app.command(epilog="Example: pentalog blipmq listen news --count 10")
@reported
def listen(
    topic: Topic,
    server: Server = _SERVER,
    key: Key = _KEY,
    qos: Quality = 1,
    subscription: Annotated[
        int, typer.Option(help="Go on with this one instead of a new one.", show_default=False)
    ] = 0,
    count: Annotated[
        int | None, typer.Option(help="Stop after so many messages.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Subscribe and print messages as they come, each acknowledged once it is printed.

    The number of the subscription is said on stderr: with it another one can go on later.
    """
    if count is not None and count < 1:
        raise Misused(f"--count {count} must be 1 or more")
    with _client(server, key, qos) as client:
        number = subscription or client.subscribe(topic, qos=qos)
        typer.echo(f"subscription {number}", err=True)
        try:
            _listen(client, number, count, as_json=as_json)
        except KeyboardInterrupt:
            return


def _listen(client: BlipmqClient, number: int, count: int | None, *, as_json: bool) -> None:
    found = client.deliveries(number, count=1 if count is not None else 100)
    for printed, delivery in enumerate(found, 1):
        _show(delivery, as_json=as_json)
        if printed == count:
            if delivery.tag:
                client.acknowledge(number, delivery.tag)
            return


def _show(delivery: Delivery, *, as_json: bool) -> None:
    if as_json:
        text = delivery.message.decode("utf-8", "backslashreplace")
        fields = {"topic": delivery.topic, "message": text}
        output.show_json(fields | {"qos": delivery.qos, "tag": delivery.tag})
        sys.stdout.flush()
        return
    sys.stdout.buffer.write(delivery.message + b"\n")
    sys.stdout.buffer.flush()
