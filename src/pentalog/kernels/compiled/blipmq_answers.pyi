from pentalog.kernels.blipmq_facts import Delivered
from pentalog.kernels.facts import Buffer

def deliver_blipmq(
    batches: Buffer,
    batch: int,
    record: int,
    offset: int,
    stop: int,
    polls: Buffer,
    *,
    topic: bytes,
    qos: int,
    tag_shift: int,
    timestamp_min: int,
    bytes_max: int,
    frame_bytes_max: int,
    again: int = 0,
    states: bytearray | None = None,
    floor: int = 0,
    doubtful_end: int = 0,
    zero_end: int = ...,
) -> Delivered: ...
def refuse_blipmq(correlations: Buffer, code: int, text: bytes) -> bytes: ...
