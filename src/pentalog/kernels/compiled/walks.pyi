from pentalog.kernels.facts import Buffer

def check_records(
    payload: Buffer, start: int, end: int, count: int, offset_last: int = -1
) -> tuple[int, int, int, int]: ...
def readable_batches(data: Buffer, start: int, end: int) -> tuple[int, int]: ...
def stamp_newest_time(data: Buffer, start: int, end: int) -> None: ...
def find_time(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    *,
    base_offset: int,
    base_timestamp: int,
    offset_min: int,
    timestamp_min: int,
) -> tuple[int, int]: ...
def cut_records(
    payload: Buffer, start: int, end: int, count: int, *, delta_min: int, bytes_max: int
) -> tuple[int, int, int, int]: ...
def refused_records(
    payload: Buffer,
    start: int,
    end: int,
    count: int,
    *,
    base_timestamp: int,
    timestamp_min: int,
    timestamp_max: int,
    keyed: bool,
    most: int,
) -> list[tuple[int, int]]: ...
