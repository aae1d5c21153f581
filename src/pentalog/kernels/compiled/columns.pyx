"""Batches into columns; the twin, and the contract, are in `pure/columns.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp, memcpy

from pentalog.kernels.compiled.checks cimport (
    CHECKSUM,
    CODEC,
    COUNT,
    FRAMING_BYTES,
    HEADER_BYTES,
    NO_FLAW,
    OFFSET,
    RECORD,
    RECORD_BYTES_MIN,
    frame_flaw,
    sum_is_right,
)
from pentalog.kernels.compiled.wire cimport (
    add_i64,
    crc32c_prepare,
    i32_at,
    i64_at,
    take_varint,
)

from pentalog.kernels.column_facts import Chunks, Columns

crc32c_prepare()

ctypedef const unsigned char* Bytes

cdef int64_t BASE_OFFSET_MAX = 1 << 62

cdef enum:
    OFFSETS = 0x01
    TIMESTAMPS = 0x02
    KEYS = 0x04
    VALUES = 0x08
    HEADERS = 0x10
    DOORS = 0x20
    SPANS = 0x40

    SPAN_RECORD = 0
    SPAN_CONTROL = 1
    SPAN_ABORTED = 2
    SPAN_MISSING = 3

    APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DOOR_MASK = 7
    PICKS_MAX = 16
    DOORS_MAX = 8
    DATA_BYTES_MAX = 0x7FFFFFFF
    TRIPLE_BYTES = 24

cdef struct Texts:
    char* offsets
    char* data
    unsigned char* validity
    Py_ssize_t count
    Py_ssize_t used
    Py_ssize_t nulls

cdef struct Name:
    Bytes text
    Py_ssize_t size

cdef struct Work:
    Py_ssize_t position
    int64_t next_offset
    int flaw
    int64_t batches
    int64_t low
    int64_t high
    int columns
    bint walks_headers
    Bytes aborted
    Py_ssize_t aborts
    Py_ssize_t rows
    char* offsets
    char* timestamps
    Texts keys
    Texts values
    Texts doors
    char* header_lists
    Texts header_names
    Texts header_values
    int picks
    Name pick_names[PICKS_MAX]
    Texts picked[PICKS_MAX]
    int door_names
    Name door_texts[DOORS_MAX]
    char* spans
    Py_ssize_t span_count
    int64_t span_end


cdef inline void _put_i32(char* base, Py_ssize_t index, Py_ssize_t number) noexcept nogil:
    cdef int32_t value = <int32_t>number
    memcpy(base + 4 * index, &value, 4)


cdef inline void _put_i64(char* base, Py_ssize_t index, int64_t value) noexcept nogil:
    memcpy(base + 8 * index, &value, 8)


cdef inline int64_t _native_i64(Bytes at) noexcept nogil:
    cdef int64_t value
    memcpy(&value, at, 8)
    return value


cdef inline void _add(Texts* texts, Bytes start, int64_t size) noexcept nogil:
    """One more byte string; a negative size is null."""
    cdef Py_ssize_t row = texts.count
    cdef unsigned char bit = <unsigned char>(1 << (row & 7))
    if bit == 1:
        texts.validity[row >> 3] = 0
    if size < 0:
        texts.nulls += 1
    else:
        texts.validity[row >> 3] |= bit
        memcpy(texts.data + texts.used, start, size)
        texts.used += size
    texts.count = row + 1
    _put_i32(texts.offsets, row + 1, texts.used)


cdef inline void _cut(Texts* texts, const Texts* before) noexcept nogil:
    """Forget what was added since."""
    if texts.offsets == NULL:
        return
    texts.count = before.count
    texts.used = before.used
    texts.nulls = before.nulls
    if texts.count & 7:
        texts.validity[texts.count >> 3] &= <unsigned char>((1 << (texts.count & 7)) - 1)


cdef inline void _pick(Texts* texts, Py_ssize_t row, Bytes start, int64_t size) noexcept nogil:
    cdef int32_t used
    if texts.count > row:
        # The name came before in this record: the later one counts.
        memcpy(&used, texts.offsets + 4 * row, 4)
        texts.nulls -= not (texts.validity[row >> 3] >> (row & 7)) & 1
        texts.validity[row >> 3] &= <unsigned char>~(1 << (row & 7))
        texts.used = used
        texts.count = row
    while texts.count < row:
        _add(texts, NULL, -1)
    _add(texts, start, size)


cdef inline Bytes _chunk(Bytes at, Bytes end, int64_t* size) noexcept nogil:
    """Where the bytes behind a length begin, NULL if they do not end before `end`."""
    at = take_varint(at, end, size)
    if at == NULL or size[0] > end - at:
        return NULL
    if size[0] < 0:
        size[0] = -1
    return at


cdef bint _headers(Work* work, Bytes at, Bytes end) noexcept nogil:
    cdef int64_t count, name_size, value_size, index
    cdef Bytes name
    cdef Bytes value
    cdef int pick
    at = take_varint(at, end, &count)
    if at == NULL or count < 0 or count > end - at:
        return False
    for index in range(count):
        name = _chunk(at, end, &name_size)
        if name == NULL or name_size < 0:
            return False
        value = _chunk(name + name_size, end, &value_size)
        if value == NULL:
            return False
        at = value if value_size < 0 else value + value_size
        if work.columns & HEADERS:
            _add(&work.header_names, name, name_size)
            _add(&work.header_values, value, value_size)
        for pick in range(work.picks):
            if work.pick_names[pick].size == name_size and memcmp(
                work.pick_names[pick].text, name, name_size
            ) == 0:
                _pick(&work.picked[pick], work.rows, value, value_size)
                break
    return at == end


cdef inline bint _record(
    Work* work, Bytes at, Bytes end, int64_t timestamp, int64_t offset
) noexcept nogil:
    """The rest of a record, behind its deltas, becomes a row."""
    cdef int64_t key_size, value_size
    cdef Bytes key = _chunk(at, end, &key_size)
    cdef Bytes value
    if key == NULL:
        return False
    value = _chunk(key if key_size < 0 else key + key_size, end, &value_size)
    if value == NULL:
        return False
    if work.columns & KEYS:
        _add(&work.keys, key, key_size)
    if work.columns & VALUES:
        _add(&work.values, value, value_size)
    if work.walks_headers:
        if not _headers(work, value if value_size < 0 else value + value_size, end):
            return False
        if work.columns & HEADERS:
            _put_i32(work.header_lists, work.rows + 1, work.header_names.count)
    if work.columns & OFFSETS:
        _put_i64(work.offsets, work.rows, offset)
    if work.columns & TIMESTAMPS:
        _put_i64(work.timestamps, work.rows, timestamp)
    return True


cdef inline void _span(Work* work, int64_t kind, int64_t first, int64_t behind) noexcept nogil:
    """Note what offsets are; those between the last span and this one are missing."""
    if first < work.span_end:
        first = work.span_end
    if behind > work.high:
        behind = work.high
    if first >= behind:
        return
    if first > work.span_end:
        _span_add(work, SPAN_MISSING, work.span_end, first)
    _span_add(work, kind, first, behind)


cdef inline void _span_add(Work* work, int64_t kind, int64_t first, int64_t behind) noexcept nogil:
    cdef char* last = work.spans + TRIPLE_BYTES * (work.span_count - 1)
    if work.span_count and _native_i64(<Bytes>last) == kind:
        _put_i64(last, 2, behind)
    else:
        last += TRIPLE_BYTES
        _put_i64(last, 0, kind)
        _put_i64(last, 1, first)
        _put_i64(last, 2, behind)
        work.span_count += 1
    work.span_end = behind


cdef bint _records(Work* work, Bytes batch, Py_ssize_t size) noexcept nogil:
    """The records of an uncompressed batch; False if one is malformed."""
    cdef Bytes at = batch + HEADER_BYTES
    cdef Bytes end = batch + size
    cdef Bytes stop
    cdef int64_t base = i64_at(batch)
    cdef int64_t delta_last = i32_at(batch + 23)
    cdef int64_t base_timestamp = i64_at(batch + 27)
    cdef int64_t append_timestamp = i64_at(batch + 35)
    cdef bint appended = batch[22] & APPEND_TIME
    cdef int door = batch[21] & DOOR_MASK
    cdef int64_t records = i32_at(batch + 57)
    cdef int64_t index, length, timestamp_delta, offset_delta, timestamp, offset
    cdef int64_t before = -1
    if door >= work.door_names:
        door = 0
    for index in range(records):
        at = take_varint(at, end, &length)
        if at == NULL or length < 1 or length > end - at:
            return False
        stop = at + length
        at = take_varint(at + 1, stop, &timestamp_delta)
        if at == NULL:
            return False
        at = take_varint(at, stop, &offset_delta)
        if at == NULL or offset_delta <= before or offset_delta > delta_last:
            return False
        before = offset_delta
        offset = add_i64(base, offset_delta)
        if work.low <= offset < work.high:
            timestamp = append_timestamp if appended else add_i64(base_timestamp, timestamp_delta)
            timestamp = <int64_t>(<unsigned long long>timestamp * 1000)
            if not _record(work, at, stop, timestamp, offset):
                return False
            if work.columns & DOORS:
                _add(&work.doors, work.door_texts[door].text, work.door_texts[door].size)
            if work.columns & SPANS:
                _span(work, SPAN_RECORD, offset, offset + 1)
            work.rows += 1
        at = stop
    return at == end


cdef bint _is_aborted(const Work* work, int64_t producer, int64_t base) noexcept nogil:
    """Triples are sorted by producer and first offset: the last at or before decides."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = work.aborts
    cdef Py_ssize_t middle
    cdef int64_t other
    cdef Bytes at
    while low < high:
        middle = (low + high) >> 1
        at = work.aborted + TRIPLE_BYTES * middle
        other = _native_i64(at)
        if other < producer or (other == producer and _native_i64(at + 8) <= base):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    at = work.aborted + TRIPLE_BYTES * (low - 1)
    return _native_i64(at) == producer and base <= _native_i64(at + 16)


