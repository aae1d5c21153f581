"""Give both twins of every kernel the same damaged bytes: neither may fail, both must agree.

    PYTHONPATH=src python -m tests.fuzz.kernels.mutations --count 100000 --seed 1

Built on nothing but the kernels themselves, so that it also runs under a sanitizer.
"""

from __future__ import annotations

import argparse
import importlib
import random
import struct
from array import array
from collections.abc import Callable
from typing import Any

from pentalog import kernels
from pentalog.kernels.pure.batch import stamp
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.records import encode_records

SPECIAL = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)
FIELDS = ((0, ">q"), (8, ">i"), (21, ">h"), (23, ">i"), (35, ">q"), (43, ">q"), (53, ">i"))
NUMBERS = (0, 1, -1, 2, 48, 49, 61, 1 << 14, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
FRAME_BYTES_MAX = 1 << 16


def twins(name: str) -> tuple[Any, Any]:
    """The modules `name`: pure, then compiled."""
    pure = importlib.import_module(f"pentalog.kernels.pure.{name}")
    return pure, importlib.import_module(f"pentalog.kernels.compiled.{name}")


def exact(data: bytearray) -> Any:
    """The same in memory of just that size: a bytearray has a zero behind it, which would hide
    a read too far from the sanitizer."""
    return array("B", list(data))


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What it returns, or that the bytes were malformed; anything else it raises is a find."""
    try:
        return function(*arguments, **options)
    except kernels.Malformed:
        return "malformed"


def a_payload(chance: random.Random, count: int) -> bytearray:
    records = []
    for _ in range(count):
        key = chance.choice((None, b"", b"k", chance.randbytes(chance.randrange(40))))
        value = chance.choice((None, b"", chance.randbytes(chance.randrange(200))))
        headers = [("h", chance.choice((None, b"x")))] * chance.choice((0, 0, 1, 3))
        records.append((chance.randrange(1 << 42), key, value, headers))
    return encode_records(records)[0]


def a_batch(chance: random.Random) -> bytearray:
    count = chance.randrange(1, 6)
    payload = a_payload(chance, count)
    producer = chance.choice((-1, -1, 5))
    sequence = -1 if producer < 0 else chance.choice((0, 3, (1 << 31) - 2))
    data = bytearray(61) + payload
    struct.pack_into(
        ">qiibIhiqqqhii",
        data,
        0,
        chance.randrange(100),
        len(data) - 12,
        0,
        2,
        0,
        chance.choice((0, 0, 0, 1, 8, 0x10, 0x20)),
        count - 1,
        1_000,
        chance.choice((-1, 1_000, chance.randrange(1 << 42))),
        producer,
        0,
        sequence,
        count,
    )
    if chance.random() < 0.15:
        position, form = chance.choice(FIELDS)
        bits = 8 * struct.calcsize(form)
        number = chance.choice(NUMBERS)
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        struct.pack_into(form, data, position, max(low, min(high, number)))
    resum(data)
    return data


def resum(data: bytearray) -> None:
    """A true sum, so that damage is not always stopped at the sum."""
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def a_frame(chance: random.Random, version: int) -> bytes:
    records = b"".join(a_batch(chance) for _ in range(chance.choice((0, 1, 1, 1, 2))))
    topic = chance.choice((b"t", b"t", b"t", b"t", b"u"))
    head = struct.pack(">hhihs", chance.choice((0,) * 9 + (1,)), version, 7, 1, b"c")
    acks = struct.pack(">hi", chance.choice((1, 1, 1, 1, -1)), 1_000)
    if version < 9:
        body = b"\xff\xff" + acks + struct.pack(">ih", 1, len(topic)) + topic
        body += struct.pack(">iii", 1, 0, len(records)) + records
    else:
        name = bytes(16) if version >= 13 else uvarint(len(topic) + 1) + topic
        body = b"\x00\x00" + acks + b"\x02" + name + b"\x02" + bytes(4)
        body += uvarint(len(records) + 1) + records + bytes(3)
    return struct.pack(">i", len(head) + len(body)) + head + body


def damaged(chance: random.Random, data: bytearray) -> bytearray:
    """Flip, overwrite, cut, insert, repeat: a few times or not at all."""
    data = bytearray(data)
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
        if not data:
            break
        position = chance.randrange(len(data))
        kind = chance.randrange(6)
        if kind == 0:
            data[position] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[position] = chance.choice(SPECIAL)
        elif kind == 2:
            del data[position:]
        elif kind == 3:
            data[position:position] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 4:
            del data[position : position + chance.randrange(1, 9)]
        else:
            data += data[position : position + 200]
    return data


def try_batches(chance: random.Random) -> None:
    data = bytearray().join(a_batch(chance) for _ in range(chance.randrange(4)))
    if chance.random() < 0.5 and kernels.check_batches(data, 0, len(data)).flaw == 0:
        stamp(data, 0, len(data), chance.randrange(1 << 33), 0)
    data = exact(damaged(chance, data))
    start = chance.choice((0, 0, 0, chance.randrange(len(data) + 1)))
    end = chance.choice((len(data), len(data), chance.randrange(start, len(data) + 1)))
    number = chance.choice((*NUMBERS, 50, 1_000))
    positive = abs(number) & ((1 << 40) - 1)
    pure, compiled = twins("batch")
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("check_batches", (), {}),
        ("locate_offset", (number,), {}),
        ("locate_time", (number,), {}),
        ("fit_batches", (positive, number), {}),
        ("fit_batches", (1 << 40, 1 << 40), {}),
        ("find_batch", (), {"offset_min": 0, "offset_max": positive}),
        (
            "scan_batches",
            (),
            {
                "file_position": positive,
                "segment_base": chance.choice((0, 0, positive, -1)),
                "next_offset": chance.choice((0, 0, positive)),
                "index_interval": chance.choice((0, 100, 4096, -1)),
                "bytes_since_entry": chance.choice((0, 5_000)),
                "timestamp_max": chance.choice((-1, 1_000)),
                "timestamp_max_offset": 0,
                "verify": chance.random() < 0.5,
                "producers": chance.random() < 0.5,
                "gaps": chance.random() < 0.7,
                "offset_max": chance.choice(((1 << 63) - 1, (1 << 63) - 2, number, 60)),
            },
        ),
    ]
    for name, arguments, options in calls:
        left = outcome(getattr(pure, name), data, start, end, *arguments, **options)
        right = outcome(getattr(compiled, name), data, start, end, *arguments, **options)
        assert left == right, (name, data, start, end, arguments, options, left, right)
    if pure.check_batches(data, start, end).flaw == 0:
        copies = data[:], data[:]
        for module, copy in zip((pure, compiled), copies, strict=True):
            module.stamp(copy, start, end, 7, 3)
            module.stamp_append_time(copy, start, end, 99)
        assert copies[0] == copies[1]


def a_number(chance: random.Random, number: int) -> bytes:
    """A varint, now and then longer than it need be or wider than its field."""
    if chance.random() < 0.03:
        number = chance.choice(NUMBERS)
    out = bytearray(uvarint(((number << 1) ^ (number >> 63)) & ((1 << 64) - 1)))
    for _ in range(chance.choice((0,) * 30 + (1, 4, 9))):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def a_field(chance: random.Random, content: bytes | None) -> bytes:
    if content is None:
        return a_number(chance, chance.choice((-1, -1, -1, -2)))
    return a_number(chance, len(content)) + content


def a_crooked_payload(chance: random.Random, count: int) -> bytearray:
    """Records whose every number may be wrong while all the others are right."""
    payload = bytearray()
    for index in range(count):
        body = bytearray(b"\0")
        body += a_number(chance, chance.choice((0, 1, -1, 500, -(1 << 40))))
        body += a_number(chance, index)
        body += a_field(chance, chance.choice((None, b"", b"key")))
        body += a_field(chance, chance.choice((None, b"", bytes(70))))
        headers = chance.choice((0, 0, 1, 2))
        body += a_number(chance, headers)
        for _ in range(headers):
            body += a_field(chance, chance.choice((b"", b"name", b"name", None)))
            body += a_field(chance, chance.choice((None, b"", b"content")))
        payload += a_number(chance, len(body) + chance.choice((0,) * 40 + (1, -1))) + body
    return payload


def try_walks(chance: random.Random) -> None:
    pure, compiled = twins("walks")
    count = chance.randrange(1, 8)
    payload = a_crooked_payload(chance, count)
    if chance.random() < 0.2:
        payload = damaged(chance, payload)
    claimed = chance.choice((count,) * 8 + (count - 1, count + 1, 0, -1, (1 << 31) - 1))
    data = exact(payload)
    start = chance.choice((0,) * 8 + (chance.randrange(len(data) + 1),))
    base = chance.choice((0, 1_000, (1 << 63) - 2, -1))
    low, high = sorted((chance.choice((0, 1_000, -(1 << 63))), chance.choice((999, (1 << 63) - 1))))
    delta = chance.choice((0, 1, 5, 1 << 40, -1))
    bytes_max = chance.choice((0, 10, 100, 1 << 40))
    times = {"timestamp_min": low, "timestamp_max": high, "base_timestamp": base}
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("check_records", (), {}),
        ("check_records", (chance.choice((count - 1, 0, 1 << 31)),), {}),
        ("cut_records", (), {"delta_min": delta, "bytes_max": bytes_max}),
        ("refused_records", (), {"keyed": chance.random() < 0.5, "most": 3, **times}),
        (
            "find_time",
            (),
            {
                "base_offset": abs(base),
                "base_timestamp": base,
                "offset_min": abs(base) + delta if base < 1 << 60 else 0,
                "timestamp_min": low,
            },
        ),
    ]
    for name, more, options in calls:
        left = outcome(getattr(pure, name), data, start, len(data), claimed, *more, **options)
        right = outcome(getattr(compiled, name), data, start, len(data), claimed, *more, **options)
        assert left == right, (name, data, claimed, more, options, left, right)
    flaw = pure.check_records(data, 0, len(data), count)[0]
    try_walks_in_batch(chance, payload, count, flaw)


def try_walks_in_batch(
    chance: random.Random, payload: bytearray, count: int, record_flaw: int
) -> None:
    """A batch with a true sum is sound exactly if its records are."""
    pure, compiled = twins("walks")
    batch = bytearray(61) + payload
    fields = (0, len(batch) - 12, 0, 2, 0, chance.choice((0, 8)), count - 1, 1_000, 1_000)
    struct.pack_into(">qiibIhiqqqhii", batch, 0, *fields, -1, -1, -1, count)
    resum(batch)
    for module in twins("batch"):
        flaw = module.check_batches(batch, 0, len(batch)).flaw
        assert bool(flaw) == bool(record_flaw), (batch, flaw, record_flaw)
    run = exact(batch + a_batch(chance))
    left, right = (module.readable_batches(run, 0, len(run)) for module in (pure, compiled))
    assert left == right, (run, left, right)
    copies = run[:], run[:]
    for module, copy in zip((pure, compiled), copies, strict=True):
        module.stamp_newest_time(copy, 0, len(batch))
    assert copies[0] == copies[1], run


def try_records(chance: random.Random) -> None:
    count = chance.randrange(6)
    data = exact(damaged(chance, a_payload(chance, count)))
    count = chance.choice((count, count, chance.randrange(8), -1))
    start = chance.choice((0, 0, chance.randrange(len(data) + 1)))
    arguments = (data, start, len(data), count)
    pure, compiled = twins("records")
    base = chance.choice((0, 1_000, (1 << 63) - 2))
    newest = {b"k": 1_003, b"": 0}
    maps = dict(newest), dict(newest)
    for name, more, options in (
        ("decode_records", (base, base, chance.choice((-1, 5))), {}),
        ("keep_newest", (base, base, newest), {"drop_tombstones": chance.random() < 0.5}),
        ("shift_tombstones", (chance.choice((0, -base, 1 << 40)),), {}),
    ):
        left = outcome(getattr(pure, name), *arguments, *more, **options)
        right = outcome(getattr(compiled, name), *arguments, *more, **options)
        assert left == right, (name, arguments, more, options, left, right)
    for module, found in zip((pure, compiled), maps, strict=True):
        outcome(module.newest_keys, *arguments, base, found)
    assert maps[0] == maps[1], arguments


def try_frames(chance: random.Random) -> None:
    version = chance.choice((2, 3, 7, 8, 9, 11, 12, 13, 13, 14))
    data = bytearray().join(a_frame(chance, version) for _ in range(chance.randrange(6)))
    if chance.random() < 0.7:
        data = damaged(chance, data)
    pure, compiled = twins("produce")
    join = chance.choice((32_768, 200, 0))
    copies = exact(data), exact(data)
    left, right = (
        module.split_produce(
            copy, 0, len(copy), frame_bytes_max=FRAME_BYTES_MAX, join_bytes_max=join
        )
        for module, copy in zip((pure, compiled), copies, strict=True)
    )
    assert left == right, (data, left, right)
    assert copies[0] == copies[1], data
    for item in left.items:
        if isinstance(item, kernels.ProduceRun):
            check = kernels.check_batches(copies[0], item.start, item.end)
            assert check == item.facts, (data, item, check)


def a_rustlog_frame(chance: random.Random) -> bytes:
    values = [chance.randbytes(chance.choice((0, 1, 30))) for _ in range(chance.randrange(4))]
    topic = chance.choice((b"t", b"t", b"t", b"u", b""))
    body = struct.pack(">BH", chance.choice((1, 1, 1, 2)), len(topic)) + topic
    body += struct.pack(">II", chance.choice((0, 0, 0, 1)), len(values))
    body += b"".join(struct.pack(">I", len(value)) + value for value in values)
    return struct.pack(">I", len(body)) + body


def try_rustlog(chance: random.Random) -> None:
    pure, compiled = twins("rustlog")
    frames = bytearray().join(a_rustlog_frame(chance) for _ in range(chance.randrange(6)))
    data = exact(damaged(chance, frames))
    options = {
        "frame_bytes_max": FRAME_BYTES_MAX,
        "run_bytes_max": chance.choice((0, 100, 1 << 20)),
        "batch_bytes_max": chance.choice((0, 100, 1 << 20)),
        "attributes": 3 << 8,
        "timestamp_ms": chance.choice((0, 1 << 40)),
    }
    left, right = (module.rustlog_run(data, 0, len(data), **options) for module in (pure, compiled))
    assert left == right, (data, options, left, right)
    batches = bytearray().join(a_batch(chance) for _ in range(chance.randrange(4)))
    data = exact(damaged(chance, batches))
    asked = {
        "end_offset": chance.choice((0, 50, 1 << 62)),
        "empty_offset": 7,
        "bytes_max": chance.choice((0, 1, 300, 1 << 40)),
        "frame_bytes_max": chance.choice((0, 100, 400, 1 << 20)),
        "json": chance.random() < 0.5,
    }
    offset = chance.choice((0, 0, 3, 50))
    replies = [
        outcome(module.rustlog_fetched, data, offset, **asked)
        for module in twins("rustlog_answers")
    ]
    assert replies[0] == replies[1], (data, offset, asked, replies)


def a_blipmq_frame(chance: random.Random) -> bytes:
    kind = chance.choice((3, 3, 3, 5, 9, 9, 7, 0, 10))
    body = struct.pack(">Q", chance.choice((0, 1, 1, 2)))
    if kind == 3:
        topic = chance.choice((b"t", b"t", b"u", b""))
        body = struct.pack(">BH", chance.choice((0, 1, 1, 2)), len(topic)) + topic
        body += chance.randbytes(chance.choice((0, 1, 30, 200)))
    return struct.pack(">IBQ", 9 + len(body), kind, chance.getrandbits(64)) + body


def try_blipmq(chance: random.Random) -> None:
    frames = bytearray().join(a_blipmq_frame(chance) for _ in range(chance.randrange(8)))
    data = exact(damaged(chance, frames) if chance.random() < 0.7 else frames)
    options = {
        "timestamp_ms": chance.choice((0, 1 << 40)),
        "frame_bytes_max": chance.choice((9, 50, FRAME_BYTES_MAX)),
        "batch_bytes_max": chance.choice((0, 200, 1 << 20)),
    }
    left, right = (module.split_blipmq(data, 0, len(data), **options) for module in twins("blipmq"))
    assert left == right, (data, options, left, right)
    batches = bytearray().join(a_batch(chance) for _ in range(chance.randrange(4)))
    data = exact(damaged(chance, batches) if chance.random() < 0.7 else batches)
    asked = {
        "topic": b"t" * chance.choice((1, 200)),
        "qos": chance.randrange(2),
        "tag_shift": chance.choice((0, 1, -(1 << 40), 3 << 48)),
        "timestamp_min": chance.choice((-(1 << 63), 1_000, 1 << 41)),
        "bytes_max": chance.choice((0, 100, 1 << 20)),
        "frame_bytes_max": chance.choice((0, 100, 1 << 20)),
        "doubtful_end": chance.choice((0, 5, 1 << 40)),
        "zero_end": chance.choice((0, 5, 1 << 40)),
    }
    place = (chance.choice((0, 0, chance.randrange(len(data) + 1))), chance.choice((0, 0, 70)))
    window = (chance.choice((0, 3, 50)), chance.choice((0, 60, 1 << 10)))
    polls = exact(bytearray(chance.randbytes(8 * chance.randrange(8))))
    states = chance.choice((None, chance.randbytes(30)))
    outcomes = []
    for module in twins("blipmq_answers"):
        known = None if states is None else bytearray(states)
        more = {} if known is None else {"again": 0x81, "states": known, "floor": 2}
        outcomes.append(
            (module.deliver_blipmq(data, *place, *window, polls, **asked, **more), known)
        )
    assert outcomes[0] == outcomes[1], (data, place, window, asked, outcomes)


def a_cursus_frame(chance: random.Random) -> bytes:
    def text(*sizes: int) -> bytes:
        data = chance.randbytes(chance.choice(sizes))
        return struct.pack(">H", len(data)) + data

    count = chance.randrange(4)
    head = b"\xba\x7c" + text(1, 1, 6)
    head += chance.choice((bytes(4) + b"\x011", b"\x00\x010\x00\x011"))
    head += struct.pack(">BQQi", chance.randrange(2), 1, count, count)
    for number in range(count):
        payload = chance.randbytes(chance.choice((0, 5, 300)))
        head += struct.pack(">QQ", 0, chance.choice((number, 0, (1 << 64) - 1)))
        head += text(0, 2) + text(0, 3)
        head += struct.pack(">qI", chance.choice((0, 5, -(1 << 63))), len(payload)) + payload
        head += text(0, 4) + struct.pack(">IQ", chance.choice((0, 9)), chance.choice((0, 1 << 63)))
        head += text(0, 0, 7)
    return head


def a_cursus_batch(chance: random.Random) -> bytearray:
    """Records with Cursus' own headers, sound ones and others."""
    names = ("seq", "epoch", "schema_version", "aggregate_version", "producer_id", "metadata")
    values = (None, b"", b"7", b"-7", b"9" * 20, b"9" * 21, b"text", b"\xff", b'"\x01\n')
    records = []
    for _ in range(chance.randrange(1, 4)):
        headers = [
            (f"cursus.{chance.choice(names)}" if chance.random() < 0.7 else "h\udcff",
             chance.choice(values))
            for _ in range(chance.randrange(5))
        ]  # fmt: skip
        records.append((5, chance.choice((None, b"k")), chance.choice((None, b"v")), headers))
    data = bytearray(61) + encode_records(records)[0]
    struct.pack_into(
        ">qiibIhiqqqhii", data, 0, 3, len(data) - 12, 0, 2, 0, 0, 0, 5, 5, -1, -1, -1, len(records)
    )
    return data


def try_cursus(chance: random.Random) -> None:
    frame = bytearray(a_cursus_frame(chance))
    data = exact(damaged(chance, frame) if chance.random() < 0.7 else frame)
    pure, compiled = twins("cursus")
    read = compiled.read_cursus(data, 0, len(data))
    assert read == pure.read_cursus(data, 0, len(data)), data
    options = {
        "skip": chance.randrange(2),
        "timestamp_ms": 1 << 40,
        "attributes": 2 << 8,
        "producer_id": 5,
        "producer_epoch": 0,
        "base_sequence": (1 << 31) - 2,
        "batch_bytes_max": chance.choice((0, 200, 1 << 20)),
    }
    if not read.flaw and read.records > 1:
        place = (data, read.messages_start, len(data), read.records)
        left, right = (module.cursus_batches(*place, **options) for module in (pure, compiled))
        assert left == right, (data, options)
    batches = bytearray().join(a_cursus_batch(chance) for _ in range(chance.randrange(3)))
    data = exact(damaged(chance, batches) if chance.random() < 0.7 else batches)
    asked = {
        "offset": chance.choice((0, 3, 4)),
        "messages_max": chance.choice((0, 2, 100)),
        "bytes_max": chance.choice((0, 200, 1 << 20)),
        "frame_bytes_max": chance.choice((0, 200, 1 << 20)),
        "key": chance.choice((None, None, b"k")),
        "version_from": chance.choice((0, 1)),
    }
    pages = [
        outcome(module.cursus_page, data, 0, len(data), b"head", **asked)
        for module in twins("cursus_pages")
    ]
    assert pages[0] == pages[1], (data, asked, pages)


def a_fluvio_batch(chance: random.Random) -> bytearray:
    batch = a_batch(chance)
    batch[21:23] = b"\0\0"
    batch[23:27] = (int.from_bytes(batch[57:61], "big") - 1).to_bytes(4, "big", signed=True)
    found = outcome(twins("fluvio")[0].log_to_fluvio, batch, 0, len(batch), 0)
    # What gave no batch is a header without records.
    return bytearray(57) if found == "malformed" or not found[0] else bytearray(found[0])


def try_fluvio(chance: random.Random) -> None:
    pure, compiled = twins("fluvio")
    sent = a_fluvio_batch(chance)
    section = exact(damaged(chance, sent[57:]))
    header = exact(sent[:57])
    options = {
        "counted": chance.random() < 0.8,
        "attributes": chance.choice((0, 0x100, 0x110)),
        "headers": chance.choice((b"\0", b"\2\2h\1")),
    }
    arguments = (header, 0, section, 0, len(section))
    left, right = (
        outcome(module.fluvio_to_log, *arguments, **options) for module in (pure, compiled)
    )
    assert left == right, (section, options, left, right)
    place = (section, min(4, len(section)), len(section), chance.randrange(-1, 6))
    left, right = (module.fluvio_end(*place) for module in (pure, compiled))
    assert left == right, (place, left, right)
    batches = bytearray().join(a_batch(chance) for _ in range(chance.randrange(4)))
    data = exact(damaged(chance, batches))
    offset = chance.choice((-1, 0, 3, 50, 1 << 62))
    left, right = (
        outcome(module.log_to_fluvio, data, 0, len(data), offset) for module in (pure, compiled)
    )
    assert left == right, (data, offset, left, right)


def run(count: int, seed: int) -> None:
    """`count` attempts; the one that fails is repeated by its seed and number alone."""
    tries = (
        try_batches,
        try_records,
        try_walks,
        try_frames,
        try_cursus,
        try_rustlog,
        try_blipmq,
        try_fluvio,
    )
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        try:
            tries[number % len(tries)](chance)
        except Exception as error:
            raise AssertionError(f"attempt {number} of seed {seed}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"{options.count} attempts with seed {options.seed}", flush=True)
    run(options.count, options.seed)
    print("both twins agreed")


if __name__ == "__main__":
    main()
