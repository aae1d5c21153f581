"""Answers of BlipMQ, many at a time; the twin is in `pure/blipmq_answers.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from pentalog.kernels.compiled.wire cimport (
    add_i64,
    i32_at,
    i64_at,
    put_i16,
    put_i64,
    put_u32,
    take_varint,
)

from pentalog.kernels.blipmq_facts import Delivered

cdef enum:
    PUBLISH_TYPE = 3
    NACK_TYPE = 6
    BATCH_BYTES = 61
    APPEND_TIME = 8
    QOS_NAME_BYTES = 10
    ATTEMPT_MAX = 99
    DEAD_EXPIRED = 0xF1
    DEAD_TOO_LARGE = 0xF3

cdef int64_t OFFSET_MAX = 1 << 62
cdef const char* QOS_NAME = b"blipmq.qos"
cdef object _make = tuple.__new__

ctypedef const unsigned char* Bytes

cdef struct Parts:
    int64_t timestamp_delta
    int64_t offset_delta
    Bytes value
    Py_ssize_t value_bytes
    bint qos_zero
    Bytes end


cdef inline Bytes _take_chunk(Bytes at, Bytes end, Bytes* start, int64_t* size) noexcept nogil:
    """Returns where the field ends, NULL if it does not end before `end`; null has size -1."""
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


cdef inline bint _take_headers(Bytes at, Parts* parts) noexcept nogil:
    cdef int64_t count, index, name_bytes, value_bytes
    cdef Bytes name
    cdef Bytes value
    at = take_varint(at, parts.end, &count)
    if at == NULL or count < 0 or count > parts.end - at:
        return False
    for index in range(count):
        at = _take_chunk(at, parts.end, &name, &name_bytes)
        if at == NULL or name_bytes < 0:
            return False
        at = _take_chunk(at, parts.end, &value, &value_bytes)
        if at == NULL:
            return False
        if (
            value_bytes == 1
            and name_bytes == QOS_NAME_BYTES
            and value[0] == 0x30
            and memcmp(name, QOS_NAME, QOS_NAME_BYTES) == 0
        ):
            parts.qos_zero = True
    return at == parts.end


cdef inline bint _take_record(Bytes at, Bytes end, Parts* parts) noexcept nogil:
    cdef int64_t length, size
    cdef Bytes key
    at = take_varint(at, end, &length)
    if at == NULL or length < 1 or length > end - at:
        return False
    parts.end = end = at + length
    parts.qos_zero = False
    at = take_varint(at + 1, end, &parts.timestamp_delta)
    if at == NULL:
        return False
    at = take_varint(at, end, &parts.offset_delta)
    if at == NULL:
        return False
    at = _take_chunk(at, end, &key, &size)
    if at == NULL:
        return False
    at = _take_chunk(at, end, &parts.value, &size)
    if at == NULL:
        return False
    parts.value_bytes = max(size, 0)
    return _take_headers(at, parts)


cdef class _Answers:
    cdef bytearray out
    cdef Py_ssize_t used
    cdef Py_ssize_t polls_used
    cdef Py_ssize_t polls_count
    cdef Bytes polls
    cdef int64_t offset
    cdef bytearray states
    cdef int64_t leased
    cdef int64_t timestamp_min
    cdef int64_t doubtful_end
    cdef int64_t zero_end
    cdef int again
    cdef unsigned char* known
    cdef Py_ssize_t known_bytes
    cdef int64_t floor
    cdef Bytes topic
    cdef Py_ssize_t topic_bytes
    cdef int qos
    cdef int64_t tag_shift
    cdef int64_t bytes_max
    cdef int64_t frame_bytes_max
    cdef Py_ssize_t states_used

    cdef int state(self, int state) except -1:
        if self.states_used == PyByteArray_GET_SIZE(self.states):
            PyByteArray_Resize(self.states, 2 * self.states_used + 64)
        (<unsigned char*>PyByteArray_AS_STRING(self.states))[self.states_used] = state
        self.states_used += 1
        return 0

    cdef int pass_over(self, int64_t to) except -1:
        """Offsets without a record are settled."""
        cdef int64_t count = to - self.offset
        if count <= 0:
            return 0
        self.offset = to
        if self.again:
            return 0
        if count > PyByteArray_GET_SIZE(self.states) - self.states_used:
            PyByteArray_Resize(self.states, 2 * (self.states_used + count))
        memset(PyByteArray_AS_STRING(self.states) + self.states_used, 0, count)
        self.states_used += count
        return 0

    cdef int answer(self, int64_t at, int64_t time, const Parts* parts) except -1:
        cdef int qos = 0 if parts.qos_zero else self.qos
        cdef int64_t length = 12 + self.topic_bytes + parts.value_bytes
        cdef int64_t place
        cdef unsigned char* to
        self.pass_over(at)
        self.offset = at + 1
        if self.again:
            place = at - self.floor
            if not 0 <= place < self.known_bytes or self.known[place] != self.again:
                return 0
            self.known[place] = min((self.again & 0x7F) + 1, ATTEMPT_MAX)
        elif qos == 0 and at < self.doubtful_end:
            return self.state(0)
        elif time < self.timestamp_min:
            return self.state(DEAD_EXPIRED)
        elif length > self.frame_bytes_max:
            return self.state(DEAD_TOO_LARGE)
        else:
            self.state(qos)
        self.leased += qos
        if self.used + 4 + length > PyByteArray_GET_SIZE(self.out):
            PyByteArray_Resize(self.out, 2 * (self.used + 4 + length))
        to = <unsigned char*>PyByteArray_AS_STRING(self.out) + self.used
        to = put_u32(to, <uint32_t>length)
        to[0] = PUBLISH_TYPE
        if qos:
            put_i64(to + 1, add_i64(at, self.tag_shift))
        else:
            memcpy(to + 1, self.polls + 8 * self.polls_used, 8)
        to[9] = qos
        to[10] = <unsigned char>(self.topic_bytes >> 8)
        to[11] = <unsigned char>self.topic_bytes
        memcpy(to + 12, self.topic, self.topic_bytes)
        memcpy(to + 12 + self.topic_bytes, parts.value, parts.value_bytes)
        self.used += 4 + length
        self.polls_used += 1
        return 0

    cdef inline bint has_room(self) noexcept:
        return self.polls_used < self.polls_count and self.used < self.bytes_max

    cdef Py_ssize_t take(
        self, Bytes data, Py_ssize_t batch, Py_ssize_t record, Py_ssize_t end, int64_t stop
    ) except -2:
        """Records of one batch; where it stopped inside, 0 if it is through, -1 if malformed."""
        cdef Parts parts
        cdef int64_t base_offset = i64_at(data + batch)
        cdef int64_t last_delta = i32_at(data + batch + 23)
        cdef int64_t at, time
        while record < end:
            if not _take_record(data + record, data + end, &parts):
                return -1
            if parts.offset_delta < 0 or parts.offset_delta > last_delta:
                return -1
            at = base_offset + parts.offset_delta
            if at >= self.offset:
                if at >= stop:
                    self.pass_over(stop)
                    return record
                if not self.has_room():
                    return record
                if at >= self.zero_end and not self.again and (parts.qos_zero or not self.qos):
                    self.pass_over(at)
                    return record
                if data[batch + 22] & APPEND_TIME:
                    time = i64_at(data + batch + 35)
                else:
                    time = add_i64(i64_at(data + batch + 27), parts.timestamp_delta)
                self.answer(at, time, &parts)
            record = parts.end - data
        self.pass_over(min(stop, base_offset + last_delta + 1))
        return 0

    cdef object walk(
        self, Bytes data, Py_ssize_t size, Py_ssize_t batch, Py_ssize_t record, int64_t stop
    ):
        cdef int64_t unreadable = 0
        cdef int64_t batch_bytes, last_offset
        cdef Py_ssize_t after, reached
        while size - batch >= BATCH_BYTES and self.offset < stop:
            batch_bytes = <int64_t>i32_at(data + batch + 8) + 12
            if (
                data[batch + 16] != 2
                or batch_bytes < BATCH_BYTES
                or batch_bytes > size - batch
                or not 0 <= i64_at(data + batch) <= OFFSET_MAX
                or i32_at(data + batch + 23) < 0
            ):
                unreadable += 1
                batch = size
                break
            after = batch + batch_bytes
            last_offset = i64_at(data + batch) + i32_at(data + batch + 23)
            if last_offset < self.offset:
                batch = after
                record = 0
                continue
            if i64_at(data + batch) >= stop:
                self.pass_over(stop)
                break
            reached = self.take(data, batch, max(record, batch + BATCH_BYTES), after, stop)
            if reached > 0:
                record = reached
                break
            if reached < 0:
                unreadable += 1
                self.pass_over(min(stop, last_offset + 1))
            batch = after
            record = 0
        PyByteArray_Resize(self.states, self.states_used)
        return _make(Delivered, (
            PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self.out), self.used),
            self.polls_used,
            self.offset,
            batch,
            record,
            b"" if self.again else bytes(self.states),
            self.leased,
            unreadable,
        ))


def deliver_blipmq(
    batches,
    Py_ssize_t batch,
    Py_ssize_t record,
    int64_t offset,
    int64_t stop,
    polls,
    *,
    bytes topic not None,
    int qos,
    int64_t tag_shift,
    int64_t timestamp_min,
    int64_t bytes_max,
    int64_t frame_bytes_max,
    int again=0,
    bytearray states=None,
    int64_t floor=0,
    int64_t doubtful_end=0,
    int64_t zero_end=OFFSET_MAX,
):
    """Answer POLLs with the records from `offset` on, up to `stop`."""
    cdef Py_buffer view, asked
    cdef _Answers answers = _Answers()
    answers.out = bytearray()
    answers.states = bytearray()
    answers.offset = offset
    answers.topic = <Bytes>PyBytes_AS_STRING(topic)
    answers.topic_bytes = PyBytes_GET_SIZE(topic)
    answers.qos = 1 if qos else 0
    answers.tag_shift = tag_shift
    answers.timestamp_min = timestamp_min
    answers.doubtful_end = doubtful_end
    answers.zero_end = zero_end
    answers.bytes_max = bytes_max
    answers.frame_bytes_max = frame_bytes_max
    if states is not None:
        answers.again = again
        answers.known = <unsigned char*>PyByteArray_AS_STRING(states)
        answers.known_bytes = PyByteArray_GET_SIZE(states)
        answers.floor = floor
    if answers.topic_bytes > 0xFFFF:
        raise ValueError("a topic's name has at most 65535 bytes")
    PyObject_GetBuffer(polls, &asked, PyBUF_SIMPLE)
    try:
        if asked.len % 8:
            raise ValueError(f"{asked.len} bytes are no list of ids of 8 bytes each")
        answers.polls = <Bytes>asked.buf
        answers.polls_count = asked.len // 8
        PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= batch <= view.len or record < 0:
                raise ValueError(f"no batch at byte {batch} of {view.len}")
            return answers.walk(<Bytes>view.buf, view.len, batch, record, stop)
        finally:
            PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&asked)


def refuse_blipmq(correlations, int code, bytes text not None):
    """One NACK for each of these correlation ids, of 8 bytes each."""
    cdef Py_buffer view
    cdef Py_ssize_t index, count
    cdef Py_ssize_t text_bytes = PyBytes_GET_SIZE(text)
    cdef unsigned char* at
    PyObject_GetBuffer(correlations, &view, PyBUF_SIMPLE)
    try:
        if view.len % 8 or text_bytes > 0xFFFF:
            raise ValueError("ids have 8 bytes each, a text at most 65535")
        count = view.len // 8
        out = PyBytes_FromStringAndSize(NULL, count * (17 + text_bytes))
        at = <unsigned char*>PyBytes_AS_STRING(out)
        for index in range(count):
            at = put_u32(at, <uint32_t>(13 + text_bytes))
            at[0] = NACK_TYPE
            memcpy(at + 1, <Bytes>view.buf + 8 * index, 8)
            put_i16(at + 9, <short>code)
            put_i16(at + 11, <short>text_bytes)
            memcpy(at + 13, PyBytes_AS_STRING(text), text_bytes)
            at += 13 + text_bytes
        return out
    finally:
        PyBuffer_Release(&view)
