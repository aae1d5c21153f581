"""Records of the RustLog door to batches and back; the twin, and the layout, are in
`pure/rustlog.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport int16_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from pentalog.kernels.compiled.checks cimport FRAMING_BYTES, HEADER_BYTES
from pentalog.kernels.compiled.wire cimport (
    crc32c_of,
    crc32c_prepare,
    i16_at,
    put_i16,
    put_i64,
    put_u32,
    put_varint,
    u32_at,
    varint_bytes,
)

from pentalog.kernels.facts import Facts
from pentalog.kernels.rustlog_facts import RustlogRun

ctypedef const unsigned char* Bytes

cdef enum:
    PRODUCE = 1
    RECORD_OVERHEAD_MAX = 24

cdef Py_ssize_t ROOM_BYTES_MIN = 4096
cdef object _make = tuple.__new__

crc32c_prepare()

cdef int _lend(object data, Py_buffer* view, Py_ssize_t start, Py_ssize_t end) except -1:
    """Borrow the bytes of `data`; to be released if this returns."""
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    if 0 <= start <= end <= view.len:
        return 0
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(view)
    raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")


cdef class _Packer:
    """Batches in the making: values in, whole batches one behind another out."""

    cdef bytearray out
    cdef unsigned char* at
    cdef Py_ssize_t room
    cdef Py_ssize_t used
    cdef Py_ssize_t batch_start
    cdef Py_ssize_t batch_bytes_max
    cdef Py_ssize_t batch_bytes_most
    cdef int64_t batch_records
    cdef int64_t records
    cdef int64_t batches
    cdef int64_t timestamp_ms
    cdef int16_t attributes

    def __cinit__(
        self, Py_ssize_t room, int16_t attributes, int64_t timestamp_ms, Py_ssize_t batch_bytes_max
    ):
        self.out = bytearray()
        self.room = max(room, ROOM_BYTES_MIN)
        PyByteArray_Resize(self.out, self.room)
        self.at = <unsigned char*>PyByteArray_AS_STRING(self.out)
        self.attributes = attributes
        self.timestamp_ms = timestamp_ms
        self.batch_bytes_max = batch_bytes_max

    cdef inline int need(self, Py_ssize_t size) except -1:
        if size > self.room - self.used:
            self.room = 2 * (self.used + size)
            PyByteArray_Resize(self.out, self.room)
            self.at = <unsigned char*>PyByteArray_AS_STRING(self.out)
        return 0

    cdef inline int group(self, Py_ssize_t size) except -1:
        """What follows takes at most `size` bytes and shall be in one batch if it fits one."""
        if self.batch_records and (
            self.used - self.batch_start + size > self.batch_bytes_max
        ):
            self.close()
        return 0

    cdef inline int put(self, Bytes value, Py_ssize_t size) except -1:
        cdef Py_ssize_t body
        cdef unsigned char* at
        body = 5 + varint_bytes(size) + size
        if self.batch_records:
            body += varint_bytes(self.batch_records) - 1
            if (
                self.used - self.batch_start + <Py_ssize_t>varint_bytes(body) + body
                > self.batch_bytes_max
            ):
                self.close()
                body = 5 + varint_bytes(size) + size
        self.need(HEADER_BYTES + RECORD_OVERHEAD_MAX + size)
        if self.batch_records == 0:
            self.batch_start = self.used
            self.used += HEADER_BYTES
        at = put_varint(self.at + self.used, body)
        at[0] = 0
        at[1] = 0
        at = put_varint(at + 2, self.batch_records)
        at[0] = 1
        at = put_varint(at + 1, size)
        memcpy(at, value, size)
        at[size] = 0
        self.used = at + size + 1 - self.at
        self.batch_records += 1
        self.records += 1
        return 0

    cdef int close(self) except -1:
        cdef unsigned char* start
        cdef unsigned char* at
        cdef Py_ssize_t size
        if self.batch_records == 0:
            return 0
        size = self.used - self.batch_start
        start = self.at + self.batch_start
        put_i64(start, 0)
        put_u32(start + 8, <uint32_t>(size - FRAMING_BYTES))
        put_u32(start + 12, 0xFFFFFFFF)
        start[16] = 2
        at = put_i16(start + 21, self.attributes)
        at = put_u32(at, <uint32_t>(self.batch_records - 1))
        at = put_i64(at, self.timestamp_ms)
        at = put_i64(at, self.timestamp_ms)
        at = put_i64(at, -1)
        at = put_i16(at, -1)
        at = put_u32(at, 0xFFFFFFFF)
        put_u32(at, <uint32_t>self.batch_records)
        put_u32(start + 17, crc32c_of(start + 21, size - 21, 0))
        self.batches += 1
        self.batch_bytes_most = max(self.batch_bytes_most, size)
        self.batch_records = 0
        return 0

    cdef object finish(self):
        """The facts of all batches, as `check_batches` would say."""
        self.close()
        PyByteArray_Resize(self.out, self.used)
        return _make(Facts, (
            0,
            self.used,
            self.batches,
            self.records,
            self.records,
            self.batch_bytes_most,
            max(self.timestamp_ms, <int64_t>-1),
            <uint16_t>self.attributes,
            1,
            -1,
            -1,
            -1,
            -1,
            True,
            False,
        ))


cdef struct Asked:
    Bytes topic
    Py_ssize_t topic_bytes
    uint32_t partition
    uint32_t count
    Bytes records
    Bytes end


cdef bint _take_produce(
    Bytes at, Bytes end, Py_ssize_t frame_bytes_max, Asked* asked
) noexcept nogil:
    """Is there a whole, well-formed Produce of at least one record?"""
    cdef Py_ssize_t size
    cdef uint32_t index, length
    if end - at < 4:
        return False
    size = u32_at(at)
    at += 4
    if size > frame_bytes_max or size > end - at or size < 11 or at[0] != PRODUCE:
        return False
    end = at + size
    asked.end = end
    asked.topic = at + 3
    asked.topic_bytes = <uint16_t>i16_at(at + 1)
    if asked.topic_bytes > size - 11:
        return False
    at = asked.topic + asked.topic_bytes
    asked.partition = u32_at(at)
    asked.count = u32_at(at + 4)
    at += 8
    asked.records = at
    if asked.count == 0 or asked.count > <uint64_t>((end - at) // 4):
        return False
    for index in range(asked.count):
        if end - at < 4:
            return False
        length = u32_at(at)
        at += 4
        if length > <uint64_t>(end - at):
            return False
        at += length
    return True


def rustlog_flaw(data, Py_ssize_t start, Py_ssize_t end, uint32_t count):
    """What is wrong with so many records: 0 nothing, 1 a length, 2 a value is cut off."""
    cdef Py_buffer view
    cdef Bytes at, stop
    cdef uint32_t index, length
    _lend(data, &view, start, end)
    try:
        at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        for index in range(count):
            if stop - at < 4:
                return 1
            length = u32_at(at)
            at += 4
            if length > <uint64_t>(stop - at):
                return 2
            at += length
        return 0
    finally:
        PyBuffer_Release(&view)


def rustlog_run(
    data,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t run_bytes_max,
    Py_ssize_t batch_bytes_max,
    int16_t attributes,
    int64_t timestamp_ms,
):
    """The Produce requests at `start` that ask the same; None if there is none to take."""
    cdef Py_buffer view
    cdef Asked first, asked
    cdef Bytes at, stop, begin
    cdef uint32_t index, length
    cdef list counts = []
    cdef _Packer packer
    _lend(data, &view, start, end)
    try:
        begin = at = <Bytes>view.buf + start
        stop = <Bytes>view.buf + end
        if not _take_produce(at, stop, frame_bytes_max, &first):
            return None
        asked = first
        packer = _Packer(
            min(<Py_ssize_t>(stop - at), max(run_bytes_max, <Py_ssize_t>(first.end - at))) + 1024,
            attributes,
            timestamp_ms,
            batch_bytes_max,
        )
        while True:
            packer.group(
                (asked.end - asked.records) + <Py_ssize_t>asked.count * (RECORD_OVERHEAD_MAX - 4)
            )
            at = asked.records
            for index in range(asked.count):
                length = u32_at(at)
                packer.put(at + 4, length)
                at += 4 + <Py_ssize_t>length
            counts.append(asked.count)
            at = asked.end
            if not _take_produce(at, stop, frame_bytes_max, &asked):
                break
            if (
                asked.end - begin > run_bytes_max
                or asked.partition != first.partition
                or asked.topic_bytes != first.topic_bytes
                or memcmp(asked.topic, first.topic, first.topic_bytes)
            ):
                break
        facts = packer.finish()
        return _make(RustlogRun, (
            PyBytes_FromStringAndSize(<const char*>first.topic, first.topic_bytes),
            first.partition,
            at - <Bytes>view.buf,
            _packed(counts),
            packer.out,
            facts,
        ))
    finally:
        PyBuffer_Release(&view)


cdef bytes _packed(list counts):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 * len(counts))
    cdef char* at = PyBytes_AS_STRING(out)
    cdef uint32_t count
    for count in counts:
        memcpy(at, &count, 4)
        at += 4
    return out


def rustlog_batches(
    list requests not None,
    *,
    Py_ssize_t batch_bytes_max,
    int16_t attributes,
    int64_t timestamp_ms,
):
    """(counts, batches, their facts) of the values of each request."""
    cdef Py_ssize_t size = 0
    cdef list sizes = []
    cdef list counts = []
    cdef Py_ssize_t taken
    cdef _Packer packer
    for values in requests:
        taken = 0
        for value in <list?>values:
            if not PyBytes_CheckExact(value):
                raise TypeError(f"a record is bytes, not {type(value).__name__}")
            taken += PyBytes_GET_SIZE(value) + RECORD_OVERHEAD_MAX
        if taken == 0:
            raise ValueError("no records: a batch has at least one")
        counts.append(len(<list>values))
        sizes.append(taken)
        size += taken
    if size == 0:
        raise ValueError("no records: a batch has at least one")
    packer = _Packer(size + HEADER_BYTES, attributes, timestamp_ms, batch_bytes_max)
    for values, taken in zip(requests, sizes):
        packer.group(taken)
        for value in <list>values:
            packer.put(<Bytes>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    facts = packer.finish()
    return _packed(counts), packer.out, facts
