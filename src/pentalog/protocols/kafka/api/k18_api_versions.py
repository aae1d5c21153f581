"""ApiVersions: what is served, computed from the registry; the first thing a client asks.

1: throttle time.  3: flexible, name and version of the client, features.
4: features may start at version 0.
The response header never has tagged fields: a client reads it before it knows the version.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pentalog.protocols.kafka import codec
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.features import FEATURES
from pentalog.protocols.kafka.messages import Api, Call

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def serve(call: Call) -> None:
    if not well_named(call):
        call.answer({"error_code": int(ErrorCode.invalid_request), "api_keys": []})
        return
    call.answer({"api_keys": ranges(), **features(call.version)})


def well_named(call: Call) -> bool:
    """Does the client say properly what it is?"""
    if call.version < 3:
        return True
    named = (call.body.client_software_name, call.body.client_software_version)
    return all(_SOFTWARE.fullmatch(text) for text in named)


def ranges() -> list[dict[str, Any]]:
    """Every request served, with its lowest and highest version."""
    from pentalog.protocols.kafka.api import APIS  # the registry lists this module too

    return [_range(APIS[key]) for key in sorted(APIS)]


def features(version: int) -> dict[str, Any]:
    """The levels clients may rely on; older versions of the request cannot say "from 0 on"."""
    least = 0 if version >= 4 else 1
    return {
        "supported_features": [
            {
                "name": name,
                "min_version": max(feature.least, least),
                "max_version": feature.level,
            }
            for name, feature in FEATURES.items()
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": feature.level, "min_version_level": feature.level}
            for name, feature in FEATURES.items()
        ],
    }


def unsupported(correlation_id: int) -> bytearray:
    """The answer to a version we do not know: in the oldest form, naming those we do."""
    fields = {"error_code": int(ErrorCode.unsupported_version), "api_keys": [_range(API)]}
    return codec.encode(API.key, 0, correlation_id, fields)


def _range(api: Api) -> dict[str, Any]:
    lowest = api.version_min if api.advertised_min is None else api.advertised_min
    return {"api_key": api.key, "min_version": lowest, "max_version": api.version_max}


API: Final = Api(18, "ApiVersions", 0, 4, serve)
