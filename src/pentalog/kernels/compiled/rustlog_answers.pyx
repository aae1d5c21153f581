"""Answers of the RustLog door; the twin, and the layout, are in `pure/rustlog_answers.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pentalog.kernels.compiled.checks cimport FRAMING_BYTES, HEADER_BYTES, frame_flaw
from pentalog.kernels.compiled.wire cimport (
    add_i64,
    i32_at,
    i64_at,
    put_i64,
    put_u32,
    take_varint,
)

from pentalog.kernels.facts import Malformed
from pentalog.kernels.rustlog_facts import RustlogFetched

ctypedef const unsigned char* Bytes

cdef enum:
    PRODUCE = 1
    FETCH = 2
    BUDGET_PER_RECORD = 12
    APPEND_TIME = 0x08
    DIGITS_MAX = 20

cdef uint64_t TIMESTAMP_MS_MAX = 9223372036854775ULL
cdef object _make = tuple.__new__

cdef bytes _JSON_HEAD = b'{"type":"FetchResponse","records":['
cdef bytes _JSON_OFFSET = b'{"offset":'
cdef bytes _JSON_TIMESTAMP = b',"timestamp":'
cdef bytes _JSON_PAYLOAD = b',"payload":"'
cdef bytes _JSON_RECORD_END = b'"}'
cdef bytes _JSON_NEXT = b'],"next_offset":'
cdef bytes _JSON_ACK = b'{"type":"ProduceResponse","base_offset":'
cdef bytes _JSON_COUNT = b',"record_count":'

cdef uint16_t _pairs[4096]
cdef unsigned char _alphabet[64]



cdef void _prepare_base64():
    cdef bytes letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef int index
    cdef unsigned char pair[2]
    for index in range(64):
        _alphabet[index] = letters[index]
    for index in range(4096):
        pair[0] = _alphabet[index >> 6]
        pair[1] = _alphabet[index & 63]
        memcpy(&_pairs[index], pair, 2)


_prepare_base64()


cdef inline Py_ssize_t _base64_bytes(Py_ssize_t size) noexcept nogil:
    return (size + 2) // 3 * 4


cdef inline unsigned char* _put_base64(
    unsigned char* out, Bytes at, Py_ssize_t size
) noexcept nogil:
    cdef uint32_t word
    while size >= 3:
        word = <uint32_t>at[0] << 16 | <uint32_t>at[1] << 8 | at[2]
        memcpy(out, &_pairs[word >> 12], 2)
        memcpy(out + 2, &_pairs[word & 0xFFF], 2)
        at += 3
        out += 4
        size -= 3
    if size:
        word = <uint32_t>at[0] << 16
        if size == 2:
            word |= <uint32_t>at[1] << 8
        out[0] = _alphabet[word >> 18]
        out[1] = _alphabet[word >> 12 & 63]
        out[2] = _alphabet[word >> 6 & 63] if size == 2 else c"="
        out[3] = c"="
        out += 4
    return out


cdef inline Py_ssize_t _digits(uint64_t number) noexcept nogil:
    cdef Py_ssize_t size = 1
    while number > 9:
        number //= 10
        size += 1
    return size


cdef inline unsigned char* _put_number(unsigned char* out, uint64_t number) noexcept nogil:
    cdef Py_ssize_t size = _digits(number)
    cdef Py_ssize_t index
    for index in range(size - 1, -1, -1):
        out[index] = <unsigned char>(c"0" + number % 10)
        number //= 10
    return out + size


cdef inline unsigned char* _put_text(unsigned char* out, bytes text) noexcept:
    memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return out + PyBytes_GET_SIZE(text)


cdef int _lend(object data, Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except -1:
    """Borrow the bytes of `data`; to be released if this returns."""
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    if 0 <= start <= end <= view.len:
        return 0
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(view)
    raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")


def rustlog_acks(bytes counts not None, int64_t base_offset, *, bint json):
    """The frames of Produce replies, one per request."""
    cdef Py_ssize_t requests = PyBytes_GET_SIZE(counts) // 4
    cdef Py_ssize_t index, size
    cdef uint32_t count
    cdef const char* taken = PyBytes_AS_STRING(counts)
    cdef Py_ssize_t each = 17
    cdef unsigned char* at
    cdef unsigned char* start
    cdef bytearray out = bytearray()
    if base_offset < 0 or PyBytes_GET_SIZE(counts) % 4:
        raise ValueError("a base offset below 0, or counts that are no u32")
    if json:
        each = 4 + len(_JSON_ACK) + len(_JSON_COUNT) + 2 * DIGITS_MAX + 1
    PyByteArray_Resize(out, requests * each)
    start = at = <unsigned char*>PyByteArray_AS_STRING(out)
    for index in range(requests):
        memcpy(&count, taken + 4 * index, 4)
        if json:
            size = (
                len(_JSON_ACK) + _digits(base_offset) + len(_JSON_COUNT) + _digits(count) + 1)
            at = put_u32(at, <uint32_t>size)
            at = _put_text(at, _JSON_ACK)
            at = _put_number(at, base_offset)
            at = _put_text(at, _JSON_COUNT)
            at = _put_number(at, count)
            at[0] = c"}"
            at += 1
        else:
            at = put_u32(at, 13)
            at[0] = PRODUCE
            at = put_i64(at + 1, base_offset)
            at = put_u32(at, count)
        base_offset = add_i64(base_offset, count)
    size = at - start
    PyByteArray_Resize(out, size)
    return bytes(out)


cdef struct Walk:
    Bytes at
    Bytes end
    Bytes batch_end
    int64_t base_offset
    int64_t last_delta
    int64_t base_timestamp
    int64_t append_timestamp
    int64_t left
    int64_t offset
    int64_t timestamp
    Bytes value
    Py_ssize_t size


cdef int _next(Walk* walk) noexcept nogil:
    """1: a record, 0: the end, -1: the bytes are no sound batches."""
    cdef int64_t length, delta, key, value
    cdef Bytes at, end
    while walk.left == 0:
        if walk.batch_end != NULL:
            if walk.at != walk.batch_end:
                return -1
        if walk.at == walk.end:
            return 0
        at = walk.at
        if frame_flaw(at, walk.end - at) or walk.end - at < HEADER_BYTES or at[22] & 7:
            return -1
        walk.batch_end = at + FRAMING_BYTES + i32_at(at + 8)
        walk.base_offset = i64_at(at)
        walk.last_delta = i32_at(at + 23)
        walk.base_timestamp = i64_at(at + 27)
        walk.append_timestamp = i64_at(at + 35) if at[22] & APPEND_TIME else -1
        walk.left = i32_at(at + 57)
        if walk.left < 0:
            return -1
        walk.at = at + HEADER_BYTES
    at = take_varint(walk.at, walk.batch_end, &length)
    if at == NULL or length < 1 or length > walk.batch_end - at:
        return -1
    end = at + length
    at = take_varint(at + 1, end, &delta)
    if at == NULL:
        return -1
    walk.timestamp = walk.append_timestamp
    if walk.timestamp < 0:
        walk.timestamp = add_i64(walk.base_timestamp, delta)
    at = take_varint(at, end, &delta)
    if at == NULL or delta < 0 or delta > walk.last_delta:
        return -1
    walk.offset = add_i64(walk.base_offset, delta)
    at = take_varint(at, end, &key)
    if at == NULL or key > end - at:
        return -1
    if key > 0:
        at += key
    at = take_varint(at, end, &value)
    if at == NULL or value > end - at:
        return -1
    walk.value = at
    walk.size = value if value > 0 else 0
    walk.at = end
    walk.left -= 1
    return 1


cdef inline uint64_t _microseconds(int64_t timestamp_ms) noexcept nogil:
    if timestamp_ms <= 0:
        return 0
    return min(<uint64_t>timestamp_ms, TIMESTAMP_MS_MAX) * 1000


cdef inline Py_ssize_t _record_bytes(const Walk* walk, bint json) noexcept:
    if not json:
        return 4 + walk.size
    return (
        len(_JSON_OFFSET) + _digits(walk.offset) + len(_JSON_TIMESTAMP)
        + _digits(_microseconds(walk.timestamp)) + len(_JSON_PAYLOAD)
        + _base64_bytes(walk.size) + len(_JSON_RECORD_END)
    )


cdef inline unsigned char* _put_record(unsigned char* at, const Walk* walk, bint json) noexcept:
    if not json:
        at = put_u32(at, <uint32_t>walk.size)
        memcpy(at, walk.value, walk.size)
        return at + walk.size
    at = _put_text(at, _JSON_OFFSET)
    at = _put_number(at, walk.offset)
    at = _put_text(at, _JSON_TIMESTAMP)
    at = _put_number(at, _microseconds(walk.timestamp))
    at = _put_text(at, _JSON_PAYLOAD)
    at = _put_base64(at, walk.value, walk.size)
    return _put_text(at, _JSON_RECORD_END)


cdef inline void _begin(Walk* walk, Bytes at, Bytes end) noexcept nogil:
    walk.at = at
    walk.end = end
    walk.batch_end = NULL
    walk.left = 0


cdef struct Plan:
    int64_t records
    int64_t payload_bytes
    int64_t next_offset
    int64_t too_large
    Py_ssize_t size
    bint sound


cdef void _plan(
    Walk* walk,
    int64_t offset,
    int64_t end_offset,
    int64_t bytes_max,
    Py_ssize_t room,
    bint json,
    Plan* plan,
) noexcept:
    """Which records go into the reply; `plan.size` counts them and what separates them."""
    cdef int found
    cdef int64_t budget = bytes_max
    cdef Py_ssize_t size
    plan.records = plan.payload_bytes = plan.size = 0
    plan.too_large = -1
    plan.sound = True
    while True:
        found = _next(walk)
        if found <= 0:
            plan.sound = found == 0
            return
        if walk.offset < offset:
            continue
        if bytes_max <= 0 or walk.offset >= end_offset:
            return
        if plan.records and walk.size + BUDGET_PER_RECORD > budget:
            return
        size = _record_bytes(walk, json)
        if json and plan.records:
            size += 1
        if size > room - plan.size:
            if plan.records == 0:
                plan.too_large = walk.offset
            return
        budget -= walk.size + BUDGET_PER_RECORD
        plan.size += size
        plan.records += 1
        plan.payload_bytes += walk.size
        plan.next_offset = add_i64(walk.offset, 1)


def rustlog_fetched(
    batches,
    int64_t offset,
    *,
    int64_t end_offset,
    int64_t empty_offset,
    int64_t bytes_max,
    Py_ssize_t frame_bytes_max,
    bint json,
):
    """The Fetch reply with the records from `offset` on that both limits let in."""
    cdef Py_buffer view
    cdef Walk walk
    cdef Plan plan
    cdef Py_ssize_t fixed, size
    cdef unsigned char* at
    cdef int64_t left
    cdef bytes frame
    if offset < 0 or empty_offset < 0:
        raise ValueError("an offset below 0")
    fixed = len(_JSON_HEAD) + len(_JSON_NEXT) + DIGITS_MAX + 1 if json else 13
    PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
    try:
        plan.next_offset = empty_offset
        _begin(&walk, <Bytes>view.buf, <Bytes>view.buf + view.len)
        _plan(&walk, offset, end_offset, bytes_max, frame_bytes_max - fixed, json, &plan)
        if not plan.sound and plan.records == 0:
            raise Malformed(
                f"the batches are malformed at byte {walk.at - <Bytes>view.buf}")
        if json:
            fixed = len(_JSON_HEAD) + len(_JSON_NEXT) + _digits(plan.next_offset) + 1
        size = fixed + plan.size
        frame = PyBytes_FromStringAndSize(NULL, 4 + size)
        at = put_u32(<unsigned char*>PyBytes_AS_STRING(frame), <uint32_t>size)
        if json:
            at = _put_text(at, _JSON_HEAD)
        else:
            at[0] = FETCH
            at = put_u32(at + 1, <uint32_t>plan.records)
        _begin(&walk, <Bytes>view.buf, <Bytes>view.buf + view.len)
        left = plan.records
        while left and _next(&walk) > 0:
            if walk.offset < offset:
                continue
            at = _put_record(at, &walk, json)
            left -= 1
            if json and left:
                at[0] = c","
                at += 1
        if json:
            at = _put_text(at, _JSON_NEXT)
            at = _put_number(at, plan.next_offset)
            at[0] = c"}"
        else:
            put_i64(at, plan.next_offset)
        return _make(RustlogFetched, (
            frame, plan.records, plan.payload_bytes, plan.next_offset, plan.too_large))
    finally:
        PyBuffer_Release(&view)
