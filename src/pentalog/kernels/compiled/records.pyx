"""Records inside the payload of a batch; the twin, and the layout, are in `pure/records.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from pentalog.kernels.compiled.wire cimport (
    add_i64,
    put_varint,
    subtract_i64,
    take_varint,
    varint_bytes,
)

from pentalog.kernels.facts import Malformed

cdef Py_ssize_t ROOM_BYTES_MIN = 1024

ctypedef const unsigned char* Bytes

cdef struct Chunk:
    Bytes start
    Py_ssize_t size
    bint null

cdef struct Parts:
    int64_t timestamp_delta
    int64_t offset_delta
    Chunk key
    Chunk value
    int64_t headers
    Bytes headers_start
    Bytes end


cdef inline Bytes _take_chunk(Bytes at, Bytes end, Chunk* chunk) noexcept nogil:
    """Returns where the field ends, NULL if it does not end before `end`."""
    cdef int64_t length
    at = take_varint(at, end, &length)
    if at == NULL:
        return NULL
    chunk.null = length < 0
    chunk.start = at
    chunk.size = 0
    if length < 0:
        return at
    if length > end - at:
        return NULL
    chunk.size = length
    return at + length


cdef inline bint _take_record(Bytes at, Bytes end, Parts* parts) noexcept nogil:
    """Key and value of the record at `at`; its headers are not walked."""
    cdef int64_t length
    at = take_varint(at, end, &length)
    if at == NULL or length < 1 or length > end - at:
        return False
    parts.end = end = at + length
    at = take_varint(at + 1, end, &parts.timestamp_delta)
    if at == NULL:
        return False
    at = take_varint(at, end, &parts.offset_delta)
    if at == NULL:
        return False
    at = _take_chunk(at, end, &parts.key)
    if at == NULL:
        return False
    at = _take_chunk(at, end, &parts.value)
    if at == NULL:
        return False
    parts.headers_start = at
    return True


cdef inline Bytes _take_headers_count(Parts* parts) noexcept nogil:
    cdef Bytes at = take_varint(parts.headers_start, parts.end, &parts.headers)
    if at == NULL or parts.headers < 0 or parts.headers > parts.end - at:
        return NULL
    return at


cdef inline object _bytes_of(const Chunk* chunk):
    if chunk.null:
        return None
    return PyBytes_FromStringAndSize(<const char*>chunk.start, chunk.size)


cdef tuple _headers_of(Parts* parts):
    cdef Chunk name, value
    cdef int64_t index
    cdef list headers = []
    cdef Bytes at = _take_headers_count(parts)
    if at == NULL:
        return None
    if parts.headers == 0:
        return () if at == parts.end else None
    for index in range(parts.headers):
        at = _take_chunk(at, parts.end, &name)
        if at == NULL or name.null:
            return None
        at = _take_chunk(at, parts.end, &value)
        if at == NULL:
            return None
        headers.append((
            PyUnicode_DecodeUTF8(<const char*>name.start, name.size, "surrogateescape"),
            _bytes_of(&value),
        ))
    return tuple(headers) if at == parts.end else None


cdef object _malformed(Py_ssize_t position):
    return Malformed(f"the records of the batch are malformed at byte {position}")


cdef int _lend(object data, Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except -1:
    """Borrow the bytes of `data`; to be released if this returns."""
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    if 0 <= start <= end <= view.len:
        return 0
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(view)
    raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")


cdef inline unsigned char* _room(
    bytearray out, Py_ssize_t used, Py_ssize_t size
) except NULL:
    """Make room for `size` more bytes; returns where they go."""
    if size > len(out) - used:
        PyByteArray_Resize(out, 2 * (used + size))
    return <unsigned char*>PyByteArray_AS_STRING(out) + used


cdef inline unsigned char* _put_chunk(unsigned char* at, object chunk) noexcept:
    """`chunk` is bytes or None."""
    cdef Py_ssize_t size
    if chunk is None:
        return put_varint(at, -1)
    size = PyBytes_GET_SIZE(chunk)
    at = put_varint(at, size)
    memcpy(at, PyBytes_AS_STRING(chunk), size)
    return at + size


cdef inline Py_ssize_t _chunk_bytes(object chunk) noexcept:
    if chunk is None:
        return 1
    return varint_bytes(PyBytes_GET_SIZE(chunk)) + PyBytes_GET_SIZE(chunk)


cdef inline object _as_bytes(object chunk):
    if chunk is None or PyBytes_CheckExact(chunk):
        return chunk
    return memoryview(chunk).tobytes()


def encode_records(records):
    """(payload, base timestamp, max timestamp); offset deltas count from 0."""
    cdef bytearray payload = bytearray()
    cdef Py_ssize_t used = 0
    cdef Py_ssize_t body, index, count
    cdef int64_t timestamp, delta
    cdef int64_t base_timestamp = -1
    cdef int64_t timestamp_max = -1
    cdef unsigned char* at
    cdef list names
    count = len(records)
    if count == 0:
        return payload, -1, -1
    PyByteArray_Resize(payload, ROOM_BYTES_MIN)
    index = 0
    for timestamp_object, key, value, headers in records:
        timestamp = timestamp_object
        if index == 0:
            base_timestamp = timestamp_max = timestamp
        elif timestamp > timestamp_max:
            timestamp_max = timestamp
        delta = subtract_i64(timestamp, base_timestamp)
        key = _as_bytes(key)
        value = _as_bytes(value)
        names = [
            (name.encode("utf-8", "surrogateescape"), _as_bytes(content))
            for name, content in headers
        ] if headers else []
        body = (
            1 + varint_bytes(delta) + varint_bytes(index) + _chunk_bytes(key)
            + _chunk_bytes(value) + varint_bytes(len(names))
        )
        for name, content in names:
            body += _chunk_bytes(name) + _chunk_bytes(content)
        at = _room(payload, used, varint_bytes(body) + body)
        used += varint_bytes(body) + body
        at = put_varint(at, body)
        at[0] = 0
        at = put_varint(at + 1, delta)
        at = put_varint(at, index)
        at = _put_chunk(at, key)
        at = _put_chunk(at, value)
        at = put_varint(at, len(names))
        for name, content in names:
            at = _put_chunk(at, name)
            at = _put_chunk(at, content)
        index += 1
    PyByteArray_Resize(payload, used)
    return payload, base_timestamp, timestamp_max


def decode_records(
    payload,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    int64_t append_timestamp,
):
    """(offset, timestamp, key, value, headers) of each record."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Bytes at, stop
    cdef Py_ssize_t index
    cdef int64_t timestamp
    cdef list records = []
    cdef tuple headers
    _lend(payload, &view, start, end)
    try:
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        for index in range(count):
            if not _take_record(at, stop, &parts):
                raise _malformed(at - <Bytes>view.buf)
            headers = _headers_of(&parts)
            if headers is None:
                raise _malformed(at - <Bytes>view.buf)
            timestamp = append_timestamp
            if timestamp < 0:
                timestamp = add_i64(base_timestamp, parts.timestamp_delta)
            records.append((
                add_i64(base_offset, parts.offset_delta),
                timestamp,
                _bytes_of(&parts.key),
                _bytes_of(&parts.value),
                headers,
            ))
            at = parts.end
        if at != stop:
            raise _malformed(at - <Bytes>view.buf)
    finally:
        PyBuffer_Release(&view)
    return records


