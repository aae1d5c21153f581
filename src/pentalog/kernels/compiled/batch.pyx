"""Walks over record batches; the twin, and the layout, are in `pure/batch.py`."""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr

from pentalog.kernels.compiled.checks cimport (
    CHECKSUM,
    CODEC,
    CODEC_MAX,
    COUNT,
    FRAMING_BYTES,
    HEADER_BYTES,
    I32_MAX,
    NO_FLAW,
    OFFSET,
    Run,
    check_run,
    facts_of,
    frame_flaw,
    sequence_after,
    sum_is_right,
)
from pentalog.kernels.compiled.wire cimport (
    crc32c_of,
    crc32c_prepare,
    i16_at,
    i32_at,
    i64_at,
    put_i64,
    put_u32,
    u32_at,
)

from pentalog.kernels.facts import BatchHeader, Facts, Scan

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef Py_ssize_t UNLOCK_BYTES = 1 << 20
cdef object _make = tuple.__new__

crc32c_prepare()


cdef int _lend(object data, Py_buffer* view, int flags, Py_ssize_t start, Py_ssize_t end) except -1:
    """Borrow the bytes of `data`; to be released if this returns."""
    PyObject_GetBuffer(data, view, flags)
    if 0 <= start <= end <= view.len:
        return 0
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(view)
    raise ValueError(f"range {start}..{end} is not inside a buffer of {size} bytes")


def batch_header(data, Py_ssize_t position):
    """The header at `position`, unchecked; its 61 bytes must be there."""
    cdef Py_buffer view
    cdef const unsigned char* at
    if position > PY_SSIZE_T_MAX - HEADER_BYTES:
        raise ValueError(f"position {position} is not inside a buffer")
    _lend(data, &view, PyBUF_SIMPLE, position, position + HEADER_BYTES)
    try:
        at = <const unsigned char*>view.buf + position
        return _make(BatchHeader, (
            i64_at(at),
            <int64_t>i32_at(at + 8) + FRAMING_BYTES,
            i32_at(at + 12),
            <signed char>at[16],
            u32_at(at + 17),
            i16_at(at + 21),
            i32_at(at + 23),
            i64_at(at + 27),
            i64_at(at + 35),
            i64_at(at + 43),
            i16_at(at + 51),
            i32_at(at + 53),
            i32_at(at + 57),
        ))
    finally:
        PyBuffer_Release(&view)


def check_batches(data, Py_ssize_t start, Py_ssize_t end):
    """Check a run of whole batches as a producer must send them; nothing is a flaw too."""
    cdef Py_buffer view
    cdef Run run
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        if end - start > UNLOCK_BYTES:
            with nogil:
                check_run(<const unsigned char*>view.buf, start, end, &run)
        else:
            check_run(<const unsigned char*>view.buf, start, end, &run)
    finally:
        PyBuffer_Release(&view)
    return facts_of(_make, Facts, &run)


cdef Py_ssize_t _whole_size(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end
) except -1:
    """Size of a batch that has been checked before; anything else is our own mistake."""
    cdef int64_t size = 0
    if end - position >= HEADER_BYTES:
        size = <int64_t>i32_at(data + position + 8) + FRAMING_BYTES
    if HEADER_BYTES <= size <= end - position:
        return size
    raise ValueError(f"no whole batch at {position}: check the batches before stamping them")


def stamp(data, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, int32_t leader_epoch):
    """Give the batches their offsets, in place; returns the offset after the last."""
    cdef Py_buffer view
    cdef unsigned char* bytes_
    cdef Py_ssize_t position = start
    cdef Py_ssize_t size
    _lend(data, &view, PyBUF_WRITABLE, start, end)
    try:
        bytes_ = <unsigned char*>view.buf
        while position < end:
            size = _whole_size(bytes_, position, end)
            put_i64(bytes_ + position, base_offset)
            put_u32(bytes_ + position + 12, <uint32_t>leader_epoch)
            base_offset += <int64_t>i32_at(bytes_ + position + 23) + 1
            position += size
    finally:
        PyBuffer_Release(&view)
    return base_offset


