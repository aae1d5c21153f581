"""Walks over the records of batches; the twin is `pure/walks.py`."""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport INT64_MAX, int64_t

from pentalog.kernels.compiled.checks cimport (
    APPEND_TIME,
    COUNT,
    FRAMING_BYTES,
    HEADER_BYTES,
    I32_MAX,
    NO_FLAW,
    PRODUCED,
)
from pentalog.kernels.compiled.wire cimport (
    add_i64,
    crc32c_of,
    crc32c_prepare,
    i16_at,
    i32_at,
    i64_at,
    put_i64,
    put_u32,
    step_record,
    stepped,
    walk_records,
    walked,
)

from pentalog.kernels.facts import Malformed

cdef enum:
    CODEC_MASK = 7

cdef Py_ssize_t UNLOCK_BYTES = 1 << 20

ctypedef const unsigned char* Bytes

crc32c_prepare()


cdef int _lend(object data, Py_buffer* view, int flags, Py_ssize_t start, Py_ssize_t end) except -1:
    """Borrow the bytes of `data`; to be released if this returns."""
    PyObject_GetBuffer(data, view, flags)
    if 0 <= start <= end <= view.len:
        return 0
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(view)
    raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")


cdef object _malformed(Py_ssize_t position):
    return Malformed(f"the records of the batch are malformed at byte {position}")


def check_records(
    payload,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t offset_last=PRODUCED,
):
    """(flaw, null keys, smallest timestamp delta, largest) of an uncompressed payload."""
    cdef Py_buffer view
    cdef walked found
    cdef int flaw
    cdef Bytes at
    _lend(payload, &view, PyBUF_SIMPLE, start, end)
    try:
        if count < 0:
            return COUNT, 0, 0, 0
        at = <Bytes>view.buf
        if end - start > UNLOCK_BYTES:
            with nogil:
                flaw = walk_records(at + start, at + end, count, offset_last, &found)
        else:
            flaw = walk_records(at + start, at + end, count, offset_last, &found)
    finally:
        PyBuffer_Release(&view)
    if flaw:
        return flaw, 0, 0, 0
    return NO_FLAW, found.null_keys, found.delta_min, found.delta_max


cdef Py_ssize_t _readable(
    Bytes data, Py_ssize_t position, Py_ssize_t end, int* attributes
) noexcept nogil:
    cdef Bytes at
    cdef int64_t size, base, delta, count
    cdef walked found
    while end - position >= HEADER_BYTES:
        at = data + position
        size = <int64_t>i32_at(at + 8) + FRAMING_BYTES
        if at[16] != 2 or size < HEADER_BYTES or size > I32_MAX or size > end - position:
            break
        base = i64_at(at)
        delta = i32_at(at + 23)
        count = i32_at(at + 57)
        if delta < 0 or base < 0 or base >= INT64_MAX - delta or count < 0:
            break
        if not at[22] & CODEC_MASK and walk_records(
            at + HEADER_BYTES, at + size, count, delta, &found
        ):
            break
        attributes[0] |= i16_at(at + 21) & 0xFFFF
        position += size
    return position


def readable_batches(data, Py_ssize_t start, Py_ssize_t end):
    """(attribute words of the batches that can be read, or-ed; where the first other starts)."""
    cdef Py_buffer view
    cdef Py_ssize_t position
    cdef int attributes = 0
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        if end - start > UNLOCK_BYTES:
            with nogil:
                position = _readable(<Bytes>view.buf, start, end, &attributes)
        else:
            position = _readable(<Bytes>view.buf, start, end, &attributes)
    finally:
        PyBuffer_Release(&view)
    return attributes, position


def stamp_newest_time(data, Py_ssize_t start, Py_ssize_t end):
    """Have the headers of checked, uncompressed batches name their newest record, in place."""
    cdef Py_buffer view
    cdef unsigned char* at
    cdef Py_ssize_t position = start
    cdef int64_t size, timestamp
    cdef walked found
    _lend(data, &view, PyBUF_WRITABLE, start, end)
    try:
        while position < end:
            at = <unsigned char*>view.buf + position
            size = 0
            if end - position >= HEADER_BYTES:
                size = <int64_t>i32_at(at + 8) + FRAMING_BYTES
            if size < HEADER_BYTES or size > end - position:
                raise ValueError(f"no whole batch at {position}: check the batches before")
            if not at[22] & (CODEC_MASK | APPEND_TIME) and walk_records(
                at + HEADER_BYTES, at + size, i32_at(at + 57), PRODUCED, &found
            ) == NO_FLAW:
                timestamp = max(<int64_t>-1, add_i64(i64_at(at + 27), found.delta_max))
                if timestamp != i64_at(at + 35):
                    put_i64(at + 35, timestamp)
                    put_u32(at + 17, crc32c_of(at + 21, size - 21, 0))
            position += size
    finally:
        PyBuffer_Release(&view)


