from pentalog.kernels.cursus_facts import CursusFrame
from pentalog.kernels.facts import Buffer, Facts

def read_cursus(data: Buffer, start: int, end: int) -> CursusFrame: ...
def cursus_cut(
    data: Buffer, start: int, end: int, count: int, *, bytes_max: int
) -> tuple[int, int]: ...
def cursus_batches(
    data: Buffer,
    start: int,
    end: int,
    count: int,
    *,
    skip: int,
    timestamp_ms: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    batch_bytes_max: int,
) -> tuple[bytearray, Facts]: ...
def fnv1a_64(data: bytes) -> int: ...