def stamp_append_time(data, Py_ssize_t start, Py_ssize_t end, int64_t timestamp_ms):
    """Let the append time stand for the time of every record, in place."""
    cdef Py_buffer view
    cdef unsigned char* at
    cdef Py_ssize_t position = start
    cdef Py_ssize_t size
    _lend(data, &view, PyBUF_WRITABLE, start, end)
    try:
        while position < end:
            size = _whole_size(<const unsigned char*>view.buf, position, end)
            at = <unsigned char*>view.buf + position
            at[22] |= 0x08
            put_i64(at + 35, timestamp_ms)
            put_u32(at + 17, crc32c_of(at + 21, size - 21, 0))
            position += size
    finally:
        PyBuffer_Release(&view)


cdef struct Walk:
    Py_ssize_t position
    int64_t next_offset
    int64_t timestamp_max
    int64_t timestamp_max_offset
    int64_t timestamp_entered
    int64_t bytes_since_entry
    int64_t batches
    int flaw
    Py_ssize_t entries
    Py_ssize_t time_entries
    Py_ssize_t producers


cdef struct Place:
    Py_ssize_t start
    Py_ssize_t end
    int64_t file_position
    int64_t segment_base
    int64_t index_interval
    int64_t offset_max
    bint verify
    bint producers
    bint gaps


cdef inline int _stored_flaw(
    const unsigned char* at, Py_ssize_t size, const Walk* walk, const Place* place
) noexcept nogil:
    cdef int64_t base, delta, records
    if place.verify and not sum_is_right(at, size):
        return CHECKSUM
    if (at[22] & 7) > CODEC_MAX:
        return CODEC
    delta = i32_at(at + 23)
    records = i32_at(at + 57)
    if delta < 0 or records < 0 or records > delta + 1:
        return COUNT
    base = i64_at(at)
    if base < walk.next_offset or base > place.offset_max - delta:
        return OFFSET
    if base != walk.next_offset and not place.gaps:
        return OFFSET
    # Neither side can overflow: base + delta is below the maximum, and a segment base is not
    # negative unless the caller is wrong, which then gives a flaw.
    if place.segment_base < 0 or base + delta - place.segment_base > I32_MAX:
        return OFFSET
    return NO_FLAW


cdef void _scan(
    const unsigned char* data,
    Walk* walk,
    const Place* place,
    unsigned char* entries,
    unsigned char* time_entries,
    Py_ssize_t** producers,
    Py_ssize_t* producers_room,
) noexcept nogil:
    """Walk on until the end, a flaw, or want of memory (then the flaw is -1)."""
    cdef const unsigned char* at
    cdef Py_ssize_t size
    cdef Py_ssize_t* grown
    cdef int64_t last, timestamp
    walk.flaw = NO_FLAW
    while walk.position < place.end:
        at = data + walk.position
        walk.flaw = frame_flaw(at, place.end - walk.position)
        if walk.flaw:
            return
        size = <Py_ssize_t>i32_at(at + 8) + FRAMING_BYTES
        walk.flaw = _stored_flaw(at, size, walk, place)
        if walk.flaw:
            return
        if place.producers and i64_at(at + 43) >= 0:
            if walk.producers == producers_room[0]:
                producers_room[0] = 2 * producers_room[0] + 64
                grown = <Py_ssize_t*>realloc(
                    producers[0], producers_room[0] * sizeof(Py_ssize_t))
                if grown == NULL:
                    walk.flaw = -1
                    return
                producers[0] = grown
            producers[0][walk.producers] = walk.position
            walk.producers += 1
        last = i64_at(at) + i32_at(at + 23)
        timestamp = i64_at(at + 35)
        if timestamp > walk.timestamp_max:
            walk.timestamp_max = timestamp
            walk.timestamp_max_offset = last
        if walk.bytes_since_entry > place.index_interval:
            put_u32(entries + 8 * walk.entries, <uint32_t>(last - place.segment_base))
            put_u32(
                entries + 8 * walk.entries + 4,
                <uint32_t>(place.file_position + walk.position - place.start))
            walk.entries += 1
            if walk.timestamp_max > walk.timestamp_entered:
                put_i64(time_entries + 12 * walk.time_entries, walk.timestamp_max)
                put_u32(
                    time_entries + 12 * walk.time_entries + 8,
                    <uint32_t>(walk.timestamp_max_offset - place.segment_base))
                walk.time_entries += 1
                walk.timestamp_entered = walk.timestamp_max
            walk.bytes_since_entry = 0
        walk.bytes_since_entry += size
        walk.next_offset = last + 1
        walk.batches += 1
        walk.position += size


