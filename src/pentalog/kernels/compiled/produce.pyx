"""Kafka Produce, a whole socket buffer at a time; the twin, and the layout, are in
`pure/produce.py`."""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memmove

from pentalog.kernels.compiled.checks cimport I32_MAX, Run, check_run, facts_of
from pentalog.kernels.compiled.wire cimport (
    crc32c_prepare,
    i16_at,
    i32_at,
    put_i16,
    put_i64,
    put_u32,
)

from pentalog.kernels.facts import Facts, Frames, ProduceRun

cdef enum:
    VERSION_MIN = 3
    VERSION_START_OFFSET = 5
    VERSION_ERROR_MESSAGE = 8
    VERSION_FLEXIBLE = 9
    VERSION_TOPIC_ID = 13
    VERSION_MAX = 13
    TOPIC_BYTES_MAX = 249
    TOPIC_ID_BYTES = 16
    TRANSACTIONAL_OR_CONTROL = 0x30
    MESSAGE_BYTES_MAX = 32767

cdef object _make = tuple.__new__

crc32c_prepare()

cdef struct Cursor:
    const unsigned char* data
    Py_ssize_t position
    Py_ssize_t end
    bint flexible
    bint failed

cdef struct Request:
    int version
    int acks
    int32_t correlation
    int32_t partition
    Py_ssize_t topic
    Py_ssize_t topic_bytes
    Py_ssize_t start
    Py_ssize_t end
    Run facts

cdef struct Pending:
    bint open
    Request first
    int32_t* requests
    Py_ssize_t requests_used
    Py_ssize_t requests_room


cdef inline const unsigned char* _take(Cursor* cursor, int64_t size) noexcept nogil:
    """Step over `size` bytes; NULL, and the cursor has failed, if they are not there."""
    cdef const unsigned char* at = cursor.data + cursor.position
    if cursor.failed or size < 0 or size > cursor.end - cursor.position:
        cursor.failed = True
        return NULL
    cursor.position += size
    return at


cdef inline int64_t _compact(Cursor* cursor) noexcept nogil:
    """A length or count; -1 is null, -2 a failure."""
    cdef int64_t number = 0
    cdef int index
    cdef const unsigned char* at
    for index in range(5):
        at = _take(cursor, 1)
        if at == NULL:
            return -2
        number |= <int64_t>(at[0] & 0x7f) << (7 * index)
        if at[0] < 0x80:
            return number - 1
    cursor.failed = True
    return -2


cdef inline int64_t _i16(Cursor* cursor) noexcept nogil:
    cdef const unsigned char* at = _take(cursor, 2)
    return i16_at(at) if at != NULL else -2


cdef inline int64_t _i32(Cursor* cursor) noexcept nogil:
    cdef const unsigned char* at = _take(cursor, 4)
    return i32_at(at) if at != NULL else -2


cdef inline int64_t _string_length(Cursor* cursor) noexcept nogil:
    return _compact(cursor) if cursor.flexible else _i16(cursor)


cdef inline int64_t _length(Cursor* cursor) noexcept nogil:
    return _compact(cursor) if cursor.flexible else _i32(cursor)


cdef inline bint _no_tags(Cursor* cursor) noexcept nogil:
    cdef const unsigned char* at
    if not cursor.flexible:
        return True
    at = _take(cursor, 1)
    return at != NULL and at[0] == 0


cdef bint _read(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end, Request* request
) noexcept nogil:
    """Is this frame a plain Produce request?"""
    cdef Cursor cursor
    cdef const unsigned char* at
    cdef int64_t size
    cursor.data, cursor.position, cursor.end = data, start, end
    cursor.flexible = cursor.failed = False
    at = _take(&cursor, 8)
    if at == NULL or i16_at(at) != 0:
        return False
    request.version = i16_at(at + 2)
    if request.version < VERSION_MIN or request.version > VERSION_MAX:
        return False
    request.correlation = i32_at(at + 4)
    size = _i16(&cursor)
    if size != -1 and _take(&cursor, size) == NULL:
        return False
    cursor.flexible = request.version >= VERSION_FLEXIBLE
    if not _no_tags(&cursor) or _string_length(&cursor) != -1:
        return False
    at = _take(&cursor, 6)
    if at == NULL or _length(&cursor) != 1:
        return False
    request.acks = i16_at(at)
    size = TOPIC_ID_BYTES if request.version >= VERSION_TOPIC_ID else _string_length(&cursor)
    request.topic = cursor.position
    request.topic_bytes = size
    if size > TOPIC_BYTES_MAX or _take(&cursor, size) == NULL or _length(&cursor) != 1:
        return False
    request.partition = <int32_t>_i32(&cursor)
    size = _length(&cursor)
    request.start = cursor.position
    if _take(&cursor, size) == NULL:
        return False
    request.end = cursor.position
    if not (_no_tags(&cursor) and _no_tags(&cursor) and _no_tags(&cursor)):
        return False
    if cursor.failed or cursor.position != end:
        return False
    check_run(data, request.start, request.end, &request.facts)
    return (
        request.facts.flaw == 0
        and not request.facts.attributes_any & TRANSACTIONAL_OR_CONTROL
        and request.facts.offsets <= I32_MAX
    )


