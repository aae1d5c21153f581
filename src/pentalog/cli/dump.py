"""`pentalog dump`: what lies in segment files, without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pentalog.cli import hex_view, output
from pentalog.cli.consume import as_fields
from pentalog.cli.output import REFUSED, Misused, reported
from pentalog.cli.segments import Walked, headers, segment_files, walked
from pentalog.kernels import BatchHeader
from pentalog.model import batch
from pentalog.model.errors import BrokerError

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_OPENED_BYTES_MAX: Final = 256 << 20


@reported
def dump(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A segment, a partition's or a data directory.")
    ],
    records: Annotated[bool, typer.Option("--records", help="The records as well.")] = False,
    in_hex: Annotated[bool, typer.Option("--hex", help="The bytes of each batch as well.")] = False,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", help="Skip batches below.")] = 0,
    count: Annotated[int | None, typer.Option(help="Stop after so many batches.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Print the batches of segment files, every checksum verified, and what is damaged.

    A broker may be running: the end of its newest segment may then be a batch half written.

    Exit codes: 0 all sound, 1 damage was found or a file cannot be read, 2 used wrongly.

    Example: pentalog dump pentalog-data/orders-0 --records --hex
    """
    if count is not None and count < 0:
        raise Misused(f"--count {count} must be 0 or more")
    shown, damaged, left = 0, 0, count
    for file in segment_files(path):
        with walked(file) as found:
            damaged += len(found.damages)
            _show_segment(file, found, as_json=as_json)
            for position, header in headers(found):
                if header.base_offset + header.last_offset_delta < start:
                    continue
                if left is not None and shown == left:
                    break
                shown += 1
                _show_batch(found, position, header, records, in_hex, as_json=as_json)
    if damaged:
        raise typer.Exit(REFUSED)


def _show_segment(file: Path, found: Walked, *, as_json: bool) -> None:
    name = f"{file.parent.name}/{file.name}"
    if as_json:
        output.show_json(
            {
                "segment": name,
                "bytes": len(found.data),
                "batches": found.batches,
                "records": found.records,
                "next_offset": found.next_offset,
                "tail_bytes": found.tail_bytes,
                "damages": [one._asdict() for one in found.damages],
            }
        )
        return
    typer.echo(
        f"{name}: {len(found.data)} bytes, {found.batches} batches, {found.records} records, "
        f"next offset {found.next_offset}"
    )
    for one in found.damages:
        typer.echo(
            f"  damaged: bytes {one.start}..{one.end}, offsets {one.offset}..{one.next_offset - 1}"
        )
    if found.tail_bytes:
        typer.echo(f"  {found.tail_bytes} bytes at the end are no whole batch")


def _show_batch(
    found: Walked,
    position: int,
    header: BatchHeader,
    records: bool,
    in_hex: bool,
    *,
    as_json: bool,
) -> None:
    data = found.data[position : position + header.size]
    fields = _fields(position, header)
    if as_json:
        if records:
            fields["records"] = [
                {name: value for name, value in one.items() if name not in ("topic", "partition")}
                for one in _records(data)
            ]
        if in_hex:
            fields["hex"] = data.hex()
        output.show_json(fields)
        return
    typer.echo("  " + " ".join(f"{name}={value}" for name, value in fields.items()))
    if records:
        for one in _records(data):
            shown = " ".join(
                f"{name}={value!r}"
                for name, value in one.items()
                if name not in ("topic", "partition", "offset")
            )
            typer.echo(f"    {one['offset']}: {shown}")
    if in_hex:
        for line in hex_view.lines(data, start=position, indent="    "):
            typer.echo(line)


def _fields(position: int, header: BatchHeader) -> dict[str, Any]:
    attributes = header.attributes
    codec = attributes & batch.CODEC_MASK
    door = (attributes & batch.DOOR_MASK) >> batch.DOOR_SHIFT
    kinds = [
        name
        for bit, name in (
            (batch.TRANSACTIONAL, "transactional"),
            (batch.CONTROL, "control"),
            (batch.APPEND_TIME, "append-time"),
        )
        if attributes & bit
    ]
    horizon = attributes & batch.DELETE_HORIZON
    name_of_base = "delete_horizon" if horizon else "first_timestamp"
    fields: dict[str, Any] = {
        "position": position,
        "offset": header.base_offset,
        "last_offset": header.base_offset + header.last_offset_delta,
        "count": header.records,
        "bytes": header.size,
        "codec": _CODECS[codec] if codec < len(_CODECS) else codec,
        "door": batch.DOORS[door] if door < len(batch.DOORS) else door,
        name_of_base: header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "crc": f"{header.crc:08x}",
    }
    if kinds:
        fields["kind"] = "+".join(kinds)
    if header.producer_id >= 0:
        fields["producer"] = header.producer_id
        fields["epoch"] = header.producer_epoch
        fields["sequence"] = header.base_sequence
    return fields


def _records(data: bytes) -> list[dict[str, Any]]:
    try:
        found = batch.records_of(data, 0, bytes_max=_OPENED_BYTES_MAX)
    except BrokerError as error:
        return [{"offset": -1, "unreadable": str(error)}]
    return [as_fields("", 0, offset, record, in_base64=False) for offset, record in found]
