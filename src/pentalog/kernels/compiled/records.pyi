from collections.abc import Sequence

from pentalog.kernels.facts import Buffer
from pentalog.kernels.pure.records import Decoded, Encodable

def encode_records(records: Sequence[Encodable]) -> tuple[bytearray, int, int]: ...
def decode_records(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int,
) -> list[Decoded]: ...
def newest_keys(
    payload: Buffer, start: int, end: int, count: int, base_offset: int, newest: dict[bytes, int]
) -> None: ...
def keep_newest(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    newest: dict[bytes, int],
    *,
    drop_tombstones: bool,
) -> tuple[bytearray, int, int]: ...
def shift_tombstones(
    payload: Buffer, start: int, end: int, count: int, later: int
) -> bytearray | None: ...
