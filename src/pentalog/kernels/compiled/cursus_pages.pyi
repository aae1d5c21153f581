from pentalog.kernels.cursus_facts import CursusPage
from pentalog.kernels.facts import Buffer

def cursus_page(
    batches: Buffer,
    start: int,
    end: int,
    head: bytes,
    *,
    offset: int,
    messages_max: int,
    bytes_max: int,
    frame_bytes_max: int,
    key: bytes | None = None,
    version_from: int = 0,
    door: int = -1,
) -> CursusPage: ...
