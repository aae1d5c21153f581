from pentalog.kernels.facts import BatchHeader, Buffer, Facts, Scan

def batch_header(data: Buffer, position: int) -> BatchHeader: ...
def check_batches(data: Buffer, start: int, end: int) -> Facts: ...
def stamp(data: Buffer, start: int, end: int, base_offset: int, leader_epoch: int) -> int: ...
def stamp_append_time(data: Buffer, start: int, end: int, timestamp_ms: int) -> None: ...
def scan_batches(
    data: Buffer,
    start: int,
    end: int,
    *,
    file_position: int,
    segment_base: int,
    next_offset: int,
    index_interval: int,
    bytes_since_entry: int,
    timestamp_max: int,
    timestamp_max_offset: int,
    verify: bool,
    producers: bool,
    timestamp_entered: int = -1,
    gaps: bool = True,
    offset_max: int = ...,
) -> Scan: ...
def find_batch(data: Buffer, start: int, end: int, *, offset_min: int, offset_max: int) -> int: ...
def locate_offset(data: Buffer, start: int, end: int, offset: int) -> tuple[int, int, int, int]: ...
def fit_batches(
    data: Buffer, start: int, end: int, bytes_max: int, offset_limit: int
) -> tuple[int, int]: ...
def locate_time(data: Buffer, start: int, end: int, timestamp: int) -> tuple[int, int]: ...
