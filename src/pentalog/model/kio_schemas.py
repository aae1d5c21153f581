"""kio's schemas of Kafka's messages, without what kio brings along for its own tests.

Where hypothesis is installed kio imports all of it, which takes longer than the start of a broker.
"""

from __future__ import annotations

import sys
from typing import Any, Final

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
