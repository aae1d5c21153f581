from pentalog.kernels.facts import Buffer

def fluvio_to_log(
    header: Buffer,
    position: int,
    section: Buffer,
    start: int,
    end: int,
    *,
    counted: bool,
    attributes: int,
    headers: bytes,
) -> bytearray: ...
def log_to_fluvio(batches: Buffer, start: int, end: int, offset: int) -> tuple[bytearray, int]: ...
def fluvio_end(data: Buffer, start: int, end: int, count: int) -> int: ...