cdef struct Wanted:
    int64_t base_offset
    int64_t base_timestamp
    int64_t offset_min
    int64_t timestamp_min
    int64_t offset
    int64_t timestamp


cdef Bytes _find_time(Bytes at, Bytes end, Py_ssize_t count, Wanted* wanted) noexcept nogil:
    """NULL, or where a record is malformed."""
    cdef stepped record
    cdef Bytes behind
    cdef int64_t before = -1
    cdef Py_ssize_t index
    for index in range(count):
        behind = step_record(at, end, &record)
        if behind == NULL or record.offset_delta <= before:
            return at
        before = record.offset_delta
        wanted.offset = add_i64(wanted.base_offset, record.offset_delta)
        wanted.timestamp = add_i64(wanted.base_timestamp, record.timestamp_delta)
        if wanted.offset >= wanted.offset_min and wanted.timestamp >= wanted.timestamp_min:
            return NULL
        at = behind
    wanted.offset = wanted.timestamp = -1
    return NULL


def find_time(
    payload,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    *,
    int64_t base_offset,
    int64_t base_timestamp,
    int64_t offset_min,
    int64_t timestamp_min,
):
    """(offset, timestamp) of the first record from an offset and a time on; (-1, -1) without."""
    cdef Py_buffer view
    cdef Wanted wanted
    cdef Bytes at, malformed
    wanted.base_offset, wanted.base_timestamp = base_offset, base_timestamp
    wanted.offset_min, wanted.timestamp_min = offset_min, timestamp_min
    wanted.offset = wanted.timestamp = -1
    _lend(payload, &view, PyBUF_SIMPLE, start, end)
    try:
        at = <Bytes>view.buf
        with nogil:
            malformed = _find_time(at + start, at + end, count, &wanted)
        if malformed != NULL:
            raise _malformed(malformed - at)
    finally:
        PyBuffer_Release(&view)
    return wanted.offset, wanted.timestamp


cdef struct Cut:
    int64_t delta_min
    int64_t bytes_max
    Bytes start
    Bytes end
    int64_t count
    int64_t last


cdef Bytes _cut(Bytes at, Bytes end, Py_ssize_t count, Cut* cut) noexcept nogil:
    """NULL, or where a record is malformed."""
    cdef stepped record
    cdef Bytes behind
    cdef int64_t before = -1
    cdef Py_ssize_t index
    for index in range(count):
        behind = step_record(at, end, &record)
        if behind == NULL or record.offset_delta <= before:
            return at
        before = record.offset_delta
        if cut.count or record.offset_delta >= cut.delta_min:
            if not cut.count:
                cut.start = at
            elif behind - cut.start > cut.bytes_max:
                return NULL
            cut.count += 1
            cut.end = behind
            cut.last = record.offset_delta
        at = behind
    return NULL


def cut_records(
    payload,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    *,
    int64_t delta_min,
    int64_t bytes_max,
):
    """(start, end, count, last offset delta) of the records from an offset delta on."""
    cdef Py_buffer view
    cdef Cut cut
    cdef Bytes at, malformed
    cut.delta_min, cut.bytes_max, cut.count, cut.last = delta_min, bytes_max, 0, -1
    _lend(payload, &view, PyBUF_SIMPLE, start, end)
    try:
        at = <Bytes>view.buf
        cut.start = cut.end = at + end
        with nogil:
            malformed = _cut(at + start, at + end, count, &cut)
        if malformed != NULL:
            raise _malformed(malformed - at)
        return cut.start - at, cut.end - at, cut.count, cut.last
    finally:
        PyBuffer_Release(&view)


def refused_records(
    payload,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    *,
    int64_t base_timestamp,
    int64_t timestamp_min,
    int64_t timestamp_max,
    bint keyed,
    Py_ssize_t most,
):
    """(index, timestamp) of records outside a range of times, or without a key if `keyed`."""
    cdef Py_buffer view
    cdef stepped record
    cdef Bytes at, behind, stop
    cdef int64_t timestamp
    cdef int64_t before = -1
    cdef Py_ssize_t index
    cdef list refused = []
    _lend(payload, &view, PyBUF_SIMPLE, start, end)
    try:
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        for index in range(count):
            if len(refused) >= most:
                break
            behind = step_record(at, stop, &record)
            if behind == NULL or record.offset_delta <= before:
                raise _malformed(at - <Bytes>view.buf)
            before = record.offset_delta
            timestamp = add_i64(base_timestamp, record.timestamp_delta)
            if keyed and record.key_null or timestamp != -1 and not (
                timestamp_min <= timestamp <= timestamp_max
            ):
                refused.append((index, timestamp))
            at = behind
    finally:
        PyBuffer_Release(&view)
    return refused
