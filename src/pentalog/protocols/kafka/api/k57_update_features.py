"""UpdateFeatures: the levels of features are those of this release, and stay.

v1 has kinds of upgrade and a dry run.  v2 tells one error for all.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import Denied, ErrorCode, Refused
from pentalog.protocols.kafka.features import FEATURES
from pentalog.protocols.kafka.messages import Api, Call, Steps

_KINDS: Final = (1, 2, 3)
"""Upgrade, safe downgrade, unsafe downgrade."""


def serve(call: Call) -> Steps[None]:
    try:
        demand(call.access, Operation.ALTER, Kind.CLUSTER)
    except Denied as refusal:
        told = error_fields(refusal)
        updates = call.body.feature_updates
        denied = yield from call.each(updates, lambda each: {"feature": each.feature, **told})
        yield from call.reply({**told, "results": denied})
        return
    flaws: dict[str, Refused | None] = {}
    yield from call.each(
        call.body.feature_updates, lambda each: flaws.update({each.feature: _flaw(each)})
    )
    whole: Exception | None = None
    if not flaws:
        whole = Refused(ErrorCode.invalid_request, "no feature is named: name one")
    elif call.version >= 2:
        whole = next((flaw for flaw in flaws.values() if flaw is not None), None)
    results = yield from call.each(
        list(flaws), lambda name: {"feature": name, **error_fields(flaws[name])}
    )
    yield from call.reply({**error_fields(whole), "results": results})


def _flaw(update: Any) -> Refused | None:
    kind = getattr(update, "upgrade_type", 1)
    if kind not in _KINDS:
        return Refused(
            ErrorCode.invalid_request,
            f"upgrade type {kind} is unknown: 1 upgrades, 2 downgrades safely, 3 unsafely",
        )
    feature = FEATURES.get(update.feature)
    if feature is None:
        known = ", ".join(FEATURES) or "none"
        return Refused(
            ErrorCode.invalid_update_version,
            f"there is no feature {update.feature[:100]!r} here; there are: {known}",
        )
    if update.max_version_level == feature.level:
        return None
    return Refused(
        ErrorCode.invalid_update_version,
        f"{update.feature} cannot be at level {update.max_version_level}: this release has it at "
        f"level {feature.level}, run another one to change that",
    )


API = Api(57, "UpdateFeatures", 0, 2, serve)
