from pentalog.kernels.facts import Buffer, Frames

def split_produce(
    data: Buffer, start: int, end: int, *, frame_bytes_max: int, join_bytes_max: int = 32768
) -> Frames: ...
def produce_replies(
    version: int,
    topic: bytes,
    partition: int,
    requests: Buffer,
    base_offset: int,
    *,
    error: int,
    error_message: str | None,
    timestamp_ms: int,
    start_offset: int,
) -> bytes: ...
