"""Fluvio's batches to the log's and back; the twin, and the layouts, are in `pure/fluvio.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcmp, memcpy

from pentalog.kernels.compiled.wire cimport (
    add_i64,
    crc32c_of,
    crc32c_prepare,
    i32_at,
    i64_at,
    put_i16,
    put_i64,
    put_u32,
    put_varint,
    take_varint,
    varint_bytes,
)

from pentalog.kernels.facts import Malformed

crc32c_prepare()

ctypedef const unsigned char* Bytes

cdef enum:
    UNLOCK_BYTES = 262144
    LOG_HEADER_BYTES = 61
    HEADER_BYTES = 57
    FRAMING_BYTES = 12
    RECORD_BYTES_MIN = 7
    APPEND_TIME = 0x08
    SCHEMA = 0x10
    ROOM_BYTES_MIN = 4096
    # Everything of one record and of one batch around it that is not key or value.
    FRAME_BYTES_MAX = 128
    NO_SCHEMA = -1

cdef const char* SCHEMA_NAME = "fluvio.schema_id"
cdef Py_ssize_t SCHEMA_NAME_BYTES = 16

cdef struct Parts:
    int64_t timestamp_delta
    int64_t offset_delta
    Bytes key
    int64_t key_size
    Bytes value
    int64_t value_size
    Bytes end


cdef inline bint _take_theirs(Bytes at, Bytes end, Parts* parts) noexcept nogil:
    """One of Fluvio's records."""
    cdef int64_t length, number
    cdef int tag
    at = take_varint(at, end, &length)
    if at == NULL or length < 1 or length > end - at:
        return False
    parts.end = end = at + length
    at = take_varint(at + 1, end, &parts.timestamp_delta)
    if at == NULL:
        return False
    at = take_varint(at, end, &number)
    if at == NULL or at >= end or at[0] > 1:
        return False
    parts.key_size = -1
    tag = at[0]
    at += 1
    if tag == 1:
        at = take_varint(at, end, &parts.key_size)
        if at == NULL or parts.key_size < 0 or parts.key_size > end - at:
            return False
        parts.key = at
        at += parts.key_size
    at = take_varint(at, end, &parts.value_size)
    if at == NULL or parts.value_size < 0 or parts.value_size > end - at:
        return False
    parts.value = at
    at = take_varint(at + parts.value_size, end, &number)
    return at == end


cdef inline int64_t _our_body(Parts* parts, int64_t index, Py_ssize_t headers) noexcept nogil:
    cdef int64_t body = 1 + varint_bytes(parts.timestamp_delta) + varint_bytes(index)
    body += varint_bytes(parts.key_size)
    if parts.key_size > 0:
        body += parts.key_size
    return body + varint_bytes(parts.value_size) + parts.value_size + headers


cdef int64_t _measure(
    Bytes at, Bytes end, int64_t count, Py_ssize_t headers, int64_t* records, int64_t* delta_max
) noexcept nogil:
    """Bytes the records take in the log; -1 if they are malformed or not `count` (-1: any)."""
    cdef Parts parts
    cdef int64_t size = 0
    cdef int64_t body
    records[0] = 0
    delta_max[0] = 0
    while at < end:
        if records[0] == count or not _take_theirs(at, end, &parts):
            return -1
        body = _our_body(&parts, records[0], headers)
        size += varint_bytes(body) + body
        if records[0] == 0 or parts.timestamp_delta > delta_max[0]:
            delta_max[0] = parts.timestamp_delta
        records[0] += 1
        at = parts.end
    if records[0] == 0 or (count >= 0 and records[0] != count):
        return -1
    return size


