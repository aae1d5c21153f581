"""Hot loops over whole buffers: pure functions, each compiled where it can be, else in Python.

`KERNELS` says which twin of each module runs.  `PENTALOG_PURE=1` in the environment asks for the
Python ones.
"""

from __future__ import annotations

import importlib
import os
from typing import Final, Literal

from pentalog.kernels.blipmq_facts import (
    AGAIN,
    ATTEMPT_MAX,
    DEAD_ATTEMPTS,
    DEAD_EXPIRED,
    DEAD_OVERFLOW,
    DEAD_TOO_LARGE,
    REFUSED_LENGTH,
    REFUSED_TYPE,
    BlipFrames,
    Delivered,
    NumberRun,
    PublishRun,
)
from pentalog.kernels.column_facts import Chunks, Columns
from pentalog.kernels.cursus_facts import CursusFrame, CursusPage
from pentalog.kernels.document_facts import Documents
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
from pentalog.kernels.pure.blipmq import split_blipmq
from pentalog.kernels.pure.blipmq_answers import deliver_blipmq, refuse_blipmq
from pentalog.kernels.pure.buffers import new_buffer
from pentalog.kernels.pure.columns import decode_columns
from pentalog.kernels.pure.crc32c import crc32c
from pentalog.kernels.pure.cursus import cursus_batches, cursus_cut, fnv1a_64, read_cursus
from pentalog.kernels.pure.cursus_pages import cursus_page
from pentalog.kernels.pure.documents import parse_documents
from pentalog.kernels.pure.fluvio import fluvio_end, fluvio_to_log, log_to_fluvio
from pentalog.kernels.pure.joining import join_batches
from pentalog.kernels.pure.leases import acknowledge, settled_prefix
from pentalog.kernels.pure.produce import produce_replies, split_produce
from pentalog.kernels.pure.records import (
    decode_records,
    encode_records,
    keep_newest,
    newest_keys,
    shift_tombstones,
)
from pentalog.kernels.pure.rows import encode_rows, place_rows
from pentalog.kernels.pure.rustlog import rustlog_batches, rustlog_flaw, rustlog_run
from pentalog.kernels.pure.rustlog_answers import rustlog_acks, rustlog_fetched
from pentalog.kernels.pure.walks import (
    check_records,
    cut_records,
    find_time,
    readable_batches,
    refused_records,
    stamp_newest_time,
)
from pentalog.kernels.row_facts import Cells, EncodedRows, HeaderCells, Producing
from pentalog.kernels.rustlog_facts import RustlogFetched, RustlogRun

__all__ = [
    "AGAIN",
    "ATTEMPT_MAX",
    "DEAD_ATTEMPTS",
    "DEAD_EXPIRED",
    "DEAD_OVERFLOW",
    "DEAD_TOO_LARGE",
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
    "REFUSED_LENGTH",
    "REFUSED_TYPE",
    "BatchHeader",
    "BlipFrames",
    "Buffer",
    "Cells",
    "Chunks",
    "Columns",
    "CursusFrame",
    "CursusPage",
    "Delivered",
    "Documents",
    "EncodedRows",
    "Facts",
    "Frames",
    "HeaderCells",
    "Malformed",
    "NumberRun",
    "ProduceRun",
    "Producing",
    "PublishRun",
    "RustlogFetched",
    "RustlogRun",
    "Scan",
    "acknowledge",
    "attributes_in",
    "batch_header",
    "check_batches",
    "check_records",
    "crc32c",
    "cursus_batches",
    "cursus_cut",
    "cursus_page",
    "cut_records",
    "decode_columns",
    "decode_records",
    "deliver_blipmq",
    "encode_records",
    "encode_rows",
    "find_batch",
    "find_time",
    "fit_batches",
    "fluvio_end",
    "fluvio_to_log",
    "fnv1a_64",
    "join_batches",
    "keep_newest",
    "locate_offset",
    "locate_time",
    "log_to_fluvio",
    "new_buffer",
    "newest_keys",
    "parse_documents",
    "place_rows",
    "produce_replies",
    "read_cursus",
    "readable_batches",
    "refuse_blipmq",
    "refused_records",
    "rustlog_acks",
    "rustlog_batches",
    "rustlog_fetched",
    "rustlog_flaw",
    "rustlog_run",
    "scan_batches",
    "settled_prefix",
    "shift_tombstones",
    "split_blipmq",
    "split_produce",
    "stamp",
    "stamp_append_time",
    "stamp_newest_time",
]

FUNCTIONS: Final[dict[str, tuple[str, ...]]] = {
    "crc32c": ("crc32c",),
    "buffers": ("new_buffer",),
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
    "cursus": ("cursus_batches", "cursus_cut", "fnv1a_64", "read_cursus"),
    "cursus_pages": ("cursus_page",),
    "columns": ("decode_columns",),
    "records": (
        "decode_records",
        "encode_records",
        "keep_newest",
        "newest_keys",
        "shift_tombstones",
    ),
    "rows": ("encode_rows", "place_rows"),
    "fluvio": ("fluvio_end", "fluvio_to_log", "log_to_fluvio"),
    "joining": ("join_batches",),
    "produce": ("produce_replies", "split_produce"),
    "rustlog": ("rustlog_batches", "rustlog_flaw", "rustlog_run"),
    "rustlog_answers": ("rustlog_acks", "rustlog_fetched"),
    "leases": ("acknowledge", "settled_prefix"),
    "blipmq": ("split_blipmq",),
    "blipmq_answers": ("deliver_blipmq", "refuse_blipmq"),
    "documents": ("parse_documents",),
    "walks": (
        "check_records",
        "cut_records",
        "find_time",
        "readable_batches",
        "refused_records",
        "stamp_newest_time",
    ),
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