cdef inline bint _follows(const Run* run, const Run* facts) noexcept nogil:
    cdef int64_t sequence
    if not (run.chained and facts.chained) or run.producer_id != facts.producer_id:
        return False
    if run.producer_id < 0:
        return True
    sequence = 0 if run.sequence_last == I32_MAX else run.sequence_last + 1
    return run.producer_epoch == facts.producer_epoch and sequence == facts.sequence_first


cdef inline bint _joins(
    const unsigned char* data, const Pending* pending, const Request* request
) noexcept nogil:
    return (
        pending.first.version == request.version
        and pending.first.acks == request.acks
        and pending.first.partition == request.partition
        and pending.first.topic_bytes == request.topic_bytes
        and memcmp(
            data + pending.first.topic, data + request.topic, request.topic_bytes) == 0
        and _follows(&pending.first.facts, &request.facts)
    )


cdef inline void _join(unsigned char* data, Pending* pending, const Request* request) noexcept:
    """Move the batches of `request` behind those of the run; the topic lies before them all."""
    cdef Run* run = &pending.first.facts
    cdef const Run* facts = &request.facts
    cdef Py_ssize_t size = request.end - request.start
    memmove(data + pending.first.end, data + request.start, size)
    pending.first.end += size
    run.position = pending.first.end
    run.batches += facts.batches
    run.offsets += facts.offsets
    run.records += facts.records
    run.batch_bytes_max = max(run.batch_bytes_max, facts.batch_bytes_max)
    run.timestamp_max = max(run.timestamp_max, facts.timestamp_max)
    run.attributes_any |= facts.attributes_any
    run.codecs |= facts.codecs
    run.sequence_last = facts.sequence_last
    run.restamp |= facts.restamp


cdef int _note_request(Pending* pending, const Request* request) except -1:
    cdef int32_t* grown
    if pending.requests_used == pending.requests_room:
        pending.requests_room = 2 * pending.requests_room + 32
        grown = <int32_t*>realloc(pending.requests, pending.requests_room * sizeof(int32_t))
        if grown == NULL:
            raise MemoryError
        pending.requests = grown
    pending.requests[pending.requests_used] = request.correlation
    pending.requests[pending.requests_used + 1] = <int32_t>request.facts.offsets
    pending.requests_used += 2
    return 0


cdef int _close(list items, const unsigned char* data, Pending* pending) except -1:
    """Give out the run that is open, if one is."""
    if not pending.open:
        return 0
    pending.open = False
    items.append(_make(ProduceRun, (
        pending.first.version,
        pending.first.acks,
        PyBytes_FromStringAndSize(
            <const char*>data + pending.first.topic, pending.first.topic_bytes),
        pending.first.partition,
        pending.first.start,
        pending.first.end,
        PyBytes_FromStringAndSize(
            <const char*>pending.requests, pending.requests_used * sizeof(int32_t)),
        facts_of(_make, Facts, &pending.first.facts),
    )))
    pending.requests_used = 0
    return 0


cdef int _add(
    list items,
    unsigned char* data,
    Pending* pending,
    const Request* request,
    int64_t join_bytes_max,
) except -1:
    """Join `request` to the run that is open, or begin another."""
    if (
        pending.open
        and request.end - request.start <= join_bytes_max
        and _joins(data, pending, request)
    ):
        _join(data, pending, request)
    else:
        _close(items, data, pending)
        pending.first = request[0]
        pending.open = True
    return _note_request(pending, request)


cdef object _split(
    unsigned char* data,
    Py_ssize_t position,
    Py_ssize_t end,
    int64_t frame_bytes_max,
    int64_t join_bytes_max,
    Pending* pending,
):
    cdef list items = []
    cdef Request request
    cdef int64_t length
    cdef int64_t wanted = 0
    cdef int64_t refused = 0
    cdef Py_ssize_t frame
    while end - position >= 4:
        length = i32_at(data + position)
        if length < 0 or length > frame_bytes_max:
            refused = length
            break
        frame = position + 4
        if length > end - frame:
            wanted = 4 + length
            break
        position = frame + length
        if _read(data, frame, position, &request):
            _add(items, data, pending, &request, join_bytes_max)
        else:
            _close(items, data, pending)
            items.append((frame, position))
    _close(items, data, pending)
    return _make(Frames, (items, position, wanted, refused))


