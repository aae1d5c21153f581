from pentalog.kernels.facts import Buffer

def join_batches(
    batches: Buffer, start: int, end: int, bytes_max: int
) -> tuple[bytearray, int]: ...
