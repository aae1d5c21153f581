"""What each kernel costs, compiled beside pure: nanoseconds per record or request, and GB/s.

Best of several repeats: a kernel has no reason to be slower than its best but other work on the
machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import machine
from pentalog import kernels
from pentalog.model import batch
from pentalog.model.types import Record

RECORDS = 1000
VALUE_BYTES = 100
REPEATS = 7
ROUND_S = 0.05


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    module: str
    run: Callable[[ModuleType], object]
    units: int
    """Records or requests one run handles; 0 when only bytes count."""
    size_bytes: int
    """Bytes one run goes over."""


def cases() -> Iterator[Case]:
    """Every kernel that stands on a hot path."""
    big = bytes(range(256)) * 4096
    for size in (100, 1 << 16, 1 << 20):
        data = big[:size]
        yield Case(f"crc32c of {size:,} B", "crc32c", _calling("crc32c", data), 0, size)
    values = [Record(key=None, value=b"v" * VALUE_BYTES, timestamp_ms=1_700_000_000_000 + i)
              for i in range(RECORDS)]  # fmt: skip
    whole = batch.build(values, timestamp_ms=0)
    size = len(whole)
    payload = bytes(whole[batch.HEADER_BYTES :])
    rows = [(one.timestamp_ms, one.key, one.value, one.headers) for one in values]
    yield Case("check a batch", "batch", _calling("check_batches", whole, 0, size), RECORDS, size)
    yield Case("stamp a batch", "batch", _calling("stamp", whole, 0, size, 7, 0), RECORDS, size)
    yield Case("encode records", "records", _calling("encode_records", rows), RECORDS, size)
    decode = _calling("decode_records", payload, 0, len(payload), RECORDS, 0, 1_700_000_000_000, -1)
    yield Case("decode records", "records", decode, RECORDS, size)
    check = _calling("check_records", payload, 0, len(payload), RECORDS)
    yield Case("check records", "walks", check, RECORDS, size)
    yield _split_case()


def _split_case() -> Case:
    """One 100 B record per request, as many as a socket read brings."""
    one = bytes(batch.build([Record(key=None, value=b"v" * VALUE_BYTES)], timestamp_ms=1))
    body = struct.pack(">hhih", 0, 7, 1, 4) + b"load" + struct.pack(">hhi", -1, 1, 30_000)
    body += struct.pack(">ih", 1, 6) + b"topics" + struct.pack(">iii", 1, 0, len(one)) + one
    request = struct.pack(">i", len(body)) + body
    source = request * 300

    def run(module: ModuleType) -> object:
        # Joining moves bytes inside the buffer, so each run needs a fresh one.
        data = bytearray(source)
        return module.split_produce(data, 0, len(data), frame_bytes_max=100 << 20)

    return Case("split 300 tiny Produce requests", "produce", run, 300, len(source))


def _calling(name: str, *arguments: Any) -> Callable[[ModuleType], object]:
    def run(module: ModuleType) -> object:
        return getattr(module, name)(*arguments)

    return run


def seconds_per_run(case: Case, module: ModuleType) -> float:
    """The best of several rounds, each long enough to measure."""
    case.run(module)
    runs = 1
    while True:
        started = time.perf_counter()
        for _ in range(runs):
            case.run(module)
        took = time.perf_counter() - started
        if took >= ROUND_S / 4:
            break
        runs *= 2
    best = took / runs
    runs = max(1, int(ROUND_S / best))
    for _ in range(REPEATS - 1):
        started = time.perf_counter()
        for _ in range(runs):
            case.run(module)
        best = min(best, (time.perf_counter() - started) / runs)
    return best


def measured(case: Case) -> dict[str, float]:
    """Seconds per run by twin; a twin that was not built is left out."""
    found: dict[str, float] = {}
    for twin in ("compiled", "pure"):
        try:
            module = importlib.import_module(f"pentalog.kernels.{twin}.{case.module}")
        except ImportError:
            continue
        found[twin] = seconds_per_run(case, module)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON per kernel")
    arguments = parser.parse_args()
    table = Table(title="Kernels: best of several rounds")
    table.add_column("kernel", no_wrap=True)
    for name in ("compiled ns", "GB/s", "pure ns", "GB/s", "pure : compiled"):
        table.add_column(name, justify="right")
    for case in cases():
        seconds = measured(case)
        if arguments.json:
            units = {"units": case.units, "bytes": case.size_bytes}
            print(json.dumps({"kernel": case.name, **units, "seconds": seconds}))
            continue
        cells = []
        for twin in ("compiled", "pure"):
            if twin in seconds:
                each_ns = seconds[twin] / (case.units or 1) * 1e9
                cells += [f"{each_ns:,.0f}", f"{case.size_bytes / seconds[twin] / 1e9:.2f}"]
            else:
                cells += ["not built", ""]
        both = len(seconds) == 2
        table.add_row(
            case.name, *cells, f"{seconds['pure'] / seconds['compiled']:.1f}" if both else ""
        )
    if not arguments.json:
        console = Console()
        console.print(table)
        console.print("ns: per record or request; for crc32c per call")
        console.print(f"in use: {kernels.KERNELS}")
        console.print(", ".join(f"{name} {value}" for name, value in machine.described().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
