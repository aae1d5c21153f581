from pentalog.kernels.facts import Buffer
from pentalog.kernels.row_facts import Cells, EncodedRows, HeaderCells, Producing

def place_rows(keys: Cells | None, count: int, partitions: int, keyless: int) -> bytearray: ...
def encode_rows(
    keys: Cells | None,
    values: Cells | None,
    headers: HeaderCells | None,
    timestamps: Buffer,
    placed: Buffer,
    count: int,
    sequences: bytearray,
    bytes_max: int,
    producing: Producing,
) -> EncodedRows: ...
