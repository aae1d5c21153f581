"""Cursus batches to record batches; the twin, and the layouts, are in `pure/cursus.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from pentalog.kernels.compiled.checks cimport (
    FRAMING_BYTES,
    HEADER_BYTES,
    I32_MAX,
    NO_FLAW,
    Run,
    facts_of,
    note,
    sequence_after,
)
from pentalog.kernels.compiled.wire cimport (
    crc32c_of,
    crc32c_prepare,
    i32_at,
    i64_at,
    put_i16,
    put_i64,
    put_u32,
    put_varint,
    u32_at,
    varint_bytes,
)

from pentalog.kernels.cursus_facts import CursusFrame
from pentalog.kernels.facts import Facts, Malformed

cdef object _make = tuple.__new__

crc32c_prepare()

ctypedef const unsigned char* Bytes

cdef enum:
    SHORT_HEADER = 1
    BAD_TOPIC = 2
    BAD_PARTITION = 3
    BAD_COUNT = 4
    BAD_MESSAGE = 5
    REST = 6

    TOPIC_BYTES_MAX = 249
    PARTITION_DIGITS_MAX = 10
    MESSAGES_MAX = 100000
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
    Bytes end


cdef inline unsigned int _u16_at(Bytes at) noexcept nogil:
    return (<unsigned int>at[0] << 8) | at[1]


cdef inline Bytes _take_text(Bytes at, Bytes end, Text* text) noexcept nogil:
    """A string with a 16-bit length; NULL if it does not end before `end`."""
    if end - at < 2:
        return NULL
    text.size = _u16_at(at)
    text.start = at + 2
    if text.size > end - text.start:
        return NULL
    return text.start + text.size


cdef inline bint _take_message(Bytes at, Bytes end, Message* message) noexcept nogil:
    if end - at < 16:
        return False
    message.seq = <uint64_t>i64_at(at + 8)
    at = _take_text(at + 16, end, &message.producer)
    if at == NULL:
        return False
    at = _take_text(at, end, &message.key)
    if at == NULL or end - at < 12:
        return False
    message.epoch = i64_at(at)
    message.payload.size = u32_at(at + 8)
    message.payload.start = at + 12
    if message.payload.size > end - message.payload.start:
        return False
    at = _take_text(
        message.payload.start + message.payload.size, end, &message.event_type)
    if at == NULL or end - at < 12:
        return False
    message.schema = u32_at(at)
    message.aggregate = <uint64_t>i64_at(at + 4)
    at = _take_text(at + 12, end, &message.metadata)
    message.end = at
    return at != NULL


cdef inline bint _same(const Text* left, const Text* right) noexcept nogil:
    return left.size == right.size and memcmp(left.start, right.start, left.size) == 0


cdef inline object _bytes_of(const Text* text):
    return PyBytes_FromStringAndSize(<const char*>text.start, text.size)


cdef int _lend(object data, Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except -1:
    """Borrow the bytes of `data`; to be released if this returns."""
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    if 0 <= start <= end <= view.len:
        return 0
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(view)
    raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")


cdef struct Head:
    int flaw
    bint document
    Text topic
    int64_t partition
    Text acks
    bint idempotent
    int32_t count
    Bytes messages


cdef Bytes _take_partition(Bytes at, Bytes end, Head* head) noexcept nogil:
    """Partition and acks, in the dialect the two bytes behind the topic tell; NULL if flawed."""
    cdef Py_ssize_t index
    cdef unsigned int size
    head.flaw = SHORT_HEADER
    if end - at < 2:
        return NULL
    size = _u16_at(at)
    head.document = size != 0
    if size == 0:
        if end - at < 5:
            return NULL
        head.partition = i32_at(at)
        head.acks.size = at[4]
        head.acks.start = at + 5
        if head.acks.size > end - head.acks.start:
            return NULL
        head.flaw = NO_FLAW
        return head.acks.start + head.acks.size
    if size > PARTITION_DIGITS_MAX:
        head.flaw = BAD_PARTITION
        return NULL
    at += 2
    if <Py_ssize_t>size > end - at:
        return NULL
    head.partition = 0
    for index in range(<Py_ssize_t>size):
        if at[index] < c'0' or at[index] > c'9':
            head.flaw = BAD_PARTITION
            return NULL
        head.partition = head.partition * 10 + (at[index] - c'0')
    at = _take_text(at + size, end, &head.acks)
    if at != NULL:
        head.flaw = NO_FLAW
    return at


cdef void _take_head(Bytes at, Bytes end, Head* head) noexcept nogil:
    """Everything before the messages; the magic has been seen."""
    head.flaw = SHORT_HEADER
    if end - at < 4:
        return
    at = _take_text(at + 2, end, &head.topic)
    if at == NULL or head.topic.size < 1 or head.topic.size > TOPIC_BYTES_MAX:
        head.flaw = BAD_TOPIC
        return
    at = _take_partition(at, end, head)
    if at == NULL:
        return
    if end - at < 21:
        head.flaw = SHORT_HEADER
        return
    head.idempotent = at[0] != 0
    head.count = i32_at(at + 17)
    head.messages = at + 21
    if head.count < 0 or head.count > MESSAGES_MAX:
        head.flaw = BAD_COUNT


cdef struct Walk:
    int flaw
    Message last
    uint64_t seq_first
    bint one_producer
    uint64_t break_after
    uint64_t break_got
    Py_ssize_t largest


cdef void _walk(Head* head, Bytes end, Walk* walk) noexcept nogil:
    cdef Message message
    cdef Bytes at = head.messages
    cdef int32_t index
    cdef bint broken = False
    walk.flaw = BAD_MESSAGE
    walk.one_producer = True
    walk.break_after = walk.break_got = walk.seq_first = 0
    walk.largest = 0
    walk.last.epoch = 0
    walk.last.seq = 0
    walk.last.producer.start = at
    walk.last.producer.size = 0
    for index in range(head.count):
        if not _take_message(at, end, &message):
            return
        if index == 0:
            walk.seq_first = message.seq
        else:
            if message.epoch != walk.last.epoch or not _same(
                &message.producer, &walk.last.producer
            ):
                walk.one_producer = False
            if not broken and message.seq != walk.last.seq + 1:
                broken = True
                walk.break_after = walk.last.seq
                walk.break_got = message.seq
        walk.largest = max(walk.largest, message.end - at)
        walk.last = message
        at = message.end
    walk.flaw = NO_FLAW if at == end else REST


cdef object _flawed(int flaw):
    return _make(
        CursusFrame, (flaw, False, b"", 0, b"", False, 0, 0, b"", 0, 0, 0, True, 0, 0, 0))


def read_cursus(data, Py_ssize_t start, Py_ssize_t end):
    """Walk one batch frame; it must begin with the magic."""
    cdef Py_buffer view
    cdef Head head
    cdef Walk walk
    cdef Bytes base
    _lend(data, &view, start, end)
    try:
        base = <Bytes>view.buf
        _take_head(base + start, base + end, &head)
        if head.flaw:
            return _flawed(head.flaw)
        _walk(&head, base + end, &walk)
        if walk.flaw:
            return _flawed(walk.flaw)
        return _make(CursusFrame, (
            NO_FLAW,
            <bint>head.document,
            _bytes_of(&head.topic),
            head.partition,
            _bytes_of(&head.acks),
            <bint>head.idempotent,
            head.messages - base,
            head.count,
            _bytes_of(&walk.last.producer),
            walk.last.epoch,
            walk.seq_first,
            walk.last.seq,
            <bint>walk.one_producer,
            walk.break_after,
            walk.break_got,
            walk.largest,
        ))
    finally:
        PyBuffer_Release(&view)


def cursus_cut(data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, *, Py_ssize_t bytes_max):
    """(messages, where they end) of those of `count` that fit in `bytes_max`; at least one."""
    cdef Py_buffer view
    cdef Message message
    cdef Bytes base, at, stop
    cdef Py_ssize_t taken = 0
    _lend(data, &view, start, end)
    try:
        base = <Bytes>view.buf
        at = base + start
        stop = base + end
        while taken < count:
            if not _take_message(at, stop, &message):
                raise Malformed(f"message {taken} ends too soon: walk the frame before")
            if taken and message.end - (base + start) > bytes_max:
                break
            at = message.end
            taken += 1
        return taken, at - base
    finally:
        PyBuffer_Release(&view)


cdef inline unsigned char* _room(bytearray out, Py_ssize_t used, Py_ssize_t size) except NULL:
    """Make room for `size` more bytes; returns where they go."""
    if size > len(out) - used:
        PyByteArray_Resize(out, 2 * (used + size))
    return <unsigned char*>PyByteArray_AS_STRING(out) + used


cdef inline Py_ssize_t _digits(uint64_t number, char* text) noexcept nogil:
    """Decimal digits into `text` (room for 20); returns how many."""
    cdef char turned[20]
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t index
    while True:
        turned[size] = c'0' + <char>(number % 10)
        size += 1
        number = number // 10
        if number == 0:
            break
    for index in range(size):
        text[index] = turned[size - 1 - index]
    return size


cdef inline Py_ssize_t _signed_digits(int64_t number, char* text) noexcept nogil:
    if number >= 0:
        return _digits(<uint64_t>number, text)
    text[0] = c'-'
    return 1 + _digits(<uint64_t>0 - <uint64_t>number, text + 1)


cdef struct Own:
    const char* name
    Py_ssize_t name_size
    const char* value
    Py_ssize_t size

cdef struct Owns:
    Own fields[7]
    int count
    char seq[20]
    char epoch[20]
    char schema[20]
    char aggregate[20]


cdef inline void _own(Owns* owns, const char* name, Py_ssize_t name_size,
                      const char* value, Py_ssize_t size) noexcept nogil:
    cdef Own* own
    if size:
        own = &owns.fields[owns.count]
        own.name = name
        own.name_size = name_size
        own.value = value
        own.size = size
        owns.count += 1


cdef inline void _collect(Message* message, Owns* owns) noexcept nogil:
    """The fields only Cursus has, as headers; empty and zero ones are not kept."""
    owns.count = 0
    _own(owns, "cursus.producer_id", 18, <const char*>message.producer.start,
         message.producer.size)
    if message.seq:
        _own(owns, "cursus.seq", 10, owns.seq, _digits(message.seq, owns.seq))
    if message.epoch:
        _own(owns, "cursus.epoch", 12, owns.epoch, _signed_digits(message.epoch, owns.epoch))
    _own(owns, "cursus.event_type", 17, <const char*>message.event_type.start,
         message.event_type.size)
    if message.schema:
        _own(owns, "cursus.schema_version", 21, owns.schema,
             _digits(message.schema, owns.schema))
    if message.aggregate:
        _own(owns, "cursus.aggregate_version", 24, owns.aggregate,
             _digits(message.aggregate, owns.aggregate))
    _own(owns, "cursus.metadata", 15, <const char*>message.metadata.start,
         message.metadata.size)


cdef inline unsigned char* _put_chunk(unsigned char* at, const void* data,
                                      Py_ssize_t size) noexcept nogil:
    at = put_varint(at, size)
    memcpy(at, data, size)
    return at + size


cdef inline Py_ssize_t _body_bytes(Message* message, Owns* owns, int64_t index) noexcept nogil:
    cdef Py_ssize_t size = 2 + varint_bytes(index) + 1
    cdef int number
    if message.key.size:
        size += varint_bytes(message.key.size) + message.key.size
    else:
        size += 1
    size += varint_bytes(message.payload.size) + message.payload.size
    for number in range(owns.count):
        size += 1 + owns.fields[number].name_size
        size += varint_bytes(owns.fields[number].size) + owns.fields[number].size
    return size


cdef inline void _put_record(unsigned char* at, Message* message, Owns* owns, int64_t index,
                             Py_ssize_t body) noexcept nogil:
    cdef int number
    at = put_varint(at, body)
    at[0] = at[1] = 0
    at = put_varint(at + 2, index)
    if message.key.size:
        at = _put_chunk(at, message.key.start, message.key.size)
    else:
        at = put_varint(at, -1)
    at = _put_chunk(at, message.payload.start, message.payload.size)
    at = put_varint(at, owns.count)
    for number in range(owns.count):
        at = _put_chunk(at, owns.fields[number].name, owns.fields[number].name_size)
        at = _put_chunk(at, owns.fields[number].value, owns.fields[number].size)


cdef void _finish(unsigned char* at, Py_ssize_t size, int64_t records, int attributes,
                  int64_t timestamp_ms, int64_t producer_id, int producer_epoch,
                  int64_t sequence) noexcept nogil:
    """Write the header of a batch whose records are there."""
    put_i64(at, 0)
    put_u32(at + 8, <uint32_t>(size - FRAMING_BYTES))
    put_u32(at + 12, 0xFFFFFFFF)
    at[16] = 2
    put_i16(at + 21, <int16_t>attributes)
    put_u32(at + 23, <uint32_t>(records - 1))
    put_i64(at + 27, timestamp_ms)
    put_i64(at + 35, timestamp_ms)
    put_i64(at + 43, producer_id)
    put_i16(at + 51, <int16_t>producer_epoch)
    put_u32(at + 53, <uint32_t><int32_t>sequence)
    put_u32(at + 57, <uint32_t>records)
    put_u32(at + 17, crc32c_of(at + 21, size - 21, 0))


cdef void _start_run(Run* run) noexcept nogil:
    run.flaw = NO_FLAW
    run.position = 0
    run.batches = run.offsets = run.records = run.batch_bytes_max = 0
    run.attributes_any = run.codecs = 0
    run.timestamp_max = run.producer_id = run.sequence_first = run.sequence_last = -1
    run.producer_epoch = -1
    run.chained = True
    run.restamp = False


def cursus_batches(
    data,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    *,
    Py_ssize_t skip,
    int64_t timestamp_ms,
    int attributes,
    int64_t producer_id,
    int producer_epoch,
    int64_t base_sequence,
    Py_ssize_t batch_bytes_max,
):
    """(record batches, their facts) of the messages behind the first `skip`."""
    cdef Py_buffer view
    cdef Message message
    cdef Owns owns
    cdef Run run
    cdef Bytes at, stop
    cdef Py_ssize_t index, body, size
    cdef Py_ssize_t used = 0
    cdef Py_ssize_t batch_start = 0
    cdef int64_t records = 0
    cdef unsigned char* to
    cdef bytearray out = bytearray()
    if not 0 <= skip < count or not 0 <= base_sequence + (producer_id < 0) <= I32_MAX:
        raise ValueError(f"{skip} of {count} messages to skip, sequence {base_sequence}")
    _lend(data, &view, start, end)
    try:
        PyByteArray_Resize(out, ROOM_BYTES_MIN + (end - start) + (end - start) // 2)
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        _start_run(&run)
        for index in range(count):
            if not _take_message(at, stop, &message):
                raise Malformed(f"message {index} ends too soon: walk the frame before")
            at = message.end
            if index < skip:
                continue
            _collect(&message, &owns)
            body = _body_bytes(&message, &owns, records)
            size = varint_bytes(body) + body
            if records and used + size - batch_start > batch_bytes_max:
                to = <unsigned char*>PyByteArray_AS_STRING(out) + batch_start
                _finish(to, used - batch_start, records, attributes, timestamp_ms,
                        producer_id, producer_epoch, base_sequence)
                note(&run, to, used - batch_start, timestamp_ms)
                if producer_id >= 0:
                    base_sequence = sequence_after(base_sequence, records)
                records = 0
                body = _body_bytes(&message, &owns, 0)
                size = varint_bytes(body) + body
            if not records:
                batch_start = used
                _room(out, used, HEADER_BYTES)
                used += HEADER_BYTES
            _put_record(_room(out, used, size), &message, &owns, records, body)
            used += size
            records += 1
        to = <unsigned char*>PyByteArray_AS_STRING(out) + batch_start
        _finish(to, used - batch_start, records, attributes, timestamp_ms,
                producer_id, producer_epoch, base_sequence)
        note(&run, to, used - batch_start, timestamp_ms)
        run.position = used
        PyByteArray_Resize(out, used)
    finally:
        PyBuffer_Release(&view)
    return out, facts_of(_make, Facts, &run)


def fnv1a_64(bytes data not None):
    cdef Bytes at = data
    cdef Py_ssize_t size = len(data)
    cdef Py_ssize_t place
    cdef uint64_t value = 0xCBF29CE484222325ULL
    for place in range(size):
        value = (value ^ at[place]) * 0x100000001B3ULL
    return value
