"""Record batches to Cursus batches; the twin is in `pure/cursus_pages.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from pentalog.kernels.compiled.checks cimport FRAMING_BYTES, HEADER_BYTES, frame_flaw
from pentalog.kernels.compiled.wire cimport (
    add_i64,
    i32_at,
    i64_at,
    put_i64,
    put_u32,
    take_varint,
)

from pentalog.kernels.cursus_facts import CursusPage
from pentalog.kernels.facts import Malformed

cdef object _make = tuple.__new__

ctypedef const unsigned char* Bytes

cdef enum:
    TEXT_BYTES_MAX = 65535
    MESSAGE_FIXED_BYTES = 48
    ROOM_BYTES_MIN = 1024

cdef struct Text:
    Bytes start
    Py_ssize_t size

cdef struct Message:
    uint64_t seq
    Text producer
    Text key
    int64_t epoch
    Text payload
    Text event_type
    uint32_t schema
    uint64_t aggregate
    Text metadata


cdef int _lend(object data, Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except -1:
    """Borrow the bytes of `data`; to be released if this returns."""
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    if 0 <= start <= end <= view.len:
        return 0
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(view)
    raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")


cdef inline bint _same(const Text* left, const Text* right) noexcept nogil:
    return left.size == right.size and memcmp(left.start, right.start, left.size) == 0


cdef inline unsigned char* _room(bytearray out, Py_ssize_t used, Py_ssize_t size) except NULL:
    """Make room for `size` more bytes; returns where they go."""
    if size > len(out) - used:
        PyByteArray_Resize(out, 2 * (used + size))
    return <unsigned char*>PyByteArray_AS_STRING(out) + used


cdef struct Record:
    int64_t offset_delta
    Text key
    Text value
    int64_t headers
    Bytes headers_start
    Bytes end


cdef inline Bytes _take_chunk(Bytes at, Bytes end, Text* text) noexcept nogil:
    """A field of a record; a null one is empty and has no start.  NULL if it ends too late."""
    cdef int64_t length
    at = take_varint(at, end, &length)
    if at == NULL:
        return NULL
    text.size = 0
    if length < 0:
        text.start = NULL
        return at
    if length > end - at:
        return NULL
    text.start = at
    text.size = length
    return at + length


cdef inline bint _take_record(Bytes at, Bytes end, Record* record) noexcept nogil:
    cdef int64_t length, timestamp_delta
    at = take_varint(at, end, &length)
    if at == NULL or length < 1 or length > end - at:
        return False
    record.end = end = at + length
    at = take_varint(at + 1, end, &timestamp_delta)
    if at == NULL:
        return False
    at = take_varint(at, end, &record.offset_delta)
    if at == NULL:
        return False
    at = _take_chunk(at, end, &record.key)
    if at == NULL:
        return False
    at = _take_chunk(at, end, &record.value)
    if at == NULL:
        return False
    at = take_varint(at, end, &record.headers)
    if at == NULL or record.headers < 0 or record.headers > end - at:
        return False
    record.headers_start = at
    return True


cdef inline bint _number(const Text* text, uint64_t most, uint64_t* number) noexcept nogil:
    """Is the text a number up to `most`?"""
    cdef uint64_t value = 0
    cdef uint64_t digit
    cdef Py_ssize_t index
    if text.size < 1 or text.size > 20:
        return False
    for index in range(text.size):
        if text.start[index] < c'0' or text.start[index] > c'9':
            return False
        digit = text.start[index] - c'0'
        if value > (most - digit) // 10:
            return False
        value = value * 10 + digit
    number[0] = value
    return True


cdef inline bint _signed(const Text* text, int64_t* number) noexcept nogil:
    cdef Text rest
    cdef uint64_t value
    if text.size and text.start[0] == c'-':
        rest.start = text.start + 1
        rest.size = text.size - 1
        if not _number(&rest, <uint64_t>INT64_MAX + 1, &value):
            return False
        number[0] = <int64_t>(<uint64_t>0 - value)
        return True
    if not _number(text, <uint64_t>INT64_MAX, &value):
        return False
    number[0] = <int64_t>value
    return True


cdef inline bint _named(const Text* name, const char* wanted, Py_ssize_t size) noexcept nogil:
    return name.size == size and memcmp(name.start, wanted, size) == 0


cdef bint _is_own(const Text* name, const Text* value, Message* message) noexcept nogil:
    """Take a header that is one of Cursus' own fields; False if it is somebody else's."""
    cdef uint64_t number
    if name.size < 10 or memcmp(name.start, <const char*>"cursus.", 7) != 0:
        return False
    if _named(name, "cursus.producer_id", 18):
        message.producer = value[0]
    elif _named(name, "cursus.event_type", 17):
        message.event_type = value[0]
    elif _named(name, "cursus.metadata", 15):
        message.metadata = value[0]
    elif _named(name, "cursus.seq", 10):
        return _number(value, <uint64_t>-1, &message.seq)
    elif _named(name, "cursus.epoch", 12):
        return _signed(value, &message.epoch)
    elif _named(name, "cursus.aggregate_version", 24):
        return _number(value, <uint64_t>-1, &message.aggregate)
    elif _named(name, "cursus.schema_version", 21):
        if not _number(value, 0xFFFFFFFF, &number):
            return False
        message.schema = <uint32_t>number
    else:
        return False
    return True


cdef int64_t _message_of(const Record* record, Message* message) noexcept nogil:
    """Turn a record into a message; returns how many headers are not Cursus' own, -1 if flawed."""
    cdef Text name, value, nothing
    cdef int64_t index
    cdef int64_t foreign = 0
    cdef Bytes at = record.headers_start
    nothing.start = record.end
    nothing.size = 0
    message.producer = message.event_type = message.metadata = nothing
    message.seq = message.aggregate = 0
    message.epoch = 0
    message.schema = 0
    message.key = record.key
    message.payload = record.value
    for index in range(record.headers):
        at = _take_chunk(at, record.end, &name)
        if at == NULL or name.start == NULL:
            return -1
        at = _take_chunk(at, record.end, &value)
        if at == NULL:
            return -1
        foreign += not _is_own(&name, &value, message)
    return foreign if at == record.end else -1


