from pentalog.kernels.facts import Buffer
from pentalog.kernels.rustlog_facts import RustlogFetched

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
