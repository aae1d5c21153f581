"""Writing one record by hand, new or again."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from pentalog.clients.kafka import Cluster
from pentalog.console.application import now_ms
from pentalog.console.identity import Session
from pentalog.console.pages.frame import attempted
from pentalog.console.records import Row, kind_of
from pentalog.kernels import Cells, place_rows
from pentalog.model import batch
from pentalog.model.types import Offset, Partition, Record

_BY_KEY: Final = "by key"


class Produce:
    """A dialog, made when it is opened."""

    def __init__(self, session: Session, topic: str, partitions: list[int]) -> None:
        self._session = session
        self._topic = topic
        self._partitions = partitions

    def open(self, row: Row | None = None) -> None:
        """Empty, or filled with a record that is there already."""
        binary = row is not None and "binary" in (kind_of(row.key), kind_of(row.value))
        with ui.dialog() as dialog, ui.card().classes("w-full").style("max-width: 40rem"):
            ui.label(f"Produce to {self._topic}").classes("text-h6")
            self._partition = ui.select([_BY_KEY, *self._partitions], value=_BY_KEY)
            self._partition.classes("w-full").props('label="Partition"')
            self._key = ui.input("Key", value=_text(row and row.key, binary)).classes("w-full")
            self._key.props('data-test="produce-key"')
            self._value = ui.textarea("Value", value=_text(row and row.value, binary)).classes(
                "w-full"
            )
            self._value.props('autofocus autogrow input-class="pl-mono" data-test="produce-value"')
            with ui.row():
                self._hex = ui.checkbox("Key and value are hex", value=binary)
                self._null = ui.checkbox("Null value", value=row is not None and row.value is None)
            headers = "\n".join(
                f"{name}={_text(value, False)}" for name, value in (row.headers if row else ())
            )
            self._headers = ui.textarea("Headers, NAME=VALUE a line", value=headers)
            self._headers.classes("w-full").props('autogrow data-test="produce-headers"')
            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=dialog.close).props("flat")
                ui.button("Send", icon="o_send", on_click=self._send).props(
                    'unelevated data-test="send"'
                )
        dialog.open()

    async def _send(self) -> None:
        async def send() -> None:
            record = self._record()
            chosen = self._partition.value
            at, offset = await self._session.ask(
                lambda cluster: _produce(cluster, self._topic, chosen, record)
            )
            ui.notify(f"written to {at} at offset {offset}", type="positive")

        await attempted(send())

    def _record(self) -> Record:
        read = _from_hex if self._hex.value else str.encode
        key = read(self._key.value) if self._key.value else None
        value = None if self._null.value else read(self._value.value or "")
        headers = []
        for line in (self._headers.value or "").splitlines():
            name, equals, content = line.partition("=")
            if not name.strip() or not equals:
                raise ValueError(f"{line!r} is no header; write NAME=VALUE")
            headers.append((name.strip(), content.encode()))
        return Record(value, key, tuple(headers), now_ms())


def _produce(
    cluster: Cluster, topic: str, chosen: int | str, record: Record
) -> tuple[Partition, Offset]:
    if isinstance(chosen, int):
        index = chosen
    else:
        count = len(cluster.topic(topic).partitions)
        index = partition_of(record.key, count)
    at = Partition(topic, index)
    built = batch.build([record], timestamp_ms=record.timestamp_ms)
    return at, cluster.produce(at, bytes(built))


def partition_of(key: bytes | None, count: int) -> int:
    """Where Kafka's own clients would send this key; the first partition without one."""
    if key is None:
        return 0
    offsets = memoryview(bytearray(8)).cast("i")
    offsets[1] = len(key)
    placed = place_rows(Cells(None, offsets.cast("B"), key, 0), 1, count, 0)
    return memoryview(placed).cast("i")[0]


def _text(data: bytes | None, binary: bool) -> str:
    if data is None:
        return ""
    return data.hex(" ") if binary else data.decode("utf-8", "replace")


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(
            "this is no hex; write pairs of 0-9 and a-f, spaces between them"
        ) from None
