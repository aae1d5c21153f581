"""What a client may ask of the protocol itself: PROTOCOL_INFO, NEGOTIATE, AUTH, HELP, EXIT."""

from __future__ import annotations

import re
from typing import Final

from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import ERROR_CLASSES, Refused, quoted
from pentalog.protocols.cursus.messages import truth, whole_number

VERSION: Final = 1
FEATURES: Final = (
    "event_sourcing_v1",
    "idempotent_producer_v1",
    "offset_resume_v1",
    "stream_control_v1",
    "structured_errors_v1",
    "topic_compaction_v1",
)
_STRUCTURED: Final = "structured_errors_v1"
_NAME: Final = re.compile(r"[a-z0-9_]{1,64}")
_NAMES_MAX: Final = 64
_TEXT_MAX: Final = 4096
_VALIDATION: Final = "class=validation retryable=false"


def protocol_info(call: Call) -> None:
    call.reply(
        f"OK protocol=cursus min_version={VERSION} max_version={VERSION} "
        f"default_version={VERSION} features={','.join(FEATURES)} "
        f"error_classes={','.join(ERROR_CLASSES)}"
    )


def negotiate(call: Call) -> None:
    command = call.command
    wanted = command.get("version")
    if not wanted:
        raise Refused(f"missing_protocol_version {_VALIDATION} command=NEGOTIATE")
    version = whole_number(wanted)
    if version is None:
        raise Refused(f"invalid_protocol_version {_VALIDATION} requested={quoted(wanted[:40])}")
    if version != VERSION:
        raise Refused(
            f"UNSUPPORTED_PROTOCOL_VERSION {_VALIDATION} requested={version} "
            f"min={VERSION} max={VERSION}"
        )
    required = truth(command.get("require_features", "false"))
    if required is None:
        value = quoted(command.get("require_features")[:40])
        raise Refused(f"invalid_require_features {_VALIDATION} value={value}")
    names = _names(command.get("features"))
    enabled = sorted(set(FEATURES) if names == {"*"} else names & set(FEATURES))
    unsupported = sorted(names - set(FEATURES) - {"*"})
    if required and unsupported:
        raise Refused(f"UNSUPPORTED_FEATURE {_VALIDATION} features={','.join(unsupported)}")
    call.session.structured_errors = _STRUCTURED in enabled
    call.reply(
        f"OK protocol_version={VERSION} enabled={','.join(enabled)} "
        f"unsupported={','.join(unsupported)}"
    )


def _names(text: str) -> set[str]:
    if text == "*":
        return {"*"}
    names = [name for name in text.split(",") if name]
    if len(text) > _TEXT_MAX or len(names) > _NAMES_MAX:
        reason = quoted(f"at most {_NAMES_MAX} names and {_TEXT_MAX} bytes are accepted")
        raise Refused(f"invalid_protocol_features {_VALIDATION} reason={reason}")
    for name in names:
        if _NAME.fullmatch(name) is None:
            reason = quoted(f'invalid feature name "{name[:64]}"')
            raise Refused(f"invalid_protocol_features {_VALIDATION} reason={reason}")
    return set(names)


def authenticate(call: Call) -> None:
    """AUTH."""
    call.session.login.authenticate(call)


def leave(call: Call) -> None:
    """EXIT."""
    call.reply("OK")
    call.session.hang_up()


def clusterless(call: Call) -> None:
    """Verbs of a cluster of brokers."""
    if call.command.verb == "LIST_CLUSTER":
        raise Refused("distribution_not_enabled")
    raise Refused(f"distribution_required command={call.command.verb}")


def internal(call: Call) -> None:
    """Verbs with which brokers talk to each other: no client may use them."""
    raise Refused(f"internal_command_unauthorized command={call.command.verb}")