cdef void _translate(
    unsigned char* out, Bytes at, Bytes end, Bytes headers, Py_ssize_t headers_size
) noexcept nogil:
    cdef Parts parts
    cdef int64_t index = 0
    while at < end:
        if not _take_theirs(at, end, &parts):
            return
        out = put_varint(out, _our_body(&parts, index, headers_size))
        out[0] = 0
        out = put_varint(out + 1, parts.timestamp_delta)
        out = put_varint(out, index)
        out = put_varint(out, parts.key_size)
        if parts.key_size > 0:
            memcpy(out, parts.key, parts.key_size)
            out += parts.key_size
        out = put_varint(out, parts.value_size)
        memcpy(out, parts.value, parts.value_size)
        out += parts.value_size
        memcpy(out, headers, headers_size)
        out += headers_size
        index += 1
        at = parts.end


def fluvio_to_log(
    header,
    Py_ssize_t position,
    section,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    bint counted,
    int attributes,
    bytes headers not None,
):
    """A whole batch of the log, uncompressed, from one of Fluvio's."""
    cdef Py_buffer head, body
    cdef Bytes at, stop, given
    cdef int64_t count = -1
    cdef int64_t records, delta_max, size, base_timestamp
    cdef bytearray batch
    cdef unsigned char* out
    cdef Bytes given_headers
    cdef Py_ssize_t headers_size
    cdef uint32_t crc
    PyObject_GetBuffer(header, &head, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(section, &body, PyBUF_SIMPLE)
        try:
            if not (0 <= position <= head.len - HEADER_BYTES and 0 <= start <= end <= body.len):
                raise ValueError("a range is not inside its buffer")
            given = <Bytes>head.buf + position
            at = <Bytes>body.buf + start
            stop = <Bytes>body.buf + end
            if counted:
                if stop - at < 4:
                    raise Malformed("the records of the batch end before their number")
                count = i32_at(at)
                at += 4
                if count < 1 or count > (stop - at) // RECORD_BYTES_MIN:
                    raise Malformed("the number of records cannot be that of this batch")
            given_headers = <Bytes><char*>headers
            headers_size = len(headers)
            # Of much, others may run meanwhile: this is called on lanes.
            if stop - at > UNLOCK_BYTES:
                with nogil:
                    size = _measure(at, stop, count, headers_size, &records, &delta_max)
            else:
                size = _measure(at, stop, count, headers_size, &records, &delta_max)
            if size < 0 or size > 0x7FFFFFFF - LOG_HEADER_BYTES or records > 0x7FFFFFFF:
                raise Malformed("the records of the batch are malformed")
            batch = bytearray()
            PyByteArray_Resize(batch, LOG_HEADER_BYTES + size)
            out = <unsigned char*>PyByteArray_AS_STRING(batch)
            base_timestamp = i64_at(given + 27)
            put_i64(out, 0)
            put_u32(out + 8, <int32_t>(size + LOG_HEADER_BYTES - FRAMING_BYTES))
            put_u32(out + 12, <int32_t>-1)
            out[16] = 2
            put_i16(out + 21, attributes)
            put_u32(out + 23, <int32_t>(records - 1))
            put_i64(out + 27, base_timestamp)
            put_i64(out + 35, add_i64(base_timestamp, delta_max))
            put_i64(out + 43, -1)
            put_i16(out + 51, -1)
            put_u32(out + 53, <int32_t>-1)
            put_u32(out + 57, <int32_t>records)
            if stop - at > UNLOCK_BYTES:
                with nogil:
                    _translate(out + LOG_HEADER_BYTES, at, stop, given_headers, headers_size)
                    crc = crc32c_of(out + 21, LOG_HEADER_BYTES + size - 21, 0)
            else:
                _translate(out + LOG_HEADER_BYTES, at, stop, given_headers, headers_size)
                crc = crc32c_of(out + 21, LOG_HEADER_BYTES + size - 21, 0)
            put_u32(out + 17, crc)
        finally:
            PyBuffer_Release(&body)
    finally:
        PyBuffer_Release(&head)
    return batch


cdef inline Bytes _take_chunk(Bytes at, Bytes end, Bytes* start, int64_t* size) noexcept nogil:
    at = take_varint(at, end, size)
    if at == NULL:
        return NULL
    start[0] = at
    if size[0] < 0:
        size[0] = -1
        return at
    if size[0] > end - at:
        return NULL
    return at + size[0]


cdef inline int64_t _schema_of(Bytes value, int64_t size) noexcept nogil:
    """The number a header's text spells, `NO_SCHEMA` if it is none of 32 bits."""
    cdef int64_t number = 0
    cdef int64_t index
    if size < 1 or size > 10:
        return NO_SCHEMA
    for index in range(size):
        if value[index] < 48 or value[index] > 57:
            return NO_SCHEMA
        number = number * 10 + value[index] - 48
    if number >> 32:
        return NO_SCHEMA
    return number


cdef inline bint _take_ours(Bytes at, Bytes end, Parts* parts, int64_t* schema) noexcept nogil:
    """One record of the log, and the schema its headers name."""
    cdef int64_t length, headers, index, name_size, value_size
    cdef Bytes name
    cdef Bytes value
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
    at = _take_chunk(at, end, &parts.key, &parts.key_size)
    if at == NULL:
        return False
    at = _take_chunk(at, end, &parts.value, &parts.value_size)
    if at == NULL:
        return False
    if parts.value_size < 0:
        parts.value_size = 0
    at = take_varint(at, end, &headers)
    if at == NULL or headers < 0 or headers > end - at:
        return False
    schema[0] = NO_SCHEMA
    for index in range(headers):
        at = _take_chunk(at, end, &name, &name_size)
        if at == NULL or name_size < 0:
            return False
        at = _take_chunk(at, end, &value, &value_size)
        if at == NULL:
            return False
        if name_size == SCHEMA_NAME_BYTES and memcmp(name, SCHEMA_NAME, name_size) == 0:
            schema[0] = _schema_of(value, value_size)
    return at == end


cdef class _Growing:
    """The answer being built: batches that are done, and the one that is open."""

    cdef bytearray out
    cdef Py_ssize_t used
    cdef Py_ssize_t batch
    cdef int64_t records
    cdef int64_t expected
    cdef int64_t schema

    def __cinit__(self, Py_ssize_t room):
        self.out = bytearray()
        PyByteArray_Resize(self.out, room)
        self.used = 0
        self.batch = -1

    cdef unsigned char* room(self, Py_ssize_t size) except NULL:
        if size > len(self.out) - self.used:
            PyByteArray_Resize(self.out, 2 * (self.used + size))
        return <unsigned char*>PyByteArray_AS_STRING(self.out) + self.used

    cdef int begin(
        self, int64_t offset, int64_t schema, int64_t timestamp, int64_t timestamp_max
    ) except -1:
        cdef unsigned char* at = self.room(FRAME_BYTES_MAX)
        self.batch = self.used
        self.records = 0
        self.schema = schema
        put_i64(at, offset)
        put_u32(at + 12, <int32_t>-1)
        at[16] = 2
        put_i16(at + 21, SCHEMA if schema >= 0 else 0)
        put_i64(at + 27, timestamp)
        put_i64(at + 35, timestamp_max)
        put_i64(at + 43, -1)
        put_i16(at + 51, -1)
        put_u32(at + 53, <int32_t>-1)
        self.used += HEADER_BYTES + 4
        if schema >= 0:
            put_u32(at + HEADER_BYTES, <int32_t>schema)
            self.used += 4
        return 0

    cdef int put(self, Parts* parts, int64_t timestamp_delta) except -1:
        cdef int64_t body = 1 + varint_bytes(timestamp_delta) + varint_bytes(self.records) + 1
        cdef int64_t key_size = parts.key_size if parts.key_size > 0 else 0
        cdef unsigned char* at = self.room(
            FRAME_BYTES_MAX + key_size + parts.value_size)
        cdef unsigned char* first = at
        if parts.key_size >= 0:
            body += varint_bytes(key_size) + key_size
        body += varint_bytes(parts.value_size) + parts.value_size + 1
        at = put_varint(at, body)
        at[0] = 0
        at = put_varint(at + 1, timestamp_delta)
        at = put_varint(at, self.records)
        at[0] = parts.key_size >= 0
        at += 1
        if parts.key_size >= 0:
            at = put_varint(at, key_size)
            memcpy(at, parts.key, key_size)
            at += key_size
        at = put_varint(at, parts.value_size)
        memcpy(at, parts.value, parts.value_size)
        at += parts.value_size
        at[0] = 0
        self.used += at + 1 - first
        self.records += 1
        return 0

    cdef int close(self) except -1:
        cdef unsigned char* at
        cdef Py_ssize_t size
        if self.batch < 0:
            return 0
        at = <unsigned char*>PyByteArray_AS_STRING(self.out) + self.batch
        size = self.used - self.batch
        put_u32(at + 8, <int32_t>(size - FRAMING_BYTES))
        put_u32(at + 23, <int32_t>(self.records - 1))
        put_u32(at + HEADER_BYTES + (4 if self.schema >= 0 else 0), <int32_t>self.records)
        put_u32(at + 17, crc32c_of(at + 21, size - 21, 0))
        self.batch = -1
        return 0


def log_to_fluvio(batches, Py_ssize_t start, Py_ssize_t end, int64_t offset):
    """(Fluvio's batches, how many records) of the records from `offset` on."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Bytes at, stop, header
    cdef int64_t base_offset, base_timestamp, timestamp_max, here, schema, total
    cdef int32_t length, count, index
    cdef bint stamped
    cdef _Growing growing
    PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError(f"range {start}..{end} is not inside a buffer of {view.len} bytes")
        growing = _Growing((end - start) + (end - start) // 16 + ROOM_BYTES_MIN)
        total = 0
        header = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        while header < stop:
            if stop - header < LOG_HEADER_BYTES or header[16] != 2 or header[22] & 7:
                raise Malformed("not an uncompressed batch of format 2")
            length = i32_at(header + 8)
            if length < LOG_HEADER_BYTES - FRAMING_BYTES or length > stop - header - FRAMING_BYTES:
                raise Malformed("a batch does not end where it says")
            base_offset = i64_at(header)
            timestamp_max = i64_at(header + 35)
            stamped = header[22] & APPEND_TIME
            base_timestamp = timestamp_max if stamped else i64_at(header + 27)
            count = i32_at(header + 57)
            at = header + LOG_HEADER_BYTES
            header += <Py_ssize_t>length + FRAMING_BYTES
            for index in range(count):
                if not _take_ours(at, header, &parts, &schema):
                    raise Malformed("the records of a batch are malformed")
                at = parts.end
                here = add_i64(base_offset, parts.offset_delta)
                if here < offset:
                    continue
                if growing.batch < 0 or growing.expected != here or growing.schema != schema:
                    growing.close()
                    growing.begin(here, schema, base_timestamp, timestamp_max)
                growing.put(&parts, 0 if stamped else parts.timestamp_delta)
                growing.expected = add_i64(here, 1)
                total += 1
            if at != header:
                raise Malformed("the records of a batch are malformed")
            growing.close()
        PyByteArray_Resize(growing.out, growing.used)
    finally:
        PyBuffer_Release(&view)
    return growing.out, total


cdef Bytes _end_of(Bytes at, Bytes stop, int64_t count) noexcept nogil:
    """Behind so many records; NULL if they are not there."""
    cdef Parts parts
    while count > 0:
        if not _take_theirs(at, stop, &parts):
            return NULL
        at = parts.end
        count -= 1
    return at


def fluvio_end(data, Py_ssize_t start, Py_ssize_t end, int64_t count):
    """Where `count` of Fluvio's records end that start here; -1 if they do not."""
    cdef Py_buffer view
    cdef Bytes at, stop
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError(f"range {start}..{end} is not inside a buffer of {view.len} bytes")
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        if stop - at > UNLOCK_BYTES:
            with nogil:
                at = _end_of(at, stop, count)
        else:
            at = _end_of(at, stop, count)
        return -1 if at == NULL else at - <Bytes>view.buf
    finally:
        PyBuffer_Release(&view)
