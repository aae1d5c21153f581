from pentalog.kernels.column_facts import Columns
from pentalog.kernels.facts import Buffer

def decode_columns(
    data: Buffer,
    start: int,
    end: int,
    *,
    low: int,
    high: int,
    columns: int,
    aborted: bytes,
    picks: tuple[bytes, ...],
    doors: tuple[bytes, ...],
) -> Columns: ...