def split_produce(
    data,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    int64_t frame_bytes_max,
    int64_t join_bytes_max=32768,
):
    """Take every whole frame out of `data`, Produce requests joined into runs.

    The batches of a joined request are moved directly behind those of the run before it, over
    request headers that have been read, so `data` must be writable.
    """
    cdef Py_buffer view
    cdef Pending pending
    pending.open = False
    pending.requests = NULL
    pending.requests_used = pending.requests_room = 0
    PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError(f"range {start}..{end} is not inside a buffer of {view.len} bytes")
        return _split(
            <unsigned char*>view.buf, start, end, frame_bytes_max, join_bytes_max, &pending)
    finally:
        free(pending.requests)
        PyBuffer_Release(&view)


cdef bytes _compact_length(Py_ssize_t length):
    """Length plus one, so that null can be 0."""
    cdef Py_ssize_t number = length + 1
    cdef bytearray out = bytearray()
    while number > 0x7f:
        out.append(number & 0x7f | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


cdef tuple _reply_frame(int version, bytes topic, bytes message):
    """What stands before and behind the result of the partition in a reply."""
    if version >= VERSION_FLEXIBLE:
        name = topic if version >= VERSION_TOPIC_ID else _compact_length(len(topic)) + topic
        text = b"\x00" if message is None else _compact_length(len(message)) + message
        return b"\x00\x02" + name + b"\x02", b"\x01" + text + bytes(7)
    before = b"\x00\x00\x00\x01" + len(topic).to_bytes(2, "big") + topic + b"\x00\x00\x00\x01"
    if version < VERSION_ERROR_MESSAGE:
        return before, bytes(4)
    text = b"\xff\xff" if message is None else len(message).to_bytes(2, "big") + message
    return before, bytes(4) + text + bytes(4)


cdef void _put_replies(
    unsigned char* at,
    const char* requests,
    Py_ssize_t count,
    bytes before,
    bytes behind,
    const unsigned char* result,
    Py_ssize_t result_bytes,
    int64_t base_offset,
    bint failed,
) noexcept:
    cdef Py_ssize_t index
    cdef int32_t[2] request
    cdef Py_ssize_t before_bytes = len(before)
    cdef Py_ssize_t behind_bytes = len(behind)
    cdef uint32_t size = <uint32_t>(4 + before_bytes + result_bytes + behind_bytes)
    for index in range(count):
        memcpy(request, requests + 8 * index, 8)
        at = put_u32(at, size)
        at = put_u32(at, <uint32_t>request[0])
        memcpy(at, PyBytes_AS_STRING(before), before_bytes)
        at += before_bytes
        memcpy(at, result, result_bytes)
        put_i64(at + 6, -1 if failed else base_offset)
        at += result_bytes
        memcpy(at, PyBytes_AS_STRING(behind), behind_bytes)
        at += behind_bytes
        base_offset += request[1]


def produce_replies(
    int version,
    topic,
    int32_t partition,
    requests,
    int64_t base_offset,
    *,
    int16_t error,
    error_message,
    int64_t timestamp_ms,
    int64_t start_offset,
):
    """The replies to all requests of a run, joined, each with its length."""
    cdef Py_buffer view
    cdef unsigned char[30] result
    cdef Py_ssize_t result_bytes = 22
    cdef Py_ssize_t count
    cdef bytes before, behind, message = None
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ValueError(f"Produce version {version} is not {VERSION_MIN}..{VERSION_MAX}")
    if error_message is not None:
        message = error_message.encode()
        if len(message) > MESSAGE_BYTES_MAX:
            message = message[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore").encode()
    before, behind = _reply_frame(version, bytes(topic), message)
    put_u32(result, <uint32_t>partition)
    put_i16(result + 4, error)
    put_i64(result + 14, timestamp_ms)
    if version >= VERSION_START_OFFSET:
        put_i64(result + 22, start_offset)
        result_bytes = 30
    PyObject_GetBuffer(requests, &view, PyBUF_SIMPLE)
    try:
        if view.len % 8:
            raise ValueError(f"{view.len} bytes are no list of requests of 8 bytes each")
        count = view.len // 8
        replies = PyBytes_FromStringAndSize(
            NULL, count * (8 + len(before) + result_bytes + len(behind)))
        _put_replies(
            <unsigned char*>PyBytes_AS_STRING(replies),
            <const char*>view.buf,
            count,
            before,
            behind,
            result,
            result_bytes,
            base_offset,
            error != 0,
        )
        return replies
    finally:
        PyBuffer_Release(&view)
