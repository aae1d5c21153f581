"""BlipMQ, a whole socket buffer at a time; the twin, and the layout, are in `pure/blipmq.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from pentalog.kernels.compiled.checks cimport Run, facts_of
from pentalog.kernels.compiled.wire cimport (
    crc32c_of,
    crc32c_prepare,
    i64_at,
    put_i16,
    put_i64,
    put_u32,
    put_varint,
    u32_at,
    varint_bytes,
)

from pentalog.kernels.blipmq_facts import BlipFrames, NumberRun, PublishRun
from pentalog.kernels.facts import Facts

cdef enum:
    PUBLISH_TYPE = 3
    ACK_TYPE = 5
    POLL_TYPE = 9
    LENGTH_MIN = 9
    FRAME_BYTES = 13
    PUBLISH_BYTES = 3
    BATCH_BYTES = 61
    ATTRIBUTES = 0x400
    QOS_HEADER_BYTES = 14
    REFUSED_LENGTH = 1
    REFUSED_TYPE = 2

cdef Py_ssize_t ROOM_BYTES_MIN = 4096
cdef const char* QOS_HEADER = b"\x02\x14blipmq.qos\x020"
cdef object _make = tuple.__new__

ctypedef const unsigned char* Bytes

crc32c_prepare()

cdef struct Pending:
    int kind
    int qos
    uint64_t subscription
    Py_ssize_t start
    Py_ssize_t end
    Py_ssize_t topic
    Py_ssize_t topic_bytes
    int64_t count
    Py_ssize_t used
    unsigned char* correlations
    Py_ssize_t correlations_used
    Py_ssize_t correlations_room


cdef int _note_correlation(Pending* pending, Bytes correlation) except -1:
    cdef unsigned char* grown
    if pending.correlations_used == pending.correlations_room:
        pending.correlations_room = 2 * pending.correlations_room + 256
        grown = <unsigned char*>realloc(pending.correlations, pending.correlations_room)
        if grown == NULL:
            raise MemoryError
        pending.correlations = grown
    memcpy(pending.correlations + pending.correlations_used, correlation, 8)
    pending.correlations_used += 8
    return 0


cdef object _close_batch(bytearray batch, const Pending* pending, int64_t timestamp_ms):
    """Put the header before the records; returns their facts."""
    cdef Run run
    cdef unsigned char* at
    cdef Py_ssize_t size = pending.used
    PyByteArray_Resize(batch, size)
    at = <unsigned char*>PyByteArray_AS_STRING(batch)
    put_i64(at, 0)
    put_u32(at + 8, <uint32_t>(size - 12))
    put_u32(at + 12, 0xFFFFFFFFu)
    at[16] = 2
    put_i16(at + 21, ATTRIBUTES)
    put_u32(at + 23, <uint32_t>(pending.count - 1))
    put_i64(at + 27, timestamp_ms)
    put_i64(at + 35, timestamp_ms)
    put_i64(at + 43, -1)
    put_i16(at + 51, -1)
    put_u32(at + 53, 0xFFFFFFFFu)
    put_u32(at + 57, <uint32_t>pending.count)
    put_u32(at + 17, crc32c_of(at + 21, size - 21, 0))
    run.flaw = 0
    run.position = size
    run.batches = 1
    run.offsets = run.records = pending.count
    run.batch_bytes_max = size
    run.timestamp_max = timestamp_ms
    run.attributes_any = ATTRIBUTES
    run.codecs = 1
    run.producer_id = run.sequence_first = run.sequence_last = -1
    run.producer_epoch = -1
    run.chained = True
    run.restamp = False
    return facts_of(_make, Facts, &run)


cdef class _Split:
    cdef list items
    cdef bytearray batch
    cdef Pending pending
    cdef Bytes data
    cdef int64_t timestamp_ms
    cdef int64_t batch_bytes_max

    def __cinit__(self):
        self.items = []
        self.batch = None
        self.pending.kind = 0
        self.pending.correlations = NULL
        self.pending.correlations_used = self.pending.correlations_room = 0

    def __dealloc__(self):
        free(self.pending.correlations)

    cdef int close(self) except -1:
        """Give out the run that is open, if one is."""
        cdef Pending* pending = &self.pending
        cdef bytearray batch
        if pending.kind == 0:
            return 0
        correlations = PyBytes_FromStringAndSize(
            <const char*>pending.correlations, pending.correlations_used)
        if pending.kind == PUBLISH_TYPE:
            batch, self.batch = self.batch, None
            facts = _close_batch(batch, pending, self.timestamp_ms)
            self.items.append(_make(PublishRun, (
                pending.qos,
                PyBytes_FromStringAndSize(
                    <const char*>self.data + pending.topic, pending.topic_bytes),
                pending.start,
                pending.end,
                batch,
                facts,
                correlations,
            )))
        else:
            self.items.append(_make(NumberRun, (
                pending.kind, pending.subscription, pending.start, pending.end, correlations,
            )))
        pending.kind = 0
        pending.correlations_used = 0
        return 0

    cdef int begin(self, int kind, Py_ssize_t start) except -1:
        self.close()
        self.pending.kind = kind
        self.pending.start = start
        self.pending.count = 0
        return 0

    cdef bint publish(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Take a PUBLISH frame; False if it is not one to be joined."""
        cdef Pending* pending = &self.pending
        cdef Py_ssize_t body = start + FRAME_BYTES
        cdef Py_ssize_t topic, topic_bytes, message, size, record_bytes
        cdef Py_ssize_t tail
        cdef int qos
        cdef unsigned char* at
        if end - body < PUBLISH_BYTES:
            return False
        qos = self.data[body]
        topic_bytes = (<Py_ssize_t>self.data[body + 1] << 8) | self.data[body + 2]
        topic = body + PUBLISH_BYTES
        message = topic + topic_bytes
        if qos > 1 or topic_bytes == 0 or message > end:
            return False
        size = end - message
        tail = 1 if qos else QOS_HEADER_BYTES
        if not (
            pending.kind == PUBLISH_TYPE
            and pending.qos == qos
            and pending.topic_bytes == topic_bytes
            and memcmp(self.data + pending.topic, self.data + topic, topic_bytes) == 0
        ):
            self.open_batch(qos, start, topic, topic_bytes, end)
        record_bytes = 3 + varint_bytes(pending.count) + varint_bytes(size) + size + tail
        if (
            pending.count > 0
            and pending.used + <Py_ssize_t>varint_bytes(record_bytes) + record_bytes
            > self.batch_bytes_max
        ):
            self.open_batch(qos, start, topic, topic_bytes, end)
            record_bytes = 3 + varint_bytes(0) + varint_bytes(size) + size + tail
        at = self.room(10 + record_bytes)
        at = put_varint(at, record_bytes)
        at[0] = 0
        at[1] = 0
        at = put_varint(at + 2, pending.count)
        at[0] = 1
        at = put_varint(at + 1, size)
        memcpy(at, self.data + message, size)
        at += size
        if qos:
            at[0] = 0
        else:
            memcpy(at, QOS_HEADER, QOS_HEADER_BYTES)
        at += tail
        pending.used = at - <unsigned char*>PyByteArray_AS_STRING(self.batch)
        pending.count += 1
        pending.end = end
        _note_correlation(pending, self.data + start + 5)
        return True

    cdef int open_batch(
        self, int qos, Py_ssize_t start, Py_ssize_t topic, Py_ssize_t topic_bytes, Py_ssize_t end
    ) except -1:
        self.begin(PUBLISH_TYPE, start)
        self.pending.qos = qos
        self.pending.topic = topic
        self.pending.topic_bytes = topic_bytes
        self.pending.used = BATCH_BYTES
        self.batch = PyByteArray_FromStringAndSize(
            NULL, BATCH_BYTES + ROOM_BYTES_MIN + (end - topic))
        return 0

    cdef inline unsigned char* room(self, Py_ssize_t size) except NULL:
        """Make room for `size` more bytes of the batch; returns where they go."""
        cdef Py_ssize_t used = self.pending.used
        if size > PyByteArray_GET_SIZE(self.batch) - used:
            PyByteArray_Resize(self.batch, 2 * (used + size))
        return <unsigned char*>PyByteArray_AS_STRING(self.batch) + used

    cdef bint number(self, Py_ssize_t start, Py_ssize_t end, int kind) except -1:
        """Take a POLL or ACK frame; False if it is not one to be joined."""
        cdef Pending* pending = &self.pending
        cdef Py_ssize_t body = start + FRAME_BYTES
        cdef uint64_t subscription
        if end - body != 8:
            return False
        subscription = <uint64_t>i64_at(self.data + body)
        if subscription == 0:
            return False
        if pending.kind != kind or pending.subscription != subscription:
            self.begin(kind, start)
            pending.subscription = subscription
        pending.end = end
        _note_correlation(pending, self.data + start + 5)
        return True

    cdef object walk(self, Py_ssize_t position, Py_ssize_t end, int64_t frame_bytes_max):
        cdef int64_t length
        cdef int64_t wanted = 0
        cdef int refused = 0
        cdef int kind
        cdef bint joined
        cdef Py_ssize_t after
        while end - position >= 4:
            length = u32_at(self.data + position)
            if length < LENGTH_MIN or length > frame_bytes_max:
                refused = REFUSED_LENGTH
                break
            if length > end - position - 4:
                wanted = 4 + length
                break
            kind = self.data[position + 4]
            after = position + 4 + length
            if kind < 1 or kind > POLL_TYPE:
                refused = REFUSED_TYPE
                break
            joined = False
            if kind == PUBLISH_TYPE:
                joined = self.publish(position, after)
            elif kind == ACK_TYPE or kind == POLL_TYPE:
                joined = self.number(position, after, kind)
            if not joined:
                self.close()
                self.items.append((position + 4, after))
            position = after
        self.close()
        return _make(BlipFrames, (self.items, position, wanted, refused))


def split_blipmq(
    data,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    int64_t timestamp_ms,
    int64_t frame_bytes_max,
    int64_t batch_bytes_max,
):
    """Take every whole frame out of `data`; publishes, polls and acknowledgements joined in runs.

    A batch grows to `batch_bytes_max`; a single message may make it larger.
    """
    cdef Py_buffer view
    cdef _Split split = _Split()
    split.timestamp_ms = timestamp_ms
    split.batch_bytes_max = batch_bytes_max
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError(f"range {start}..{end} is not inside a buffer of {view.len} bytes")
        split.data = <Bytes>view.buf
        return split.walk(start, end, frame_bytes_max)
    finally:
        PyBuffer_Release(&view)