def newest_keys(
    payload,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    dict newest not None,
):
    """Note in `newest` the offset of each record that has a key."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Bytes at, stop
    cdef Py_ssize_t index
    _lend(payload, &view, start, end)
    try:
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        for index in range(count):
            if not _take_record(at, stop, &parts):
                raise _malformed(at - <Bytes>view.buf)
            if not parts.key.null:
                newest[_bytes_of(&parts.key)] = add_i64(base_offset, parts.offset_delta)
            at = parts.end
        if at != stop:
            raise _malformed(at - <Bytes>view.buf)
    finally:
        PyBuffer_Release(&view)


def keep_newest(
    payload,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    dict newest not None,
    *,
    bint drop_tombstones,
):
    """(payload of the records kept, how many, their largest timestamp or -1)."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Bytes at, stop
    cdef Py_ssize_t index, size
    cdef Py_ssize_t used = 0
    cdef Py_ssize_t records = 0
    cdef int64_t offset
    cdef int64_t timestamp_max = -1
    cdef bytearray kept = bytearray()
    _lend(payload, &view, start, end)
    try:
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        PyByteArray_Resize(kept, end - start)
        for index in range(count):
            if not _take_record(at, stop, &parts):
                raise _malformed(at - <Bytes>view.buf)
            offset = add_i64(base_offset, parts.offset_delta)
            if (
                not parts.key.null
                and not (drop_tombstones and parts.value.null)
                and newest.get(_bytes_of(&parts.key), offset) <= offset
            ):
                size = parts.end - at
                memcpy(PyByteArray_AS_STRING(kept) + used, at, size)
                used += size
                records += 1
                timestamp_max = max(
                    timestamp_max, add_i64(base_timestamp, parts.timestamp_delta))
            at = parts.end
        if at != stop:
            raise _malformed(at - <Bytes>view.buf)
        PyByteArray_Resize(kept, used)
    finally:
        PyBuffer_Release(&view)
    return kept, records, timestamp_max


