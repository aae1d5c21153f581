from collections.abc import Sequence

from pentalog.kernels.facts import Buffer

def acknowledge(
    tags: Buffer, windows: Sequence[tuple[int, int, bytearray] | None]
) -> tuple[int, bytes]: ...
def settled_prefix(states: bytearray) -> int: ...
