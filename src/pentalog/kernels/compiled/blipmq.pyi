from pentalog.kernels.blipmq_facts import BlipFrames
from pentalog.kernels.facts import Buffer

def split_blipmq(
    data: Buffer,
    start: int,
    end: int,
    *,
    timestamp_ms: int,
    frame_bytes_max: int,
    batch_bytes_max: int,
) -> BlipFrames: ...