cdef inline bint _is_utf8(const Text* text) noexcept nogil:
    cdef Bytes at = text.start
    cdef Bytes end = text.start + text.size
    cdef uint32_t point
    cdef int more
    while at < end:
        if at[0] < 0x80:
            at += 1
            continue
        if 0xC2 <= at[0] <= 0xDF:
            more = 1
            point = at[0] & 0x1F
        elif 0xE0 <= at[0] <= 0xEF:
            more = 2
            point = at[0] & 0x0F
        elif 0xF0 <= at[0] <= 0xF4:
            more = 3
            point = at[0] & 0x07
        else:
            return False
        at += 1
        if end - at < more:
            return False
        for _ in range(more):
            if at[0] & 0xC0 != 0x80:
                return False
            point = (point << 6) | (at[0] & 0x3F)
            at += 1
        if more == 2 and (point < 0x800 or 0xD800 <= point <= 0xDFFF):
            return False
        if more == 3 and (point < 0x10000 or point > 0x10FFFF):
            return False
    return True


cdef unsigned char* _put_escaped(unsigned char* at, const Text* text) noexcept nogil:
    """A JSON string; takes at most 6 bytes for each of the text, and 2."""
    cdef Py_ssize_t index
    cdef unsigned char byte, short
    cdef const char* hexadecimal = "0123456789abcdef"
    at[0] = c'"'
    at += 1
    for index in range(text.size):
        byte = text.start[index]
        if byte == c'"' or byte == c'\\':
            short = byte
        elif byte >= 0x20:
            at[0] = byte
            at += 1
            continue
        elif byte == 10:
            short = c'n'
        elif byte == 13:
            short = c'r'
        elif byte == 9:
            short = c't'
        elif byte == 8:
            short = c'b'
        elif byte == 12:
            short = c'f'
        else:
            memcpy(at, <const char*>"\\u00", 4)
            at[4] = hexadecimal[byte >> 4]
            at[5] = hexadecimal[byte & 15]
            at += 6
            continue
        at[0] = c'\\'
        at[1] = short
        at += 2
    at[0] = c'"'
    return at + 1


