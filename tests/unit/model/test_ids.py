"""Ids that are passed on command lines."""

from __future__ import annotations

import uuid
from unittest import mock

from pentalog.model.ids import new_id, spell_id


def test_an_id_never_looks_like_an_option() -> None:
    dashed = uuid.UUID(bytes=b"\xf9" + b"\xc9" * 15)
    plain = uuid.UUID(bytes=b"\x01" * 16)
    assert spell_id(dashed).startswith("-")
    with mock.patch.object(uuid, "uuid4", side_effect=[dashed, plain]):
        assert new_id() == plain


def test_ids_are_spelled_as_kafka_spells_them() -> None:
    assert spell_id(uuid.UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"
