"""Hot loops over whole buffers: pure functions, each compiled where it can be, else in Python.

`KERNELS` says which twin of each module runs.  `PENTALOG_PURE=1` in the environment asks for the
Python ones.
"""

from __future__ import annotations

import importlib
import os
from typing import Final, Literal

from pentalog.kernels.facts import (
    FLAW_CHECKSUM,
    FLAW_CODEC,
    FLAW_COUNT,
    FLAW_LENGTH,
    FLAW_MAGIC,
    FLAW_NONE,
    FLAW_OFFSET,
    FLAW_RECORD,
    FLAW_SHORT,
    BatchHeader,
    Buffer,
    Facts,
    Frames,
    Malformed,
    ProduceRun,
    Scan,
)
from pentalog.kernels.pure.batch import (
    attributes_in,
    batch_header,
    check_batches,
    find_batch,
    fit_batches,
    locate_offset,
    locate_time,
    scan_batches,
    stamp,
    stamp_append_time,
)
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.produce import produce_replies, split_produce
from pentalog.kernels.pure.records import (
    check_records,
    decode_records,
    encode_records,
    keep_newest,
    newest_keys,
)

__all__ = [
    "FLAW_CHECKSUM",
    "FLAW_CODEC",
    "FLAW_COUNT",
    "FLAW_LENGTH",
    "FLAW_MAGIC",
    "FLAW_NONE",
    "FLAW_OFFSET",
    "FLAW_RECORD",
    "FLAW_SHORT",
    "KERNELS",
    "BatchHeader",
    "Buffer",
    "Facts",
    "Frames",
    "Malformed",
    "ProduceRun",
    "Scan",
    "attributes_in",
    "batch_header",
    "check_batches",
    "check_records",
    "crc32c",
    "decode_records",
    "encode_records",
    "find_batch",
    "fit_batches",
    "keep_newest",
    "locate_offset",
    "locate_time",
    "newest_keys",
    "produce_replies",
    "scan_batches",
    "split_produce",
    "stamp",
    "stamp_append_time",
]

FUNCTIONS: Final[dict[str, tuple[str, ...]]] = {
    "crc32c": ("crc32c",),
    "batch": (
        "attributes_in",
        "batch_header",
        "check_batches",
        "find_batch",
        "fit_batches",
        "locate_offset",
        "locate_time",
        "scan_batches",
        "stamp",
        "stamp_append_time",
    ),
    "records": ("check_records", "decode_records", "encode_records", "keep_newest", "newest_keys"),
    "produce": ("produce_replies", "split_produce"),
}
"""The functions of each kernel module; both twins have them all."""


def _pick(name: str) -> Literal["compiled", "pure"]:
    """Put the compiled functions of one module in place of the pure ones, if they are there."""
    if os.environ.get("PENTALOG_PURE") == "1":
        return "pure"
    try:
        module = importlib.import_module(f"{__name__}.compiled.{name}")
    except ImportError:
        return "pure"
    globals().update({function: getattr(module, function) for function in FUNCTIONS[name]})
    return "compiled"


KERNELS: Final[dict[str, Literal["compiled", "pure"]]] = {name: _pick(name) for name in FUNCTIONS}
"""Which twin of each module runs."""