cdef int _batch_flaw(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef int64_t records = i32_at(at + 57)
    if not sum_is_right(at, size):
        return CHECKSUM
    if at[22] & 7:
        return CODEC
    if not 0 <= i64_at(at) <= BASE_OFFSET_MAX:
        return OFFSET
    if i32_at(at + 23) < 0 or not 0 <= records <= (size - HEADER_BYTES) // RECORD_BYTES_MIN:
        return COUNT
    return NO_FLAW


cdef void _restore(Work* work, const Work* before) noexcept nogil:
    cdef int pick
    work.rows = before.rows
    work.span_count = before.span_count
    work.span_end = before.span_end
    _cut(&work.keys, &before.keys)
    _cut(&work.values, &before.values)
    _cut(&work.doors, &before.doors)
    _cut(&work.header_names, &before.header_names)
    _cut(&work.header_values, &before.header_values)
    for pick in range(work.picks):
        _cut(&work.picked[pick], &before.picked[pick])


cdef void _walk(Work* work, Bytes data, Py_ssize_t end) noexcept nogil:
    cdef Work before
    cdef Bytes at
    cdef Py_ssize_t size
    cdef int64_t base, behind, last_end
    cdef int kind
    while work.position < end:
        at = data + work.position
        work.flaw = frame_flaw(at, end - work.position)
        if work.flaw:
            return
        base = i64_at(at)
        if base >= work.high:
            return
        size = <Py_ssize_t>i32_at(at + 8) + FRAMING_BYTES
        work.flaw = _batch_flaw(at, size)
        if work.flaw:
            return
        behind = base + i32_at(at + 23) + 1
        kind = SPAN_RECORD
        if at[22] & CONTROL:
            kind = SPAN_CONTROL
        elif at[22] & TRANSACTIONAL and _is_aborted(work, i64_at(at + 43), base):
            kind = SPAN_ABORTED
        if kind == SPAN_RECORD:
            before = work[0]
            last_end = -1
            if work.span_count:
                last_end = _native_i64(
                    <Bytes>work.spans + TRIPLE_BYTES * (work.span_count - 1) + 16)
            if behind > work.low and not _records(work, at, size):
                _restore(work, &before)
                if work.span_count:
                    _put_i64(work.spans + TRIPLE_BYTES * (work.span_count - 1), 2, last_end)
                work.flaw = RECORD
                return
            if work.columns & SPANS:
                _span(work, SPAN_MISSING, work.span_end, behind)
        elif work.columns & SPANS:
            _span(work, kind, base, behind)
        work.batches += 1
        work.next_offset = max(work.next_offset, behind)
        work.position += size


cdef void _count(
    Bytes data, Py_ssize_t start, Py_ssize_t end, int64_t high, int64_t* rows, int64_t* batches
) noexcept nogil:
    """How many rows and batches there can be at most."""
    cdef Py_ssize_t size
    cdef int64_t records
    while start < end:
        if frame_flaw(data + start, end - start) or i64_at(data + start) >= high:
            return
        size = <Py_ssize_t>i32_at(data + start + 8) + FRAMING_BYTES
        records = i32_at(data + start + 57)
        if records > 0:
            rows[0] += min(records, <int64_t>(size - HEADER_BYTES) // RECORD_BYTES_MIN)
        batches[0] += 1
        start += size


cdef class _Held:
    """The memory behind one `Texts`."""

    cdef bytearray offsets, data, validity

    cdef void lend(self, Texts* texts, Py_ssize_t rows, Py_ssize_t size):
        self.offsets = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
        self.data = PyByteArray_FromStringAndSize(NULL, size)
        self.validity = PyByteArray_FromStringAndSize(NULL, (rows >> 3) + 1)
        texts.offsets = PyByteArray_AS_STRING(self.offsets)
        texts.data = PyByteArray_AS_STRING(self.data)
        texts.validity = <unsigned char*>PyByteArray_AS_STRING(self.validity)
        _put_i32(texts.offsets, 0, 0)

    cdef object take(self, const Texts* texts):
        PyByteArray_Resize(self.offsets, 4 * (texts.count + 1))
        PyByteArray_Resize(self.data, texts.used)
        PyByteArray_Resize(self.validity, (texts.count + 7) >> 3 if texts.nulls else 0)
        return Chunks(self.offsets, self.data, self.validity, texts.nulls)


cdef object _taken(bytearray held, Py_ssize_t size):
    if held is not None:
        PyByteArray_Resize(held, size)
    return held


cdef class _Frame:
    """Everything one call holds: what was asked, and the memory for the answer."""

    cdef Work work
    cdef bytearray offsets, timestamps, header_lists, spans
    cdef _Held keys, values, doors, header_names, header_values
    cdef list picked

    cdef void lend(self, Py_ssize_t rows, Py_ssize_t batches, Py_ssize_t size):
        cdef Work* work = &self.work
        cdef int pick
        cdef _Held held
        if work.columns & OFFSETS:
            self.offsets = PyByteArray_FromStringAndSize(NULL, 8 * rows)
            work.offsets = PyByteArray_AS_STRING(self.offsets)
        if work.columns & TIMESTAMPS:
            self.timestamps = PyByteArray_FromStringAndSize(NULL, 8 * rows)
            work.timestamps = PyByteArray_AS_STRING(self.timestamps)
        if work.columns & KEYS:
            self.keys = _Held()
            self.keys.lend(&work.keys, rows, size)
        if work.columns & VALUES:
            self.values = _Held()
            self.values.lend(&work.values, rows, size)
        if work.columns & DOORS:
            self.doors = _Held()
            self.doors.lend(&work.doors, rows, RECORD_BYTES_MIN * rows)
        if work.columns & HEADERS:
            self.header_lists = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
            work.header_lists = PyByteArray_AS_STRING(self.header_lists)
            _put_i32(work.header_lists, 0, 0)
            self.header_names = _Held()
            self.header_names.lend(&work.header_names, size >> 1, size)
            self.header_values = _Held()
            self.header_values.lend(&work.header_values, size >> 1, size)
        if work.columns & SPANS:
            self.spans = PyByteArray_FromStringAndSize(
                NULL, TRIPLE_BYTES * (2 * rows + 2 * batches + 1))
            work.spans = PyByteArray_AS_STRING(self.spans)
        self.picked = []
        for pick in range(work.picks):
            held = _Held()
            held.lend(&work.picked[pick], rows, size)
            self.picked.append(held)

    cdef object take(self):
        cdef Work* work = &self.work
        cdef int pick
        cdef list picked = []
        for pick in range(work.picks):
            if work.picked[pick].count == 0:
                picked.append(None)
                continue
            while work.picked[pick].count < work.rows:
                _add(&work.picked[pick], NULL, -1)
            picked.append((<_Held>self.picked[pick]).take(&work.picked[pick]))
        headers = work.columns & HEADERS
        return Columns(
            work.position,
            work.next_offset,
            work.flaw,
            work.batches,
            work.rows,
            _taken(self.offsets, 8 * work.rows),
            _taken(self.timestamps, 8 * work.rows),
            self.keys.take(&work.keys) if work.columns & KEYS else None,
            self.values.take(&work.values) if work.columns & VALUES else None,
            self.doors.take(&work.doors) if work.columns & DOORS else None,
            _taken(self.header_lists, 4 * (work.rows + 1)),
            self.header_names.take(&work.header_names) if headers else None,
            self.header_values.take(&work.header_values) if headers else None,
            tuple(picked),
            _taken(self.spans, TRIPLE_BYTES * work.span_count),
        )


cdef void _names(tuple given, Name* names):
    cdef Py_ssize_t index
    cdef bytes text
    for index in range(len(given)):
        text = given[index]
        names[index].text = <Bytes>PyBytes_AS_STRING(text)
        names[index].size = PyBytes_GET_SIZE(text)


def decode_columns(
    data,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    int64_t low,
    int64_t high,
    int columns,
    bytes aborted not None,
    tuple picks not None,
    tuple doors not None,
):
    """Rows of the records with offsets in `low..high`, as columns."""
    cdef Py_buffer view
    cdef _Frame frame
    cdef Work* work
    cdef int64_t rows = 0
    cdef int64_t batches = 0
    if len(picks) > PICKS_MAX or not 0 < len(doors) <= DOORS_MAX or len(aborted) % TRIPLE_BYTES:
        raise ValueError("too many names, or a list of aborted transactions that is cut")
    if max(map(len, doors)) > RECORD_BYTES_MIN:
        raise ValueError(f"a door's name has at most {RECORD_BYTES_MIN} bytes")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len or end - start > DATA_BYTES_MAX:
            raise ValueError(f"{start}..{end} is no part of {view.len} bytes, or over 2 GiB")
        frame = _Frame()
        work = &frame.work
        work.position = start
        work.next_offset = work.span_end = work.low = low
        work.high = high
        work.columns = columns
        work.picks = len(picks)
        work.walks_headers = work.picks > 0 or columns & HEADERS
        work.aborted = <Bytes>PyBytes_AS_STRING(aborted)
        work.aborts = len(aborted) // TRIPLE_BYTES
        work.door_names = len(doors)
        _names(picks, work.pick_names)
        _names(doors, work.door_texts)
        _count(<Bytes>view.buf, start, end, high, &rows, &batches)
        frame.lend(rows, batches, end - start)
        with nogil:
            _walk(work, <Bytes>view.buf, end)
    finally:
        PyBuffer_Release(&view)
    return frame.take()
