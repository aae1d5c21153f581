"""Which transactions were aborted beyond the stable end, where a node does not tell it."""

from __future__ import annotations

from pentalog.kernels import attributes_in, batch_header
from pentalog.model import batch
from pentalog.model.types import Aborted, Offset


def aborted_in(data: memoryview) -> list[Aborted]:
    """Those whose end lies in these batches; of others it is not known yet what becomes of them."""
    attributes, end = attributes_in(data, 0, len(data))
    if not attributes & batch.CONTROL:
        return []
    found: list[Aborted] = []
    began: dict[int, Offset] = {}
    position = 0
    while position < end:
        header = batch_header(data, position)
        if header.attributes & batch.CONTROL:
            first_offset = began.pop(header.producer_id, None)
            if first_offset is not None and batch.control_type(data, position) == "abort":
                found.append(Aborted(header.producer_id, first_offset))
        elif header.attributes & batch.TRANSACTIONAL:
            began.setdefault(header.producer_id, header.base_offset)
        position += header.size
    return found
