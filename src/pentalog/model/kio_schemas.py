"""kio's schemas of Kafka's messages, without what kio brings along for its own tests.

Where hypothesis is installed kio imports all of it, which takes longer than the start of a broker.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kio.serial import entity_reader as entity_reader
    from kio.serial import entity_writer as entity_writer

_HYPOTHESIS: Final = "hypothesis"

_modules: dict[str, Any] = sys.modules
if _HYPOTHESIS in _modules:
    import kio.static.primitive
else:
    # kio asks for it and does without if it is not there, which is what None says.
    _modules[_HYPOTHESIS] = None
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del _modules[_HYPOTHESIS]

from kio.index import load_request_schema as load_request_schema  # noqa: E402
from kio.index import load_response_schema as load_response_schema  # noqa: E402
from kio.schema.errors import ErrorCode as ErrorCode  # noqa: E402


def __getattr__(name: str) -> object:
    # Only clients read and write by these; a broker need not load them.
    if name in ("entity_reader", "entity_writer"):
        import kio.serial

        return getattr(kio.serial, name)
    raise AttributeError(f"module 'pentalog.model.kio_schemas' has no attribute {name!r}")
