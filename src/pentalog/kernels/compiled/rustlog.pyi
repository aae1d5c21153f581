from pentalog.kernels.facts import Buffer, Facts
from pentalog.kernels.rustlog_facts import RustlogFetched, RustlogRun

def rustlog_flaw(data: Buffer, start: int, end: int, count: int) -> int: ...
def rustlog_run(
    data: Buffer,
    start: int,
    end: int,
    *,
    frame_bytes_max: int,
    run_bytes_max: int,
    batch_bytes_max: int,
    attributes: int,
    timestamp_ms: int,
) -> RustlogRun | None: ...
def rustlog_batches(
    requests: list[list[bytes]], *, batch_bytes_max: int, attributes: int, timestamp_ms: int
) -> tuple[bytes, bytearray, Facts]: ...
def rustlog_acks(counts: bytes, base_offset: int, *, json: bool) -> bytes: ...
def rustlog_fetched(
    batches: Buffer,
    offset: int,
    *,
    end_offset: int,
    empty_offset: int,
    bytes_max: int,
    frame_bytes_max: int,
    json: bool,
) -> RustlogFetched: ...
