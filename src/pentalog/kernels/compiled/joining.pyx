"""Several batches made one; the twin is in `pure/joining.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from pentalog.kernels.compiled.wire cimport (
    add_i64,
    crc32c_of,
    crc32c_prepare,
    i16_at,
    i32_at,
    i64_at,
    put_i16,
    put_i64,
    put_u32,
    put_varint,
    subtract_i64,
    take_varint,
    varint_bytes,
)

from pentalog.kernels.facts import Malformed

crc32c_prepare()

ctypedef const unsigned char* Bytes

cdef enum:
    HEADER_BYTES = 61
    FRAMING_BYTES = 12
    I32_MAX = 0x7FFFFFFF
    SOUND = 0
    NO_BATCH = 1
    NO_END = 2
    NO_RECORDS = 3

cdef struct Record:
    unsigned char attributes
    int64_t timestamp_delta
    int64_t offset_delta
    Bytes rest
    Bytes end


cdef int _check(Bytes at, Bytes end) noexcept nogil:
    """What is wrong with the header of a batch."""
    cdef int64_t length
    if end - at < HEADER_BYTES or at[16] != 2 or at[22] & 7:
        return NO_BATCH
    length = i32_at(at + 8)
    if length < HEADER_BYTES - FRAMING_BYTES or length > end - at - FRAMING_BYTES:
        return NO_END
    if i32_at(at + 23) < 0 or i32_at(at + 57) < 0:
        return NO_RECORDS
    return SOUND


cdef inline bint _take(Bytes at, Bytes end, int64_t last, Record* record) noexcept nogil:
    cdef int64_t length
    at = take_varint(at, end, &length)
    if at == NULL or length < 1 or length > end - at:
        return False
    record.end = end = at + length
    record.attributes = at[0]
    at = take_varint(at + 1, end, &record.timestamp_delta)
    if at == NULL:
        return False
    at = take_varint(at, end, &record.offset_delta)
    if at == NULL or record.offset_delta < 0 or record.offset_delta > last:
        return False
    record.rest = at
    return True


cdef inline int64_t _body(Record* record, int64_t offset, int64_t later) noexcept nogil:
    return (
        1
        + varint_bytes(add_i64(record.timestamp_delta, later))
        + varint_bytes(record.offset_delta + offset)
        + (record.end - record.rest)
    )


cdef int64_t _measure(Bytes batch, Bytes end, int64_t offset, int64_t later) noexcept nogil:
    """Bytes its records take behind others; -1 if they are malformed."""
    cdef Record record
    cdef Bytes at = batch + HEADER_BYTES
    cdef int64_t last = i32_at(batch + 23)
    cdef int64_t left = i32_at(batch + 57)
    cdef int64_t size = 0
    cdef int64_t body
    while left > 0:
        if not _take(at, end, last, &record):
            return -1
        body = _body(&record, offset, later)
        size += varint_bytes(body) + body
        at = record.end
        left -= 1
    return size if at == end else -1


cdef unsigned char* _write(
    unsigned char* out, Bytes batch, Bytes end, int64_t offset, int64_t later
) noexcept nogil:
    cdef Record record
    cdef Bytes at = batch + HEADER_BYTES
    cdef int64_t last = i32_at(batch + 23)
    cdef int64_t left = i32_at(batch + 57)
    while left > 0:
        if not _take(at, end, last, &record):
            break
        out = put_varint(out, _body(&record, offset, later))
        out[0] = record.attributes
        out = put_varint(out + 1, add_i64(record.timestamp_delta, later))
        out = put_varint(out, record.offset_delta + offset)
        memcpy(out, record.rest, record.end - record.rest)
        out += record.end - record.rest
        at = record.end
        left -= 1
    return out


cdef int _fit(
    Bytes first, Bytes end, int64_t bytes_max, int64_t* size, int64_t* offsets, Bytes* stop
) noexcept nogil:
    """How many bytes the batches that fit take, with the header; what is wrong with one."""
    cdef Bytes at = first
    cdef Bytes behind
    cdef int64_t more, last
    cdef int flaw
    size[0] = HEADER_BYTES
    offsets[0] = 0
    while at < end:
        flaw = _check(at, end)
        if flaw:
            return flaw
        behind = at + i32_at(at + 8) + FRAMING_BYTES
        last = i32_at(at + 23)
        if i16_at(at + 21) != i16_at(first + 21) or offsets[0] + last > I32_MAX:
            break
        more = _measure(
            at, behind, offsets[0], subtract_i64(i64_at(at + 27), i64_at(first + 27))
        )
        if more < 0:
            return NO_RECORDS
        if size[0] + more > (bytes_max if offsets[0] else I32_MAX):
            if not offsets[0]:
                return NO_RECORDS
            break
        size[0] += more
        offsets[0] += last + 1
        at = behind
    stop[0] = at
    return SOUND


cdef void _fill(
    unsigned char* out, Bytes first, Bytes stop, int64_t size, int64_t offsets
) noexcept nogil:
    cdef unsigned char* at = out + HEADER_BYTES
    cdef Bytes batch = first
    cdef Bytes behind
    cdef int64_t offset = 0
    cdef int64_t records = 0
    cdef int64_t base = i64_at(first + 27)
    cdef int64_t top = i64_at(first + 35)
    while batch < stop:
        behind = batch + i32_at(batch + 8) + FRAMING_BYTES
        at = _write(at, batch, behind, offset, subtract_i64(i64_at(batch + 27), base))
        if i64_at(batch + 35) > top:
            top = i64_at(batch + 35)
        records += i32_at(batch + 57)
        offset += <int64_t>i32_at(batch + 23) + 1
        batch = behind
    put_i64(out, 0)
    put_u32(out + 8, <int32_t>(size - FRAMING_BYTES))
    put_u32(out + 12, <int32_t>-1)
    out[16] = 2
    put_i16(out + 21, i16_at(first + 21))
    put_u32(out + 23, <int32_t>(offsets - 1))
    put_i64(out + 27, base)
    put_i64(out + 35, top)
    put_i64(out + 43, -1)
    put_i16(out + 51, -1)
    put_u32(out + 53, <int32_t>-1)
    put_u32(out + 57, <int32_t>records)
    put_u32(out + 17, crc32c_of(out + 21, size - 21, 0))


def join_batches(batches, Py_ssize_t start, Py_ssize_t end, Py_ssize_t bytes_max):
    """(one batch, where the next one begins) of as many as fit into `bytes_max`."""
    cdef Py_buffer view
    cdef Bytes first
    cdef Bytes stop = NULL
    cdef int64_t size, offsets
    cdef int flaw
    cdef bytearray out
    PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start < end <= view.len:
            raise ValueError(f"range {start}..{end} is not inside a buffer of {view.len} bytes")
        first = <Bytes>view.buf + start
        flaw = _fit(first, <Bytes>view.buf + end, bytes_max, &size, &offsets, &stop)
        if flaw == NO_BATCH:
            raise Malformed("not an uncompressed batch of format 2")
        if flaw == NO_END:
            raise Malformed("a batch does not end where it says")
        if flaw:
            raise Malformed("the records of a batch are malformed")
        out = bytearray()
        PyByteArray_Resize(out, size)
        _fill(<unsigned char*>PyByteArray_AS_STRING(out), first, stop, size, offsets)
        return out, stop - <Bytes>view.buf
    finally:
        PyBuffer_Release(&view)
