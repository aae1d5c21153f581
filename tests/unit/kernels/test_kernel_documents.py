"""Documents into columns: what is certain, and what is not."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog import kernels
from pentalog.kernels import Documents
from pentalog.kernels.document_facts import BOOLEAN, FLOAT64, INT8, INT32, INT64, TEXT
from pentalog.kernels.pure import documents as pure

NAMES = (b"id", b"small", b"tiny", b"amount", b"good", b"name")
KINDS = bytes([INT64, INT32, INT8, FLOAT64, BOOLEAN, TEXT])
ALL = bytes(len(NAMES))


def parsed(
    kernel: Any, values: Sequence[bytes | None], needed: bytes = ALL, first: int = 0
) -> Documents:
    """`first` values before these are null, and not among those that are given."""
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value or b""))
    bits = sum((value is not None) << (first + place) for place, value in enumerate(values))
    validity = bits.to_bytes((first + len(values)) // 8 + 1, "little")
    found: Documents = kernel.parse_documents(
        struct.pack(f"={len(ends)}i", *ends),
        b"".join(value or b"" for value in values),
        validity if None in values else b"",
        first,
        NAMES,
        KINDS,
        needed,
    )
    return found


def certain(twin: SimpleNamespace, value: bytes, needed: bytes = ALL) -> bool:
    return parsed(twin, [value], needed).rows == 1


def test_fields_of_every_kind(twin: SimpleNamespace) -> None:
    values = [
        b'{"id":-9223372036854775808,"small":7,"tiny":-128,"amount":0.1,"good":true,"name":"a"}',
        b"no document",
        b'{ "name" : "\xc3\xa9 {}[]:," , "id" : 9223372036854775807 , "amount" : -12.5e-3 }',
        None,
        b"{}",
    ]
    found = parsed(twin, values, first=3)
    assert found.rows == 3
    assert found.certain == bytes([0b10101])
    whole, small, tiny, amount, good, name = found.fields
    assert struct.unpack("=3q", whole.data) == (-(1 << 63), (1 << 63) - 1, 0)
    assert (whole.validity, whole.nulls) == (bytes([0b011]), 1)
    assert struct.unpack("=3i", small.data) == (7, 0, 0)
    assert struct.unpack("=3b", tiny.data) == (-128, 0, 0)
    assert struct.unpack("=3d", amount.data) == (0.1, -0.0125, 0.0)
    assert (good.data, good.validity) == (bytes([1]), bytes([1]))
    assert name.data == b"a\xc3\xa9 {}[]:,"
    assert struct.unpack("=4i", name.offsets) == (0, 1, 10, 10)


@pytest.mark.parametrize(
    "value",
    [b'{"else":{"a":[1,{"b":null}],"c":"}"},"id":1}', b'{"else":1,"else":2}', b'{"ID":1.5}',
     b'{"amount":5}', b'{"amount":1E5}', b'{"amount":123456789012345678901234567890}',
     b'{"amount":4.9e-324}', b'{"id":null,"name":null,"amount":null,"good":null}', b"{ }",
     b'{"else":%s%s}' % (b"[" * 32, b"]" * 32)],
)  # fmt: skip
def test_what_is_certain(twin: SimpleNamespace, value: bytes) -> None:
    assert certain(twin, value)


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"}", b"[]", b"null", b' {"id":1}', b'{"id":1} ', b'{"id":1}\n', b'{"id":1}}',
     b'{"id":1,}', b'{"id":1 2}', b'{"id":}', b'{"id"}', b'{"id":1,"id":2}', b'{"id":01}',
     b'{"id":1.0}', b'{"id":1e2}', b'{"id":-0}', b'{"id":"1"}', b'{"id":true}', b'{"id":[1]}',
     b'{"id":9223372036854775808}', b'{"id":-9223372036854775809}', b'{"small":2147483648}',
     b'{"tiny":128}', b'{"tiny":-129}', b'{"amount":-0.0}', b'{"amount":-1e-400}',
     b'{"amount":1e400}', b'{"amount":NaN}', b'{"amount":.5}', b'{"amount":1.}',
     b'{"amount":+1}', b'{"amount":"1"}', b'{"amount":%s}' % (b"1" * 64), b'{"good":1}',
     b'{"good":"true"}', b'{"good":tru}', b'{"name":1}', b'{"name":"\\x"}', b'{"name":"\x7f"}',
     b'{"name":"\\ud800"}', b'{"name":"\\udc00\\ud800"}', b'{"name":"\\ud800\\n"}',
     b'{"name":"\\u12"}', b'{"name":"\\"}', b'{"n\\u0061me":"a"}', b'{"else":{"\\n":1}}',
     b'{"else":"\\q"}', b'{"name":"\xff"}', b'{"name":"\xed\xa0\x80"}', b'{"name":"\xc0\x80"}',
     b'{"else":01}',
     b'{"else":[1,]}', b'{"else":{"a"}}', b'{"else":{1:2}}', b'{"else":nul}', b"{'id':1}",
     b'{"else":%s%s}' % (b"[" * 33, b"]" * 33), b'{"name":"%s"}' % (b"n" * 990)],
)  # fmt: skip
def test_what_is_not_certain(twin: SimpleNamespace, value: bytes) -> None:
    found = parsed(twin, [b'{"name":"before"}', value, b'{"name":"behind"}'])
    assert found.certain == bytes([0b101])
    assert found.fields[5].data == b"beforebehind"


def test_escapes(twin: SimpleNamespace) -> None:
    text = rb"\"\\\/\b\f\n\r\t\u00e9\u20AC\ud83d\ude00\u0000}"
    value = b'{"name":"%s","else":"\\"}\\ud800"}' % text
    found = parsed(twin, [value, b'{"name":"plain"}'])
    assert found.fields[5].data.decode() == '"\\/\b\f\n\r\té€😀\0}plain'


def test_a_document_that_lacks_what_is_needed(twin: SimpleNamespace) -> None:
    needed = bytes(name == b"name" for name in NAMES)
    assert certain(twin, b'{"name":""}', needed)
    assert not certain(twin, b'{"id":1}', needed)
    assert not certain(twin, b'{"name":null}', needed)


@pytest.mark.parametrize(
    "given", [(b"", b"", b""), (struct.pack("=2i", 0, 2), b"{", b""), (bytes(40), b"", b"\1"),
              (struct.pack("=2i", 1, 0), b"{}", b"")],
)  # fmt: skip
def test_buffers_that_do_not_fit(twin: SimpleNamespace, given: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match=r"offset|inside|bits"):
        twin.parse_documents(*given, 0, NAMES, KINDS, ALL)


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-200, 200), st.floats(),
    st.text(max_size=4),
)  # fmt: skip
_ANY = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
_KEYS = st.one_of(st.sampled_from([name.decode() for name in NAMES]), st.text(max_size=3))
_DOCUMENTS = st.dictionaries(_KEYS, _ANY, max_size=6).map(
    lambda one: json.dumps(one, ensure_ascii=False).encode("utf-8", "surrogatepass")
)
_ESCAPED = st.dictionaries(_KEYS, _ANY, max_size=6).map(lambda one: json.dumps(one).encode())
_NUMBERS = st.from_regex(rb"-?[0-9]{1,25}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
_FLOATS = st.builds(
    lambda name, text: b'{"%s":%s}' % (name, text), st.sampled_from(NAMES), _NUMBERS
)
_PIECES = st.lists(
    st.sampled_from([b"{", b"}", b"[", b"]", b'"', b":", b",", b"1", b"-", b"0", b".5", b"e1",
                     b" ", b"true", b"null", b'"id"', b'"name"', b'"good"', b"\\", b"\xc3\xa9",
                     b"\\n", b"\\ud83d", b"\\ude00", b'"\\u00e9"']),
    max_size=12,
).map(b"".join)  # fmt: skip


_VALUE = st.one_of(
    _DOCUMENTS, _ESCAPED, _FLOATS, _PIECES, _PIECES.map(lambda one: b"{%s}" % one),
    st.binary(max_size=20), st.none(),
)  # fmt: skip
_NEEDED = st.lists(st.booleans(), min_size=len(NAMES), max_size=len(NAMES)).map(bytes)


@given(st.lists(_VALUE, max_size=20), _NEEDED, st.integers(0, 9))
@pytest.mark.skipif(kernels.KERNELS["documents"] != "compiled", reason="not compiled here")
def test_twins_agree(values: list[bytes | None], needed: bytes, first: int) -> None:
    compiled = importlib.import_module("pentalog.kernels.compiled.documents")
    assert parsed(compiled, values, needed, first) == parsed(pure, values, needed, first)