cdef tuple _producer(const unsigned char* data, Py_ssize_t position):
    cdef const unsigned char* at = data + position
    cdef int64_t delta = i32_at(at + 23)
    cdef int64_t base = i64_at(at)
    cdef int64_t sequence = i32_at(at + 53)
    return (
        i64_at(at + 43),
        i16_at(at + 51),
        sequence,
        sequence_after(sequence, delta),
        base,
        base + delta,
        (at[21] << 8) | at[22],
        position,
    )


cdef object _scan_of(
    const unsigned char* data,
    const Walk* walk,
    const unsigned char* entries,
    const unsigned char* time_entries,
    const Py_ssize_t* found,
):
    cdef Py_ssize_t index
    return _make(Scan, (
        walk.position,
        walk.next_offset,
        walk.timestamp_max,
        walk.timestamp_max_offset,
        walk.batches,
        walk.flaw,
        PyBytes_FromStringAndSize(<const char*>entries, 8 * walk.entries),
        PyBytes_FromStringAndSize(<const char*>time_entries, 12 * walk.time_entries),
        [_producer(data, found[index]) for index in range(walk.producers)],
        walk.bytes_since_entry,
        walk.timestamp_entered,
    ))


cdef int64_t _entries_max(const Place* place) noexcept:
    """Each entry but the first needs more than an interval of bytes, and a batch, of its own."""
    cdef int64_t size = place.end - place.start
    cdef int64_t room = size // HEADER_BYTES + 1
    if place.index_interval > HEADER_BYTES:
        room = min(room, size // place.index_interval + 2)
    return room


def scan_batches(
    data,
    Py_ssize_t start,
    Py_ssize_t end,
    *,
    int64_t file_position,
    int64_t segment_base,
    int64_t next_offset,
    int64_t index_interval,
    int64_t bytes_since_entry,
    int64_t timestamp_max,
    int64_t timestamp_max_offset,
    bint verify,
    bint producers,
    int64_t timestamp_entered=-1,
    bint gaps=True,
    int64_t offset_max=INT64_MAX - 1,
):
    """Walk a piece of a segment until its end or its first flaw, and make its index entries."""
    cdef Py_buffer view
    cdef Walk walk
    cdef Place place
    cdef unsigned char* entries = NULL
    cdef unsigned char* time_entries = NULL
    cdef Py_ssize_t* found = NULL
    cdef Py_ssize_t found_room = 0
    cdef int64_t room
    cdef const unsigned char* bytes_
    place.start, place.end, place.file_position = start, end, file_position
    place.segment_base, place.index_interval = segment_base, index_interval
    place.verify, place.producers = verify, producers
    place.gaps = gaps
    place.offset_max = max(<int64_t>-1, min(offset_max, <int64_t>(INT64_MAX - 1)))
    walk.position, walk.next_offset, walk.batches = start, next_offset, 0
    walk.timestamp_max, walk.timestamp_max_offset = timestamp_max, timestamp_max_offset
    walk.timestamp_entered, walk.bytes_since_entry = timestamp_entered, bytes_since_entry
    walk.entries = walk.time_entries = walk.producers = 0
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        bytes_ = <const unsigned char*>view.buf
        room = _entries_max(&place)
        entries = <unsigned char*>malloc(8 * room)
        time_entries = <unsigned char*>malloc(12 * room)
        if entries == NULL or time_entries == NULL:
            raise MemoryError
        if end - start > UNLOCK_BYTES:
            with nogil:
                _scan(bytes_, &walk, &place, entries, time_entries, &found, &found_room)
        else:
            _scan(bytes_, &walk, &place, entries, time_entries, &found, &found_room)
        if walk.flaw < 0:
            raise MemoryError
        return _scan_of(bytes_, &walk, entries, time_entries, found)
    finally:
        free(entries)
        free(time_entries)
        free(found)
        PyBuffer_Release(&view)


cdef Py_ssize_t _find(
    const unsigned char* data,
    Py_ssize_t start,
    Py_ssize_t end,
    int64_t offset_min,
    int64_t offset_max,
) noexcept nogil:
    cdef Py_ssize_t position
    cdef Py_ssize_t magic = start + 16
    cdef const unsigned char* at
    while magic < end:
        at = <const unsigned char*>memchr(data + magic, 2, end - magic)
        if at == NULL:
            return -1
        magic = at - data
        position = magic - 16
        at = data + position
        if (
            frame_flaw(at, end - position) == NO_FLAW
            and offset_min <= i64_at(at) <= offset_max
            and sum_is_right(at, <Py_ssize_t>i32_at(at + 8) + FRAMING_BYTES)
        ):
            return position
        magic += 1
    return -1


def find_batch(
    data, Py_ssize_t start, Py_ssize_t end, *, int64_t offset_min, int64_t offset_max
):
    """The first position of a whole, right-summed batch with such a base offset, or -1."""
    cdef Py_buffer view
    cdef Py_ssize_t position
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        with nogil:
            position = _find(<const unsigned char*>view.buf, start, end, offset_min, offset_max)
    finally:
        PyBuffer_Release(&view)
    return position


cdef inline Py_ssize_t _step(
    const unsigned char* at, Py_ssize_t left, int64_t* last
) noexcept nogil:
    """Size of a batch whose header lies inside, 0 if there is none; its body may end outside."""
    cdef int64_t size, base, delta
    if left < HEADER_BYTES or at[16] != 2:
        return 0
    size = <int64_t>i32_at(at + 8) + FRAMING_BYTES
    if size < HEADER_BYTES or size > I32_MAX:
        return 0
    base = i64_at(at)
    delta = i32_at(at + 23)
    if delta < 0 or base < 0 or base >= INT64_MAX - delta:
        return 0
    last[0] = base + delta
    return size


def locate_offset(data, Py_ssize_t start, Py_ssize_t end, int64_t offset):
    """(position, size, base offset, next offset) of the first batch that reaches `offset`.

    Without one: (-1, where the walk stopped, -1, -1).
    """
    cdef Py_buffer view
    cdef const unsigned char* bytes_
    cdef Py_ssize_t position = start
    cdef Py_ssize_t size
    cdef int64_t last = -1
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        bytes_ = <const unsigned char*>view.buf
        while position < end:
            size = _step(bytes_ + position, end - position, &last)
            if size == 0:
                break
            if last >= offset:
                return position, size, i64_at(bytes_ + position), last + 1
            position += size
        return -1, position, -1, -1
    finally:
        PyBuffer_Release(&view)


def fit_batches(
    data, Py_ssize_t start, Py_ssize_t end, int64_t bytes_max, int64_t offset_limit
):
    """(end, next offset) of the whole batches within `bytes_max` and before `offset_limit`.

    Without one: (start, -1).
    """
    cdef Py_buffer view
    cdef Py_ssize_t position = start
    cdef Py_ssize_t limit = end
    cdef Py_ssize_t size
    cdef int64_t last = -1
    cdef int64_t next_offset = -1
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        if bytes_max < end - start:
            limit = start + <Py_ssize_t>max(bytes_max, <int64_t>0)
        while position < limit:
            size = _step(<const unsigned char*>view.buf + position, limit - position, &last)
            if size == 0 or size > limit - position or last >= offset_limit:
                break
            next_offset = last + 1
            position += size
        return position, next_offset
    finally:
        PyBuffer_Release(&view)


def attributes_in(data, Py_ssize_t start, Py_ssize_t end):
    """(all attribute words of the whole batches, or-ed; where the walk stopped)."""
    cdef Py_buffer view
    cdef const unsigned char* bytes_
    cdef Py_ssize_t position = start
    cdef Py_ssize_t size
    cdef int64_t last = 0
    cdef int attributes = 0
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        bytes_ = <const unsigned char*>view.buf
        while position < end:
            size = _step(bytes_ + position, end - position, &last)
            if size == 0 or size > end - position:
                break
            attributes |= i16_at(bytes_ + position + 21) & 0xFFFF
            position += size
    finally:
        PyBuffer_Release(&view)
    return attributes, position


def locate_time(data, Py_ssize_t start, Py_ssize_t end, int64_t timestamp):
    """(position, size) of the first batch that holds a record of `timestamp` or later.

    Without one: (-1, where the walk stopped).
    """
    cdef Py_buffer view
    cdef const unsigned char* bytes_
    cdef Py_ssize_t position = start
    cdef Py_ssize_t size
    cdef int64_t last = -1
    _lend(data, &view, PyBUF_SIMPLE, start, end)
    try:
        bytes_ = <const unsigned char*>view.buf
        while position < end:
            size = _step(bytes_ + position, end - position, &last)
            if size == 0:
                break
            if i64_at(bytes_ + position + 35) >= timestamp:
                return position, size
            position += size
        return -1, position
    finally:
        PyBuffer_Release(&view)
