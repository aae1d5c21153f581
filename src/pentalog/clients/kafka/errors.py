"""What can go wrong between this client and a Kafka cluster."""

from __future__ import annotations

from pentalog.model.kio_schemas import ErrorCode


class KafkaFailed(Exception):
    """The cluster could not be asked, or said no; the text names what to do next."""


class Unreachable(KafkaFailed):
    """No broker answers, or the connection broke off."""


class Incompatible(KafkaFailed):
    """The broker does not know a request, or not in a version that we know."""


class Refused(KafkaFailed):
    """A broker's refusal of one request, or of a part of it."""

    def __init__(self, doing: str, code: ErrorCode, text: str | None = None) -> None:
        name = code.name.upper()
        super().__init__(f"{doing} was refused: {f'{name}: {text}' if text else name}")
        self.code = code

    @property
    def retriable(self) -> bool:
        return bool(self.code.retriable)