cdef unsigned char* _put_base64(unsigned char* at, const Text* text) noexcept nogil:
    cdef const char* letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t left
    cdef uint32_t group
    memcpy(at, <const char*>'{"base64":"', 11)
    at += 11
    while index < text.size:
        left = text.size - index
        group = <uint32_t>text.start[index] << 16
        if left > 1:
            group |= <uint32_t>text.start[index + 1] << 8
        if left > 2:
            group |= text.start[index + 2]
        at[0] = letters[group >> 18]
        at[1] = letters[(group >> 12) & 63]
        at[2] = letters[(group >> 6) & 63] if left > 1 else c'='
        at[3] = letters[group & 63] if left > 2 else c'='
        at += 4
        index += 3
    memcpy(at, <const char*>'"}', 2)
    return at + 2


cdef inline unsigned char* _put_json(unsigned char* at, const Text* text) noexcept nogil:
    """Text as a string, other bytes as base64, nothing as null: at most 6 times as long, and 20."""
    if text.start == NULL:
        memcpy(at, <const char*>"null", 4)
        return at + 4
    return _put_escaped(at, text) if _is_utf8(text) else _put_base64(at, text)


cdef bint _put_foreign(bytearray out, const Record* record, Text* metadata) except -1:
    """Show headers that are not Cursus' own as one JSON object, in `out`; False if too long."""
    cdef Text name, value
    cdef Message scratch
    cdef int64_t index
    cdef int64_t foreign = 0
    cdef Py_ssize_t size = 0
    cdef unsigned char* at
    cdef unsigned char* start
    cdef bint first = True
    cdef Bytes header = record.headers_start
    for index in range(record.headers):
        header = _take_chunk(header, record.end, &name)
        header = _take_chunk(header, record.end, &value)
        if not _is_own(&name, &value, &scratch):
            foreign += 1
            size += name.size + value.size
    # No byte gets shorter, and brackets, comma and quotes take 7 more a header.
    if size + 7 * foreign > TEXT_BYTES_MAX:
        return False
    PyByteArray_Resize(out, 64 + 6 * size + 64 * foreign)
    header = record.headers_start
    start = at = <unsigned char*>PyByteArray_AS_STRING(out)
    memcpy(at, <const char*>'{"headers":[', 12)
    at += 12
    for index in range(record.headers):
        header = _take_chunk(header, record.end, &name)
        header = _take_chunk(header, record.end, &value)
        if _is_own(&name, &value, &scratch):
            continue
        at[0] = c'[' if first else c','
        at += 1
        if not first:
            at[0] = c'['
            at += 1
        first = False
        at = _put_json(at, &name)
        at[0] = c','
        at = _put_json(at + 1, &value)
        at[0] = c']'
        at += 1
    memcpy(at, <const char*>"]}", 2)
    metadata.start = start
    metadata.size = at + 2 - start
    return metadata.size <= TEXT_BYTES_MAX


cdef inline unsigned char* _put_text(unsigned char* at, const Text* text) noexcept nogil:
    at[0] = <unsigned char>(text.size >> 8)
    at[1] = <unsigned char>text.size
    if text.size:
        memcpy(at + 2, text.start, text.size)
    return at + 2 + text.size


cdef inline void _put_message(unsigned char* at, int64_t offset, Message* message) noexcept nogil:
    at = put_i64(at, offset)
    at = put_i64(at, <int64_t>message.seq)
    at = _put_text(at, &message.producer)
    at = _put_text(at, &message.key)
    at = put_i64(at, message.epoch)
    at = put_u32(at, <uint32_t>message.payload.size)
    if message.payload.size:
        memcpy(at, message.payload.start, message.payload.size)
    at = _put_text(at + message.payload.size, &message.event_type)
    at = put_u32(at, message.schema)
    at = put_i64(at, <int64_t>message.aggregate)
    _put_text(at, &message.metadata)


cdef inline bint _showable(const Message* message) noexcept nogil:
    return (
        message.producer.size <= TEXT_BYTES_MAX
        and message.key.size <= TEXT_BYTES_MAX
        and message.event_type.size <= TEXT_BYTES_MAX
        and message.metadata.size <= TEXT_BYTES_MAX
    )