cdef Py_ssize_t _shifted_bytes(Bytes at, Bytes end, Py_ssize_t count, int64_t later) noexcept nogil:
    """Bytes the records take with other timestamps: 0 without a tombstone, -1 if malformed."""
    cdef Parts parts
    cdef Bytes rest
    cdef int64_t body, delta
    cdef Py_ssize_t index
    cdef Py_ssize_t size = 0
    cdef bint tombstones = False
    for index in range(count):
        if not _take_record(at, end, &parts):
            return -1
        tombstones |= parts.value.null
        rest = take_varint(take_varint(at, end, &body) + 1, parts.end, &delta)
        body = 1 + varint_bytes(add_i64(delta, later)) + (parts.end - rest)
        size += varint_bytes(body) + body
        at = parts.end
    if at != end:
        return -1
    return size if tombstones else 0


cdef void _write_shifted(
    unsigned char* out, Bytes at, Bytes end, Py_ssize_t count, int64_t later
) noexcept nogil:
    """Every record has been taken once before: none is malformed."""
    cdef Bytes body, rest, record_end
    cdef int64_t length, delta
    cdef Py_ssize_t index
    for index in range(count):
        body = take_varint(at, end, &length)
        record_end = body + length
        rest = take_varint(body + 1, record_end, &delta)
        delta = add_i64(delta, later)
        out = put_varint(out, 1 + varint_bytes(delta) + (record_end - rest))
        out[0] = body[0]
        out = put_varint(out + 1, delta)
        memcpy(out, rest, record_end - rest)
        out += record_end - rest
        at = record_end


def shift_tombstones(
    payload, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t later
):
    """The payload with every timestamp delta `later` larger; None if no record is a tombstone."""
    cdef Py_buffer view
    cdef Bytes at, stop
    cdef Py_ssize_t size
    cdef bytearray shifted
    _lend(payload, &view, start, end)
    try:
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        size = _shifted_bytes(at, stop, count, later)
        if size < 0:
            raise _malformed(start)
        if size == 0:
            return None
        shifted = bytearray()
        PyByteArray_Resize(shifted, size)
        _write_shifted(
            <unsigned char*>PyByteArray_AS_STRING(shifted), at, stop, count, later)
        return shifted
    finally:
        PyBuffer_Release(&view)
