from pentalog.kernels.facts import Buffer, Facts
from pentalog.kernels.rustlog_facts import RustlogRun

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