cdef class _Page:
    """A page on its way."""

    cdef bytearray out
    cdef bytearray shown
    cdef Py_ssize_t used
    cdef int64_t count
    cdef int64_t next_offset
    cdef int64_t unshown
    cdef uint64_t seq_first
    cdef uint64_t seq_last
    cdef int64_t offset
    cdef int64_t messages_max
    cdef Py_ssize_t bytes_max
    cdef Py_ssize_t frame_bytes_max
    cdef Text key
    cdef bint keyed
    cdef uint64_t version_from
    cdef int door

    cdef bint add(self, const Record* record, int64_t offset) except -1:
        """Take one record; False if the page is full before it."""
        cdef Message message
        cdef Py_ssize_t size
        cdef int64_t foreign
        if offset < self.offset:
            return True
        if self.keyed and (record.key.start == NULL or not _same(&record.key, &self.key)):
            return True
        foreign = _message_of(record, &message)
        if foreign < 0:
            raise Malformed(f"the record at offset {offset} is malformed")
        if self.keyed and (
            message.aggregate == 0 or message.aggregate < self.version_from
        ):
            return True
        if self.count >= self.messages_max:
            self.next_offset = offset
            return False
        if foreign and message.metadata.size == 0 and not _put_foreign(
            self.shown, record, &message.metadata
        ):
            message.metadata.size = TEXT_BYTES_MAX + 1
        size = (
            MESSAGE_FIXED_BYTES + message.producer.size + message.key.size
            + message.payload.size + message.event_type.size + message.metadata.size
        )
        if not _showable(&message) or self.used + size - 4 > self.frame_bytes_max:
            if self.count == 0:
                self.unshown = offset
            self.next_offset = offset
            return False
        if self.count and self.used + size - 4 > self.bytes_max:
            self.next_offset = offset
            return False
        _put_message(_room(self.out, self.used, size), offset, &message)
        self.used += size
        if self.count == 0:
            self.seq_first = message.seq
        self.seq_last = message.seq
        self.count += 1
        return True

    cdef bint walk(self, Bytes at, Bytes stop) except -1:
        """All batches; False if the page is full before their end."""
        cdef Bytes end
        cdef Record record
        cdef int64_t base_offset, index, records
        while at < stop:
            if frame_flaw(at, stop - at) or at[22] & 7:
                raise Malformed("no whole uncompressed batch where one must be")
            end = at + i32_at(at + 8) + FRAMING_BYTES
            if self.door >= 0 and (at[21] & 7) != self.door:
                at = end
                continue
            base_offset = i64_at(at)
            records = i32_at(at + 57)
            at += HEADER_BYTES
            for index in range(records):
                if not _take_record(at, end, &record):
                    raise Malformed(f"record {index} of the batch at {base_offset} is malformed")
                if not self.add(&record, add_i64(base_offset, record.offset_delta)):
                    return False
                at = record.end
            at = end
        return True


def cursus_page(
    batches,
    Py_ssize_t start,
    Py_ssize_t end,
    bytes head not None,
    *,
    int64_t offset,
    int64_t messages_max,
    Py_ssize_t bytes_max,
    Py_ssize_t frame_bytes_max,
    bytes key=None,
    uint64_t version_from=0,
    int door=-1,
):
    """A frame of messages from `offset` on; with `key` only events of that aggregate.

    With `door` only records whose batch was built by the door of that number.
    """
    cdef Py_buffer view
    cdef _Page page = _Page()
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
    cdef unsigned char* at
    page.out = bytearray()
    page.shown = bytearray()
    page.used = 4 + head_size + 20
    page.count = 0
    page.next_offset = page.unshown = -1
    page.seq_first = page.seq_last = 0
    page.offset = offset
    page.messages_max = messages_max
    page.bytes_max = bytes_max
    page.frame_bytes_max = frame_bytes_max
    page.keyed = key is not None
    page.version_from = version_from
    page.door = door
    if key is not None:
        page.key.start = <Bytes>PyBytes_AS_STRING(key)
        page.key.size = PyBytes_GET_SIZE(key)
    _lend(batches, &view, start, end)
    try:
        PyByteArray_Resize(page.out, page.used + min(bytes_max, end - start) + ROOM_BYTES_MIN)
        page.walk(<Bytes>view.buf + start, <Bytes>view.buf + end)
    finally:
        PyBuffer_Release(&view)
    at = <unsigned char*>PyByteArray_AS_STRING(page.out)
    at = put_u32(at, <uint32_t>(page.used - 4))
    memcpy(at, PyBytes_AS_STRING(head), head_size)
    at = put_i64(at + head_size, <int64_t>page.seq_first)
    at = put_i64(at, <int64_t>page.seq_last)
    put_u32(at, <uint32_t>page.count)
    PyByteArray_Resize(page.out, page.used)
    return _make(CursusPage, (page.out, page.count, page.next_offset, page.unshown))
